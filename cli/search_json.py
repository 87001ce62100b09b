"""An answer of the search as the JSON of `plan`; SI units, the unit in the name."""

from typing import TYPE_CHECKING

from cli.day import day_json, profile_json
from cli.queueing import queueing_json
from cli.search_assumptions import assumptions
from cli.search_flags import SearchInput
from planner.costs.interval import Interval
from planner.costs.memory import Memory
from planner.instances.kv_links import LinkState
from planner.plans.aggregated import AggregatedPlan, MixedPool
from planner.plans.day import over_the_day
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.pools import DecodePool, PlannedPool, PrefillPool
from planner.plans.quantised import Tried
from planner.question import Question
from planner.search.papers import Beside
from planner.search.proof import Bound
from planner.search.search import Answer
from planner.serving.latency import Latency
from planner.strategy import format_strategy
from planner.survival import spare_instances

if TYPE_CHECKING:
    from planner.manifest.schema import Answer as ManifestAnswer
    from planner.manifest.schema import Scalar

PERCENTILES = (50.0, 90.0, 99.0)
MEMORY_KINDS = ("weights", "kv_cache", "activations", "buffers", "reserve", "capacity")


def as_json(asked: SearchInput, answer: Answer, search_seconds: float) -> dict[str, object]:
    """Return the object that ``plan search --json`` prints."""
    return {
        "question": question_json(asked),
        "assumptions": assumptions(asked, answer.best),
        "feasible": answer.best is not None,
        "percentile": answer.question.percentile,
        "best": plan_json(answer.best) if answer.best else None,
        "pareto": [plan_json(plan, compact=True) for plan in answer.pareto],
        "candidates_evaluated": answer.candidates_evaluated,
        "search_seconds": search_seconds,
        "bound": bound_json(answer.bound) if answer.bound else None,
        "day": day_json(over_the_day(answer.best, asked.day), levels_of(answer.best))
        if answer.best and asked.day
        else None,
        "on_trace": _on_trace_json(asked, answer.best) if answer.best and asked.on_trace else None,
        "queueing": queueing_json(answer.best, levels_of(answer.best)) if answer.best else None,
        "published": [published_json(beside) for beside in answer.published],
        "formats": [format_json(tried) for tried in answer.formats],
        "cut": {role: dict(rules) for role, rules in answer.cut.items()},
        "binding_limit": answer.binding_limit,
        "explanation": answer.explanation,
    }


def _on_trace_json(asked: SearchInput, best: Plan) -> dict[str, object]:
    from cli.on_trace import rounds_json, trace_json  # only a trace needs it

    assert asked.on_trace is not None, "only what was played has figures"
    return trace_json(asked.on_trace, levels_of(best)) | {"rounds": rounds_json(asked.rounds)}


def bound_json(bound: Bound) -> dict[str, object]:
    """Return the best value that the covered space can reach, and what was never solved under which bound."""
    return {
        "objective": bound.objective,
        "value": bound.value,
        "gap": bound.gap,
        "covers": bound.covers,
        "queues_solved": bound.queues_solved,
        "pruned": [
            {"what": each.what, "columns": each.number, "bound": each.bound, "unit": each.unit, "why": each.why}
            for each in bound.pruned
        ],
    }


def published_json(beside: Beside) -> dict[str, object]:
    """Return a published deployment and what it would do on the question's devices; ``plan`` is null where nothing."""
    published = beside.published
    return {
        "name": published.name,
        "source": published.source,
        "where": published.where,
        "published_instances": {"prefill": published.instances[0], "decode": published.instances[1]},
        "plan": plan_json(beside.plan, compact=True) if beside.plan else None,
    }


def format_json(tried: Tried) -> dict[str, object]:
    """Return what a number format came to, where there were several; null figures where it has no plan."""
    plan = tried.plan
    return {
        "weights": {"prefill": tried.formats.prefill, "decode": tried.formats.decode},
        "kv_dtype": tried.formats.kv,
        "requests_per_second": plan.requests_per_second if plan else None,
        "devices": plan.devices if plan else None,
        "binding_limit": tried.binding_limit,
        "cut": {role: dict(rules) for role, rules in tried.cut.items()},
    }


