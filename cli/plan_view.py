"""An answer of the search as text: what the plan does, its pools, its latencies, why, and what it rests on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cli.output import Screen, short_duration
from cli.plan_parts import BRIEF, SPARE, engine_text, monthly_text, show_day, show_engines, show_growth, show_keys
from ground.units import (
    JOULES_PER_KWH,
    carried_rate,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_si,
)
from planner.checks.jobs import Job, confidence_in_time, job_seconds, seconds_with
from planner.instances.kv_links import LinkState
from planner.plans.aggregated import AggregatedPlan, PlannedAggregated
from planner.plans.day import over_the_day
from planner.plans.papers import Beside
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.pools import PlannedDecode, PlannedPool, PlannedPrefill
from planner.plans.quantised import Tried
from planner.plans.servers import spare_instances
from planner.plans.worked import expert_devices_lines, short_form
from planner.question import Question, Queueing
from planner.search.answer import Answer
from planner.serving.capacity import LEVEL
from planner.serving.played import Played
from podplan.assumptions import assumptions
from podplan.job import job_json
from podplan.machines import figure_texts
from podplan.options import flag_name
from podplan.plan_data import (
    POOL,
    bounded_text,
    limit_text,
    loading_json,
    memory_json,
    other_model,
    plan_row,
    pools_text,
    shared_text,
    strategy_text,
)
from podplan.planning import PlanResult
from podplan.question import Asked

if TYPE_CHECKING:
    from planner.checks.margins import Sureness
    from planner.checks.on_trace import OnTrace

RUNNERS_UP = 3
NOT_PLAYED = (
    "Latencies are of a stationary stream with the trace's moments: the trace itself has fewer requests than would "
    "load the plan, or cannot be played (a stated reuse, turns that wait for answers); plan simulate --trace plays it."
)
QUEUEING: dict[Queueing, str] = {"bulk": "bulk service", "mixserve": "MixServe's M/M/1 (Eq. 7, 9 to 11)"}
FRONT = dict.fromkeys(
    ("requests_per_second", "chips", "ttft_mean_seconds", "tpot_mean_seconds", "tokens_per_second_per_chip", *SPARE), ""
) | {"pools": "pools", "batch": "batch"}


def show_plan(screen: Screen, found: PlanResult, *, runners: bool = True, verbose: bool = False) -> None:
    """Write an answer that has a plan, with the first ``runners`` of its front; ``verbose`` with what it rests on."""
    asked, answer, best = found.asked, found.answer, found.best
    assert best is not None, "only a plan is shown"
    show_first(screen, answer, found.sureness, asked.job)
    if found.months:
        show_growth(screen, found.months)
        screen.lines("")
    show_pools(screen, best)
    if asked.job is None:
        _show_latencies(screen, best)
    if answer.engines:
        show_engines(screen, answer)
    if asked.day:
        show_day(screen, over_the_day(best, asked.day), best.question.percentile)
    if asked.trace is not None:
        screen.text(NOT_PLAYED if found.on_trace is None else trace_text(found.on_trace, best))
    screen.text(f"Why: {answer.explanation}", *(short_form(best) if verbose else ()))
    if verbose:
        screen.text(queueing_text(best), *(f"Decode: {line}." for line in expert_devices_lines(best.answering)))
    if answer.formats:
        screen.text(formats_text(answer.formats))
    screen.text(
        f"Assumed: {'; '.join(assumption_texts(asked, best))}.", proof_text(answer, found.seconds, verbose=verbose)
    )
    screen.text(*(published_text(beside, best) for beside in answer.published))
    others = [plan for plan in answer.pareto if plan is not best][:RUNNERS_UP]
    if others and runners:
        screen.lines("")
        show_front(screen, "Runners-up", others)


def show_first(screen: Screen, answer: Answer, sure: "Sureness | None", job: Job | None = None) -> None:
    """Write the five lines that matter: what to deploy, on what, what it does, how sure that is, and what limits it."""
    plan = answer.best
    assert plan is not None, "only a plan is shown"
    question = plan.question
    names = dict.fromkeys(pool.machines.hardware.name for _, pool in plan.pools())
    counts = {"node": plan.nodes, "chip": plan.chips, "device": plan.devices}
    if plan.devices == plan.chips:
        del counts["device"]
    size = ", ".join(counted(count, thing) for thing, count in counts.items())
    tpot = f" and TPOT {format_duration(question.tpot_seconds)}" if question.workload.decodes else ""
    limits = f"TTFT {format_duration(question.ttft_seconds)}{tpot}"
    does = [
        f"{requests_text(plan.requests_per_second)} within {limits} at p{question.percentile:g}"
        if job is None
        else job_text(plan, job),
        f"{format_count(plan.output_tokens_per_second)} output tokens/s, "
        f"{format_count(plan.output_tokens_per_second / plan.chips)} per chip",
        *_beside(plan),
        *_per_million(plan),
    ]
    survives = f", also after losing any one {question.survive}" if question.survive else ""
    screen.pairs(
        ("Deploy", f"{question.model.name} with {engine_text(question)}, {pools_text(plan, POOL, ' and ')}"),
        ("On", f"{' and '.join(names)}: {size}{''.join(f', {each}' for each in _per_hour(plan))}"),
        ("Does", f"{'; '.join(does)}{survives}"),
        ("Sure", sure_text(plan, sure, job)),
        ("Limits", limit_text(plan, job, answer.bound)),
    )
    screen.lines("")


def _beside(plan: Plan) -> list[str]:
    """Say what offline requests are answered beside the others."""
    rate, tokens = plan.offline_per_second, plan.offline_output_tokens_per_second
    return [f"beside them {format_rate(rate)} offline, {format_count(tokens)} output tokens/s"] if rate else []


def job_text(plan: Plan, job: Job) -> str:
    """Say how long a job takes, of which time, at which rate, and what that costs."""
    seconds, cost = job_seconds(plan, job), job_json(plan, job)["cost_usd"]
    limit = "" if job.seconds is None else f" of {format_duration(job.seconds)}"
    paid = "" if cost is None else f", for {format_count(cost)} USD"
    rate = requests_text(min(pool.capacity_per_second for _, pool in plan.pools()))
    return (
        f"{format_count(job.requests)} requests in {format_duration(seconds)}{limit}, {rate} while pools are full{paid}"
    )


def sure_text(plan: Plan, sure: "Sureness | None", job: Job | None = None) -> str:
    """Say with which confidence a plan keeps its limits, what it carries with more, and how far off times may be.

    For a job: with which confidence it ends in its time, and the time in which it ends with more.
    """
    if sure is None:
        return interval_text(plan)
    if job is not None:
        in_time = confidence_in_time(plan, job)
        kept = "" if in_time is None else f"in time with confidence {bounded_text(in_time)}, "
        longest = format_duration(seconds_with(plan, job, sure.level))
        return f"the job ends {kept}in {longest} with confidence {sure.level:g}. {interval_text(plan)}"
    held = "less than told apart" if sure.held is None else bounded_text(sure.held)
    more = requests_text(sure.rate_per_second) if sure.rate_per_second else "no rate"
    beside = f"{more} with confidence {sure.level:g}"
    loss = f", also after losing any one {plan.question.survive}," if plan.question.survive else ""
    return f"limits hold{loss} with confidence {held}; {beside}. {interval_text(plan)}"


def _per_hour(plan: Plan) -> list[str]:
    """Return what the machines draw and cost, where they state it."""
    watts, alone, price = plan.power_watts, plan.chip_power_watts, plan.cost_per_hour
    told = [] if watts is None else [format_si(watts, "W")]
    if watts is None and alone is not None:
        told = [f"{format_si(alone, 'W')} in the chips alone"]
    if price is not None and plan.paid_chips > plan.chips:
        fewer = " (--objective cost takes the fewest)" if plan.spread and not plan.question.goal.priced else ""
        told.append(f"{plan.paid_chips:g} chips paid in whole nodes{fewer}")
    return [*told, *([] if price is None else [f"{format_count(price)} USD an hour ({monthly_text(price)} a month)"])]


def _per_million(plan: Plan) -> list[str]:
    """Return what a million output tokens cost and take, where the machines state it."""
    cost, joules = plan.cost_per_million_tokens, plan.joules_per_million_tokens
    told = [] if cost is None else [f"{format_count(cost)} USD"]
    told += [] if joules is None else [f"{format_count(joules / JOULES_PER_KWH)} kWh"]
    return [f"{' and '.join(told)} per million"] if told else []


def formats_text(formats: Sequence[Tried]) -> str:
    """Say what each number format came to, the chosen one and the others alike."""
    said = [
        f"{each.told}: {requests_text(each.plan.requests_per_second)} on {each.plan.devices} devices"
        if each.plan
        else f"{each.told}: no plan ({each.binding_limit or 'nothing fits'})"
        for each in formats
    ]
    return f"Formats: {'; '.join(said)}."


def published_text(beside: Beside, best: Plan) -> str:
    """Say what a published deployment would do on the same devices, beside the plan."""
    published, plan = beside.published, beside.plan
    start = f"Published: {published.name} ({published.source})"
    if plan is None:
        return f"{start} has no instances that keep the limits on these devices."
    each = plan.output_tokens_per_second / plan.chips
    gain = best.output_tokens_per_second / best.chips / each - 1
    return (
        f"{start}: {pools_text(plan, BRIEF)} would serve {requests_text(plan.requests_per_second)} on {plan.devices} "
        f"devices, {format_count(each)} output tokens/s per chip; the plan has {gain:+.1%}."
    )


def requests_text(per_second: float) -> str:
    """Return a rate of requests, such as ``12.5 requests/s``."""
    count, period = carried_rate(per_second).split("/")
    return f"{count} request{'s' * (count != '1')}/{period}"


def show_pools(screen: Screen, plan: Plan) -> None:
    """Write how each pool is built, and what it does and holds."""
    roles = [role for role, _ in plan.pools()]
    work = work_cells(plan)
    for cells, right in ((shape_cells(plan), ()), (work, [name for name in work if name != "bound by"])):
        screen.table(["pool", *cells], list(zip(roles, *cells.values(), strict=True)), right=right)


def shape_cells(plan: Plan) -> dict[str, list[str]]:
    """Return how each pool is built, prefill before decode."""
    pools = [pool for _, pool in plan.pools()]
    cells = {
        "instances": [f"{pool.instances} × {pool.candidate.devices} {pool.machines.hardware.name}" for pool in pools],
        **({"spare": [str(spare_instances(plan, pool)) for pool in pools]} if plan.question.survive else {}),
        "strategy": [strategy_text(pool) for pool in pools],
        "batch": [_load(pool) for pool in pools],
        "microbatches": [str(pool.candidate.microbatches) for pool in pools],
        "loads in": [format_duration(each["pool_warm"] or each["alone"] or 0.0) for each in map(loading_json, pools)],
    }
    if plan.question.model.mtp_layers:
        cells["MTP"] = ["" if pool.role in ("encode", "prefill") else str(pool.drafts) for pool in pools]
    if plan.question.model.moe is not None:
        cells["experts"] = [_experts(pool) for pool in pools]
    return cells


def work_cells(plan: Plan) -> dict[str, list[str]]:
    """Return what each pool does and holds, prefill before decode; prefill's tokens are prompt tokens."""
    workload, pools = plan.question.workload, [pool for _, pool in plan.pools()]
    pictures = workload.pictures.tokens if workload.pictures else 0
    words = {"prefill": ("prompt", workload.input_tokens.mean), "encode": ("picture", float(pictures))}
    told = [(pool, *words.get(pool.role, ("output", workload.output_tokens.mean))) for pool in pools]
    rate = plan.requests_per_second
    cells = {"tokens/s per chip": [f"{format_count(rate * mean / pool.chips)} {word}" for pool, word, mean in told]}
    if any(pool.machines.devices_per_chip > 1 for pool in pools):
        cells["per device"] = [format_count(rate * mean / pool.devices) for pool, _, mean in told]
    cells["load"] = [f"{pool.utilisation:.0%}" for pool in pools]
    cells["bound by"] = [pool.prediction.bottleneck for pool in pools]
    held = [memory_json(pool.memory) for pool in pools]
    return cells | {kind.replace("kv_cache", "KV cache"): [format_bytes(own[kind]) for own in held] for kind in held[0]}


