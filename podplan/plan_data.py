"""Plans, questions, bounds and what to buy when as JSON; SI units, the unit in the name."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from ground.units import HOUR_SECONDS, MONTH_SECONDS
from planner.changeover.growth import Month
from planner.checks.jobs import Job
from planner.closed_forms.mixserve import stream_tokens_per_second
from planner.costs.cache import pool_rate
from planner.costs.memory import Memory
from planner.instances.reachable import REFERENCE
from planner.manifest.loading import STORAGE_BYTES_PER_SECOND, checkpoint_bytes, slowest_plane, stored_seconds
from planner.plans.papers import Beside
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.pools import PlannedDecode, PlannedPool, PlannedPrefill
from planner.plans.quantised import Tried, needs_of
from planner.plans.servers import spare_instances
from planner.programme.proof import Bound
from planner.question import Queueing, Role
from planner.search.answer import Answer
from planner.strategy import format_strategy
from podplan.day import clock_text, latency_json
from podplan.question import Asked
from podplan.result import Row, picked, whole

if TYPE_CHECKING:
    from planner.checks.margins import Sureness
    from planner.manifest.schema import Answer as ManifestAnswer

PERCENTILES = (50.0, 90.0, 99.0)
MEMORY_KINDS = ("weights", "kv_cache", "activations", "buffers", "reserve", "capacity")
INTERVAL = "low high level"
POOL = "{count} × {devices} {role} ({strategy})"


def bound_json(bound: Bound) -> dict[str, object]:
    """Return the best value that the covered space can reach, and what was never solved under which bound."""
    pruned = [picked(each, "what columns=number bound unit why") for each in bound.pruned]
    return picked(bound, "objective value gap covers queues_solved") | {"pruned": pruned}


def published_json(beside: Beside) -> dict[str, object]:
    """Return a published deployment and what it would do on the question's devices; ``plan`` is null where nothing."""
    prefill, decode = beside.published.instances
    return {
        **picked(beside.published, "name source where"),
        "published_instances": {"prefill": prefill, "decode": decode},
        "plan": plan_json(beside.plan, compact=True) if beside.plan else None,
    }


def format_json(tried: Tried) -> dict[str, object]:
    """Return what a number format came to, where there were several; null figures where it has no plan."""
    plan = tried.plan
    return {
        "weights": picked(tried.formats, "prefill decode"),
        "kv_dtype": tried.formats.kv,
        **({"encode": tried.encode} if tried.encode else {}),
        "requests_per_second": plan.requests_per_second if plan else None,
        "devices": plan.devices if plan else None,
        "binding_limit": tried.binding_limit,
        "cut": {role: dict(rules) for role, rules in tried.cut.items()},
    }


def engines_json(answer: Answer) -> list[dict[str, object]]:
    """Return what each engine came to, the best first, and what its rules cut; last the reference, which runs all.

    An engine is ``tied`` that does as well as the one taken.
    """
    found = [(tried.engine, tried.plan, tried.binding_limit, own_cuts(tried)) for tried in answer.engines]
    if found:
        found += [(engine, None, broken.rule, {}) for engine, broken in needs_of(answer.question).lacking()]
    if answer.unrestricted is not None:
        found.append((REFERENCE, answer.unrestricted, answer.unrestricted.binding_limit, {}))
    return [
        {
            "engine": engine,
            "requests_per_second": plan.requests_per_second if plan else None,
            "chips": whole(plan.chips) if plan else None,
            "binding_limit": limit,
            "cuts": cuts,
            "tied": engine in answer.tied,
        }
        for engine, plan, limit, cuts in found
    ]


def own_cuts(tried: Tried) -> dict[str, dict[str, int]]:
    """Return the layouts that each rule of the engine itself cut, by role."""
    start = f"{tried.engine}: "
    return {
        role: {rule.removeprefix(start): count for rule, count in rules.items() if rule.startswith(start)}
        for role, rules in tried.cut.items()
    }