def question_json(asked: SearchInput) -> "dict[str, ManifestAnswer]":
    """Return what was asked, defaults filled in."""
    question = asked.question
    workload = question.workload
    data: dict[str, ManifestAnswer] = {
        "model": question.model.name,
        "hardware": {"prefill": question.prefill.hardware.name, "decode": question.decode.hardware.name},
        "devices": _devices(question),
        "weights": {"prefill": question.prefill.weights, "decode": question.decode.weights},
        "kv_dtype": question.kv_dtype,
        "input_tokens": {"mean": workload.input_tokens.mean, "squared_cv": workload.input_tokens.squared_cv},
        "output_tokens": {"mean": workload.output_tokens.mean, "squared_cv": workload.output_tokens.squared_cv},
        "length_covariance": workload.length_covariance,
        "prefix_reuse": workload.prefix_reuse,
        "arrival_squared_cv": workload.arrival_squared_cv,
        "rate_per_second": question.rate_per_second,
        "ttft_seconds": question.ttft_seconds,
        "tpot_seconds": question.tpot_seconds,
        "percentile": question.percentile,
        "objective": question.objective,
        "queueing": question.queueing,
        "survive": question.survive,
        "shape": question.shape,
        "mtp": list(question.drafts),
        "mtp_acceptance": question.acceptance,
        "microbatches": list(question.microbatches),
        "expert_skew": question.balance.distribution.name,
        "expert_balance": question.balance.factor if question.balance.kind == "factor" else question.balance.kind,
        "redundant_experts": "auto" if question.redundant is None else question.redundant,
        "shared_experts": f"dedicated={question.shared}" if isinstance(question.shared, int) else question.shared,
        "engine": question.engine,
    }
    for key in ("isl_distribution", "isl_histogram", "osl_histogram"):
        if key not in asked.flags.defaulted:
            data[key] = getattr(asked.flags.traffic, key)
    if asked.day:
        data["rate_profile"] = profile_json(asked.day)
    if asked.trace is not None:
        data["trace"] = {"name": asked.trace.name, "format": asked.trace.format, "requests": len(asked.trace)}
    return data


def _devices(question: Question) -> "dict[str, Scalar]":
    """Return the devices at hand, per role where each has its own."""
    if question.prefill.budget == question.decode.budget:
        return {"shared": question.prefill.devices}
    return {"prefill": question.prefill.devices, "decode": question.decode.devices}


def plan_json(plan: Plan, *, compact: bool = False) -> dict[str, object]:
    """Return a plan; ``compact`` leaves out what takes a prediction of every operator."""
    levels = levels_of(plan)
    data: dict[str, object] = {
        "pools": [pool_json(plan, pool, compact=compact) for _, pool in plan.pools()],
        "nodes": plan.nodes,
        "chips": whole(plan.chips),
        "devices": plan.devices,
        "requests_per_second": plan.requests_per_second,
        "output_tokens_per_second": plan.output_tokens_per_second,
        "tokens_per_second_per_chip": plan.output_tokens_per_second / plan.chips,
        "tokens_per_second_per_device": plan.output_tokens_per_second / plan.devices,
        "ttft_seconds": _latency(plan.ttft, levels),
        "tpot_seconds": _latency(plan.tpot, levels),
        "e2e_seconds": {
            "mean": plan.e2e_mean_seconds,
            **{f"p{level:g}": plan.e2e_at(level) for level in levels},
        },
        "kv_transfer_seconds": plan.transfer_seconds,
        **({"kv_links": _links_json(plan.links)} if isinstance(plan, DisaggregatedPlan) else {}),
        **({} if plan.ttft_error is None else {"ttft_mean_relative_standard_error": plan.ttft_error}),
        **({"caution": plan.caution} if isinstance(plan, AggregatedPlan) and plan.caution else {}),
    }
    figures = {
        "cost_per_million_tokens": plan.cost_per_million_tokens,
        "cost_per_hour": plan.cost_per_hour,
        "power_watts": plan.power_watts,
        "chip_power_watts": plan.chip_power_watts,
        "energy_joules_per_million_tokens": plan.joules_per_million_tokens,
    }
    return data | {name: value for name, value in figures.items() if value is not None}


def _links_json(links: LinkState) -> dict[str, object]:
    """Return what a prompt's KV takes on its way, alone and waiting, and how busy the links of each role are."""
    return {
        "transfer_seconds": links.transfer_seconds,
        "wait_seconds": links.wait_seconds,
        "bytes_per_prompt": links.sent_bytes,
        "utilisation": links.utilisation,
        "most_requests_per_second": links.most_per_second,
    }


def levels_of(plan: Plan) -> tuple[float, ...]:
    """Return the percentiles that are told: the usual ones and the question's."""
    percentile = plan.question.percentile
    return PERCENTILES if percentile in PERCENTILES else (*PERCENTILES, percentile)


def pool_json(plan: Plan, pool: PlannedPool, *, compact: bool) -> dict[str, object]:
    """Return a pool of a plan."""
    if isinstance(pool, PrefillPool):
        return prefill_json(plan, pool, compact=compact)
    if isinstance(pool, MixedPool):
        return mixed_json(plan, pool, compact=compact)
    assert isinstance(pool, DecodePool)
    return decode_json(plan, pool, compact=compact)


def prefill_json(plan: Plan, pool: PrefillPool, *, compact: bool) -> dict[str, object]:
    """Return the prefill pool; its tokens are prompt tokens, the reused ones included."""
    candidate = pool.candidate
    prompt = plan.question.workload.input_tokens.mean
    data: dict[str, object] = {
        **_head(plan, pool),
        "tokens_per_device": candidate.tokens_per_device,
        "prompts_per_pass": candidate.prompts,
        "passes_per_prompt": candidate.chunks,
        "microbatches": candidate.microbatches,
        "mtp": 0,
        **_experts(pool),
        **_rates(plan, pool, prompt),
        "computed_tokens_per_second_per_chip": (
            (1 - plan.question.workload.prefix_reuse) * plan.requests_per_second * prompt / pool.chips
        ),
        "iteration_seconds": candidate.pass_seconds,
    }
    if not compact:
        data |= _predicted(pool) | {"full_pass_seconds": pool.prediction.ttft_seconds}
    return data