def _load(pool: PlannedPool) -> str:
    if isinstance(pool, PlannedPrefill):
        return f"{pool.candidate.tokens_per_device} tokens/device"
    if isinstance(pool, PlannedAggregated):
        return f"{pool.candidate.batch} requests, {pool.candidate.batched_tokens} tokens a step/DP rank"
    assert isinstance(pool, PlannedDecode)
    return f"{pool.candidate.batch} requests/DP rank"


def _experts(pool: PlannedPool) -> str:
    moe = pool.question.model.moe
    shared = f", shared {shared_text(pool)}" if moe and moe.shared_experts else ""
    return f"{pool.candidate.row.redundant} redundant{shared}"


def _show_latencies(screen: Screen, plan: Plan) -> None:
    """Write TTFT (waiting included), TPOT and end-to-end time against their limits."""
    question, percentile = plan.question, plan.question.percentile
    levels = sorted({50.0, 99.0, percentile})
    e2e = map(short_duration, [plan.e2e_mean_seconds, *map(plan.e2e.at, levels)])
    ttft, tpot = (map(short_duration, [each.mean, *map(each.at, levels)]) for each in (plan.ttft, plan.tpot))
    rows = [["TTFT, with waiting", *ttft, f"{format_duration(question.ttft_seconds)} at p{percentile:g}"]]
    if question.workload.decodes:
        rows += [_transfer_row(plan.links, len(levels))] if isinstance(plan, DisaggregatedPlan) else []
        rows += [["TPOT", *tpot, f"{format_duration(question.tpot_seconds)} at p{percentile:g}"]]
    rows += [["end to end", *e2e, ""]]
    names = [f"p{level:g}" for level in levels]
    screen.table(["latency", "mean", *names, "limit"], rows, right=["mean", *names])