def question_json(asked: Asked) -> "dict[str, ManifestAnswer]":
    """Return what was asked, defaults filled in."""
    question, prefill, decode = asked.question, asked.question.prefill, asked.question.decode
    workload = question.workload
    data: dict[str, ManifestAnswer] = {
        "model": question.model.name,
        "hardware": {"prefill": prefill.hardware.name, "decode": decode.hardware.name},
        "devices": {"shared": prefill.devices}
        if prefill.budget == decode.budget
        else {"prefill": prefill.devices, "decode": decode.devices},
        "weights": {"prefill": prefill.weights, "decode": decode.weights},
        "kv_dtype": question.kv_dtype,
        "input_tokens": picked(workload.input_tokens, "mean squared_cv"),
        "output_tokens": picked(workload.output_tokens, "mean squared_cv"),
        **picked(workload, "length_covariance prefix_reuse arrival_squared_cv beams"),
        "graphs": question.driven.graphs,
        "host_jitter_seconds": question.driven.jitter_seconds,
        "picture_tokens": workload.pictures.tokens if workload.pictures else 0,
        **picked(
            question, "rate_per_second ttft_seconds tpot_seconds percentile objective queueing survive shape encode"
        ),
        **picked(question, "confidence headroom max_utilisation=most_utilisation max_instance_devices"),
        "mtp": list(question.drafts),
        "mtp_acceptance": list(stated) if isinstance(stated := question.acceptance, tuple) else stated,
        "microbatches": list(question.microbatches),
        "expert_skew": question.balance.distribution.name,
        "expert_balance": question.balance.factor if question.balance.kind == "factor" else question.balance.kind,
        "redundant_experts": "auto" if question.redundant is None else question.redundant,
        "shared_experts": f"dedicated={question.shared}" if isinstance(question.shared, int) else question.shared,
        "engine": question.engine,
        **question.given,
    }
    for key in ("isl_distribution", "isl_histogram", "osl_histogram"):
        if key not in asked.flags.defaulted:
            data[key] = getattr(asked.flags, key)
    if workload.sessions is not None:
        shape = picked(workload.sessions, "turns think_seconds branches keeps_answers")
        data["sessions"] = shape | {"new_tokens": workload.sessions.new_tokens.mean}
    if question.offline is not None:
        data["offline"] = picked(question.offline, "per_request input_tokens output_tokens")
    if question.prefix_routing is not None:
        data["prefix_routing"] = question.prefix_routing
    if question.prefix_pool is not None:
        data["cache"] = picked(question.prefix_pool, "plane capacity_bytes ssd_bytes ssd_share")
    if asked.day:
        data["rate_profile"] = {clock_text(window.begin_seconds): window.rate_per_second for window in asked.day}
    if asked.growth:
        data["growth_requests_per_second"] = list(asked.growth)
    if asked.trace is not None:
        data["trace"] = {**picked(asked.trace, "name format"), "requests": len(asked.trace)}
    return data


def plan_json(plan: Plan, *, compact: bool = False) -> dict[str, object]:
    """Return a plan; ``compact`` leaves out what takes a prediction of every operator."""
    levels = levels_of(plan)
    per = {f"tokens_per_second_per_{what}": plan.output_tokens_per_second / count for what, count in _counts(plan)}
    e2e = {"mean": plan.e2e_mean_seconds, **{f"p{level:g}": plan.e2e.at(level) for level in levels}}
    data: dict[str, object] = {
        "engine": plan.question.engine,
        "pools": [pool_json(plan, pool, compact=compact) for _, pool in plan.pools()],
        "nodes": plan.nodes,
        "chips": whole(plan.chips),
        **picked(plan, "devices requests_per_second output_tokens_per_second"),
        **per,
        "ttft_seconds": latency_json(plan.ttft, levels),
        "tpot_seconds": latency_json(plan.tpot, levels),
        "e2e_seconds": e2e,
        "kv_transfer_seconds": plan.transfer_seconds,
    }
    if isinstance(plan, DisaggregatedPlan):
        keys = "transfer_seconds wait_seconds bytes_per_prompt=sent_bytes utilisation most_requests_per_second="
        data["kv_links"] = picked(plan.links, f"{keys}most_per_second")
    if plan.offline_per_second:
        data |= picked(plan, "offline_requests_per_second=offline_per_second offline_output_tokens_per_second")
    if plan.encode is not None:
        data["encode_seconds"] = latency_json(plan.encode.latency, levels)
    if plan.played is not None:
        data["played"] = picked(plan.played, "requests interval=requests_per_second ttft_seconds")
    return data | {name: value for name, value in picked(plan, FIGURES).items() if value is not None}