def decode_json(plan: Plan, pool: DecodePool, *, compact: bool) -> dict[str, object]:
    """Return the decode pool; its tokens are output tokens."""
    candidate = pool.candidate
    data: dict[str, object] = {
        **_head(plan, pool),
        "batch_per_dp_rank": candidate.batch,
        "microbatches": candidate.microbatches,
        "mtp": candidate.drafts,
        **_experts(pool),
        **_rates(plan, pool, plan.question.workload.output_tokens.mean),
        "iteration_seconds": candidate.iteration_seconds,
        "limited_by": candidate.limited_by,
        "mean_running_requests": pool.state.mean_requests,
    }
    if not compact:
        data |= _predicted(pool) | {"full_batch_tpot_seconds": pool.prediction.tpot_seconds}
        if pool.prediction.expert_memory is not None:
            data["expert_memory_bytes_per_device"] = memory_json(pool.prediction.expert_memory)
    return data


def mixed_json(plan: Plan, pool: MixedPool, *, compact: bool) -> dict[str, object]:
    """Return the pool of aggregated instances; its tokens are output tokens."""
    candidate, state = pool.candidate, pool.state
    data: dict[str, object] = {
        **_head(plan, pool),
        "batch_per_dp_rank": candidate.batch,
        "max_batched_tokens": candidate.batched_tokens,
        "microbatches": candidate.microbatches,
        "mtp": candidate.drafts,
        **_experts(pool),
        **_rates(plan, pool, plan.question.workload.output_tokens.mean),
        "iteration_seconds": state.mean_step_seconds,
        "prompt_iterations_share": state.prompt_steps,
        "mean_running_requests": state.mean_requests,
    }
    if not compact:
        data |= _predicted(pool)
        if pool.prediction.ttft_interval is not None:
            data["ttft_interval"] = interval_json(pool.prediction.ttft_interval)
    return data


def _head(plan: Plan, pool: PlannedPool) -> dict[str, object]:
    return {
        "role": pool.role,
        "hardware": pool.machines.hardware.name,
        "instances": pool.instances,
        "spare_instances": spare_pool_instances(plan, pool),
        "devices_per_instance": pool.candidate.devices,
        "strategy": strategy_text(pool),
        "weights": pool.machines.weights,
    }


def spare_pool_instances(plan: Plan, pool: PlannedPool) -> int:
    """Return the instances of a pool beyond those that carry the plan's rate within the limits."""
    return spare_instances(pool.instances, pool.capacity_per_second, plan.requests_per_second)


def strategy_text(pool: PlannedPool) -> str:
    """Return a pool's strategy in the notation of ``--strategy``."""
    return format_strategy(pool.candidate.row.strategy, moe=pool.question.model.moe is not None)


def shared_text(pool: PlannedPool) -> str:
    """Return the placement of the shared expert in the notation of ``--shared-experts``."""
    return f"dedicated={pool.candidate.row.dedicated}" if pool.candidate.row.dedicated else "local"


def _experts(pool: PlannedPool) -> dict[str, object]:
    return {"redundant_experts": pool.candidate.row.redundant, "shared_experts": shared_text(pool)}


def _rates(plan: Plan, pool: PlannedPool, tokens: float) -> dict[str, object]:
    per_second = plan.requests_per_second * tokens
    return {
        "devices": pool.devices,
        "chips": whole(pool.chips),
        "utilisation": pool.utilisation,
        "capacity_requests_per_second": pool.capacity_per_second,
        "tokens_per_second_per_device": per_second / pool.devices,
        "tokens_per_second_per_chip": per_second / pool.chips,
    }


def _predicted(pool: PlannedPool) -> dict[str, object]:
    prediction = pool.prediction
    return {
        "bottleneck": prediction.bottleneck,
        "interval": interval_json(prediction.interval),
        "memory_bytes_per_device": memory_json(pool.memory),
    }


def interval_json(interval: Interval) -> dict[str, float]:
    """Return a central interval of a duration in seconds."""
    return {"low": interval.low, "high": interval.high, "level": interval.level}


def memory_json(memory: Memory) -> dict[str, float]:
    """Return bytes per device by kind, and the capacity."""
    return {kind: float(getattr(memory, kind)) for kind in MEMORY_KINDS}


def whole(count: float) -> int | float:
    """Return a count as an integer where it is one."""
    return int(count) if count == int(count) else count


def _latency(latency: Latency, levels: tuple[float, ...]) -> dict[str, float]:
    return {"mean": latency.mean, **{f"p{level:g}": latency.at(level) for level in levels}}