def _transfer_row(links: LinkState, levels: int) -> list[str]:
    """Return the time that a prompt's KV takes to decode, its wait for links included."""
    busy = max(links.utilisation.values())
    told = f"{short_duration(links.wait_seconds)} of it waiting, links {busy:.1%} busy"
    return ["KV transfer", short_duration(links.seconds), *[""] * levels, told]


def interval_text(plan: Plan) -> str:
    """Say how far off the predicted times may be."""
    step = "TPOT" if plan.question.workload.output_tokens.mean > 1 else "a step"
    what = {
        "encode": "a full encode pass",
        "prefill": "a full prefill pass",
        "decode": f"{step} at the plan's load",
        "mixed": f"{step} at the plan's load",
    }
    known = [(what[pool.role], pool.prediction.interval, _of_load(plan, pool)) for _, pool in reversed(plan.pools())]
    told = ", ".join(
        f"{name} {format_duration(x * own.low)} to {format_duration(x * own.high)}" for name, own, x in known
    )
    played = f" {played_text(plan.played, plan.question)}" if plan.played else ""
    return f"{told[:1].upper()}{told[1:]} ({known[0][1].level:.0%} interval of service times).{played}"


def _of_load(plan: Plan, pool: PlannedPool) -> float:
    """Return the mean TPOT of a decode pool over that of its full batch, for which the interval is; 1 of others."""
    waits = pool.role == "decode" and plan.question.workload.output_tokens.mean > 1
    return plan.tpot.mean / pool.prediction.about_seconds if waits else 1.0