FIGURES = (
    "cost_per_million_tokens cost_per_hour paid_chips power_watts chip_power_watts "
    "energy_joules_per_million_tokens=joules_per_million_tokens"
)


def _counts(owner: Plan | PlannedPool) -> tuple[tuple[str, float], tuple[str, float]]:
    return ("chip", owner.chips), ("device", owner.devices)


def levels_of(plan: Plan) -> tuple[float, ...]:
    """Return the percentiles that are told: the usual ones and the question's."""
    percentile = plan.question.percentile
    return PERCENTILES if percentile in PERCENTILES else (*PERCENTILES, percentile)


def pool_json(plan: Plan, pool: PlannedPool, *, compact: bool) -> dict[str, object]:
    """Return a pool of a plan: how it is built, what it does, and what one of its devices holds.

    Tokens of prefill are prompt tokens, the reused ones included; tokens of the others are output tokens.
    """
    workload, candidate = plan.question.workload, pool.candidate
    prefill = isinstance(pool, PlannedPrefill)
    tokens = pool.question.workload.input_tokens.mean if prefill else workload.output_tokens.mean
    per_second = plan.requests_per_second * tokens
    data: dict[str, object] = {
        **picked(pool, "role hardware=machines.hardware.name instances"),
        "spare_instances": spare_instances(plan, pool),
        "devices_per_instance": candidate.devices,
        "strategy": strategy_text(pool),
        "weights": "bf16" if pool.role == "encode" else pool.machines.weights,
        **picked(candidate, LOADS[pool.role]),
        "microbatches": candidate.microbatches,
        "mtp": 0 if prefill else pool.drafts,
        "redundant_experts": candidate.row.redundant,
        "shared_experts": shared_text(pool),
        "devices": pool.devices,
        "chips": whole(pool.chips),
        **picked(pool, "utilisation capacity_requests_per_second=capacity_per_second"),
        **{f"tokens_per_second_per_{what}": per_second / count for what, count in reversed(_counts(pool))},
    }
    if pool.role == "prefill":
        data["computed_tokens_per_second_per_chip"] = (1 - workload.prefix_reuse) * per_second / pool.chips
    data |= picked(pool, STEPS[pool.role]) | {"load_seconds": loading_json(pool)}
    return data if compact else data | _predicted(pool)


def loading_json(pool: PlannedPool) -> dict[str, float | None]:
    """Return the seconds in which weights come: off a store for one instance and for all at once, off pooled memory.

    A pool that has not a model yet reads it once off the store for all.
    """
    question, spec, held = pool.question, pool.machines.hardware, float(pool.memory.weights)
    plane, whole_model = slowest_plane(spec)[1], checkpoint_bytes(question.model, pool.machines.weights)
    checkpoint = held if pool.role == "encode" else whole_model
    kept = held / pool_rate(spec, spec.plane(question.model_cache)) if question.model_cache else None
    alone, all_of_them = (
        stored_seconds(checkpoint, held, STORAGE_BYTES_PER_SECOND, plane, count) for count in (1, pool.instances)
    )
    return {"alone": alone, "all_at_once": all_of_them, "pool_cold": kept and alone + kept, "pool_warm": kept}


LOADS: dict[Role, str] = {  # what a pass of prefill or a DP rank of the others takes, by the names of a candidate
    "encode": "tokens_per_device requests_per_pass=prompts",
    "prefill": "tokens_per_device prompts_per_pass=prompts passes_per_prompt=chunks",
    "decode": "batch_per_dp_rank=batch",
    "mixed": "batch_per_dp_rank=batch max_batched_tokens=batched_tokens",
}
STEPS: dict[Role, str] = {  # how long a step of a pool takes, and what runs meanwhile
    "encode": "iteration_seconds=candidate.pass_seconds",
    "prefill": "iteration_seconds=candidate.pass_seconds",
    "decode": "iteration_seconds=candidate.iteration_seconds limited_by=candidate.limited_by "
    "mean_running_requests=state.mean_requests",
    "mixed": "iteration_seconds=state.mean_step_seconds prompt_iterations_share=state.prompt_steps "
    "mean_running_requests=state.mean_requests",
}


def _predicted(pool: PlannedPool) -> dict[str, object]:
    """Return what takes a prediction of every operator."""
    prediction = pool.prediction
    data: dict[str, object] = {
        "bottleneck": prediction.bottleneck,
        "interval": picked(prediction.interval, INTERVAL),
        "memory_bytes_per_device": memory_json(pool.memory),
    }
    if isinstance(pool, PlannedPrefill):
        data["full_pass_seconds"] = prediction.ttft_seconds
    elif isinstance(pool, PlannedDecode):
        data["full_batch_tpot_seconds"] = prediction.tpot_seconds
        if prediction.expert_memory is not None:
            data["expert_memory_bytes_per_device"] = memory_json(prediction.expert_memory)
    elif prediction.ttft_interval is not None:
        data["ttft_interval"] = picked(prediction.ttft_interval, INTERVAL)
    return data


def strategy_text(pool: PlannedPool) -> str:
    """Return a pool's strategy in the notation of ``--strategy``."""
    return format_strategy(pool.candidate.row.strategy, moe=pool.question.model.moe is not None)


def shared_text(pool: PlannedPool) -> str:
    """Return the placement of the shared expert in the notation of ``--shared-experts``."""
    return f"dedicated={pool.candidate.row.dedicated}" if pool.candidate.row.dedicated else "local"


def pools_text(plan: Plan, each: str, between: str = " + ") -> str:
    """Return the pools of a plan, of each the ``{count}``, ``{devices}``, ``{role}`` and ``{strategy}`` that are told.

    ``devices`` are those of an instance.
    """
    return between.join(
        each.format(count=pool.instances, devices=pool.candidate.devices, role=role, strategy=strategy_text(pool))
        for role, pool in plan.pools()
    )


def memory_json(memory: Memory) -> dict[str, float]:
    """Return bytes per device by kind, and the capacity."""
    return {kind: float(getattr(memory, kind)) for kind in MEMORY_KINDS}


def plan_row(plan: Plan) -> Row:
    """Return what a plan is and does as a row; latencies at the asked percentile beside their means."""
    percentile = plan.question.percentile
    return {
        "engine": plan.question.engine,
        **picked(plan, "nodes chips devices requests_per_second output_tokens_per_second"),
        "tokens_per_second_per_chip": plan.output_tokens_per_second / plan.chips,
        **picked(plan, FIGURES.replace(" cost_per_hour", "")),
        "ttft_mean_seconds": plan.ttft.mean,
        "ttft_seconds": plan.ttft.at(percentile),
        "tpot_mean_seconds": plan.tpot.mean,
        "tpot_seconds": plan.tpot.at(percentile),
        "e2e_mean_seconds": plan.e2e_mean_seconds,
        **{role: f"{pool.instances} × {pool.candidate.devices}: {strategy_text(pool)}" for role, pool in plan.pools()},
    }


def total_cost(months: Sequence[Month]) -> float | None:
    """Return what the nodes of all months cost in USD; None where a chip has no price."""
    hourly = [month.cost_per_hour for month in months if month.cost_per_hour is not None]
    return sum(hourly) * MONTH_SECONDS / HOUR_SECONDS if len(hourly) == len(months) else None