def played_text(played: Played, question: Question) -> str:
    """Say over how many requests TTFT was played, and the interval that leaves."""
    ttft, rate = played.ttft_seconds, played.requests_per_second
    if question.workload.trace is not None:  # whose requests are all there are
        return f"Played on the {played.requests:,} requests of the trace."
    took = " to ".join(dict.fromkeys(map(format_duration, ttft)))
    carried = " to ".join(dict.fromkeys(map(carried_rate, rate))) + ", spares included" * bool(question.survive)
    return (
        f"Played over {played.requests:,} requests: TTFT at p{question.percentile:g} {took}; the pools carry {carried} "
        f"({LEVEL:.0%} interval)."
    )


def proof_text(answer: Answer, seconds: float, *, verbose: bool, growth: str = "") -> str:
    """Say how good a plan could be at best; ``verbose`` over what that is proven, and how long the search took.

    Args: ``growth`` is the unit of a fleet's rate.
    """
    bound, costed = answer.bound, f"{answer.candidates_evaluated:,} candidates costed"
    if bound is None:
        return f"{costed}."
    unit = growth if growth and bound.goal.maximised else bound.goal.unit
    value = counted(float(f"{bound.value:.4g}"), "chip") if unit == "chips" else f"{bound.value:.4g} {unit}"
    told = f"Bound: {value}, gap {bound.gap:.2%}"
    if bound.ended:
        told += ", as the search was long and ended early"
    if verbose:
        return f"{told}, over {bound.covers}. {costed} in {format_duration(seconds)}."
    return f"{told}; {costed} (-v tells over what it is proven)."