def growth_json(months: Sequence[Month]) -> dict[str, Any]:
    """Return what to buy when."""
    rows = [
        {
            **picked(month, "month=number requests_per_second"),
            "nodes_to_add": sum(month.bought.values()),
            "nodes": sum(month.nodes.values()),
            "nodes_by_budget": month.nodes,
            "chips": whole(month.plan.chips),
            "cost_per_hour": month.cost_per_hour,
            "pools": pools_text(month.plan, POOL),
        }
        for month in months
    ]
    return {"cost_usd": total_cost(months), "months": rows}


def other_model(plan: Plan) -> tuple[Queueing, Plan | None]:
    """Return the queueing model that a plan was not made with, and its pools under it; None where overloaded."""
    other: Queueing = "bulk" if plan.question.queueing == "mixserve" else "mixserve"
    return other, plan.under(replace(plan.question, queueing=other))(plan.requests_per_second)


def queueing_json(plan: Plan, percentiles: Sequence[float]) -> dict[str, object]:
    """Return both models' latencies of the plan's pools at its rate; null where a model finds them overloaded.

    Of aggregated instances M/M/1 says nothing.
    """
    other, found = other_model(plan)
    by_model = {plan.question.queueing: plan, other: found}
    told = {name: _told(by_model[name], percentiles) for name in get_args(Queueing)}
    return {"used": plan.question.queueing, **told}


def _told(plan: Plan | None, percentiles: Sequence[float]) -> dict[str, object] | None:
    if plan is None:
        return None
    workload = plan.question.workload
    lengths = (workload.input_tokens.mean, workload.output_tokens.mean)
    return {
        "ttft_seconds": latency_json(plan.ttft, percentiles),
        "tpot_seconds": latency_json(plan.tpot, percentiles),
        "stream_tokens_per_second": stream_tokens_per_second(lengths, plan.ttft.mean, plan.tpot.mean),
    }


def sure_json(sure: "Sureness | None") -> dict[str, object]:
    """Return the confidence with which a plan keeps its limits, and the rate with more; nothing without a plan."""
    if sure is None:
        return {}
    more = {f"{sure.level:g}": sure.rate_per_second}
    return {"confidence": sure.held, "requests_per_second_with_confidence": more}


def bounded_text(confidence: float) -> str:
    """Return a confidence in words where it lies beyond what is told apart."""
    if confidence > 0.998:
        return "> 0.998"
    return "< 0.002" if confidence < 0.002 else f"{confidence:.{3 if confidence > 0.99 else 2}g}"


_REACHED = {
    "ttft": "the TTFT limit",
    "tpot": "the TPOT limit",
    "memory": "its memory",
    "utilisation": "--max-utilisation",
    "kv_links": "the capacity of the KV links",
    "batch": "the given batch",
}


def limit_text(plan: Plan, job: Job | None = None, bound: Bound | None = None) -> str:
    """Say what keeps a plan from being better: what is asked, or the devices and the limit that they reach.

    Args: ``bound`` tells whether it is proven that less misses what is asked.
    """
    held, _, reached = plan.binding_limit.rpartition(", ")
    if plan.question.goal.timed:
        return "the devices at hand; no plan on them is quicker"
    if not held:
        less = {"chips": "; fewer chips miss it", "cost": "; what is cheaper misses it"}
        if bound is not None and bound.gap > 1e-6:
            less = {"chips": "; no plan of fewer chips was found", "cost": "; no cheaper plan was found"}
        return f"the {'asked rate' if job is None else 'time of the job'}{less.get(plan.question.objective, '')}"
    role, _, limit = reached.rpartition(" ")
    where = "the devices at hand" if held == "devices" else "the given instances"
    reaches = "is full" if job is not None and limit == "utilisation" else f"reaches {_REACHED.get(limit, limit)}"
    return f"{where}; {role or 'their pool'} {reaches}"