def show_front(screen: Screen, title: str, plans: Sequence[Plan]) -> None:
    """Write plans that trade rate, chips, TTFT and TPOT otherwise, most carried first."""
    rows = [{**plan_row(plan), "pools": pools_text(plan, BRIEF), "batch": _load(plan.answering)} for plan in plans]
    show_keys(screen, rows, FRONT, title)


def trace_text(found: "OnTrace", plan: Plan) -> str:
    """Say what the trace's own requests meet, and up to which rate the limits hold on them."""
    question, recorded = plan.question, found.recorded
    level = question.percentile
    known = recorded.tpot_seconds[~np.isnan(recorded.tpot_seconds)]
    tails = [f"TTFT {format_duration(float(np.percentile(recorded.ttft_seconds, level)))}"]
    if known.size:
        tails.append(f"TPOT {format_duration(float(np.percentile(known, level)))}")
    verdict = "the limits hold" if found.keeps else "the limits are missed"
    if found.most_per_second:
        verdict += f", on this trace they hold up to about {format_rate(found.most_per_second)}"
    speed = "as it came" if 0.995 < found.factor < 1.005 else f"{found.factor:.3g} times as fast as it came"
    return (
        f"The trace itself, played {speed}: mean TTFT "
        f"{format_duration(float(recorded.ttft_seconds.mean()))}, p{level:g} {' and '.join(tails)}, "
        f"{found.attainment:.1%} of requests within the limits; {verdict}."
    )


def queueing_text(plan: Plan) -> str:
    """Say what the other model makes of the plan's pools at its rate."""
    if isinstance(plan, AggregatedPlan):
        return "Queueing: played step by step; MixServe's M/M/1 is of instances of either role."
    percentile = plan.question.percentile
    other, found = other_model(plan)
    start = f"Queueing: {QUEUEING[plan.question.queueing]}; {QUEUEING[other]}"
    if found is None:
        return f"{start} finds the same pools overloaded."
    ttft, tail = format_duration(found.ttft.mean), format_duration(found.ttft.at(percentile))
    return f"{start}, same pools: TTFT {ttft}, p{percentile:g} {tail}, TPOT {format_duration(found.tpot.mean)}."


def assumption_texts(asked: Asked, best: Plan | None) -> list[str]:
    """Return the assumptions in words, each with the flag that changes it."""
    flags = asked.flags.defaulted
    texts = []
    auto = []
    short = figure_texts((part.hardware for part in (asked.question.prefill, asked.question.decode)), notes=False)
    for name, value in assumptions(asked, best).items():
        if value == "auto":
            auto.append(flag_name(name))
        elif name == "expert_load_distribution":
            texts.append(f"expert loads {asked.question.balance.distribution.described}")
        else:
            texts.append(
                f"{flag_name(name) if name in flags else name.replace('_', ' ')} {_shown(name, short.get(name, value))}"
            )
    if auto:
        texts.append(f"{', '.join(auto)} auto")
    return texts


def _shown(name: str, value: object) -> str:
    if name in ("ttft", "tpot"):
        return format_duration(float(str(value))).replace(" ", "")
    if isinstance(value, dict):
        return ", ".join(f"{key} {held}" for key, held in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
