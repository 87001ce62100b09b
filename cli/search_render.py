"""An answer of the search as text: what the plan does, its pools, its latencies, why, and what it rests on."""

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from cli.day import day_table, day_text
from cli.output import table
from cli.queueing import queueing_text
from cli.search_assumptions import assumption_texts
from cli.search_flags import SearchInput
from cli.search_json import MEMORY_KINDS, shared_text, spare_pool_instances, strategy_text
from ground.units import JOULES_PER_KWH, counted, format_bytes, format_count, format_duration, format_rate
from planner.instances.kv_links import LinkState
from planner.plans.aggregated import AggregatedPlan, MixedPool
from planner.plans.day import over_the_day
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.pools import DecodePool, PlannedPool, PrefillPool
from planner.plans.quantised import Tried
from planner.plans.worked import expert_devices_lines, short_form
from planner.search.papers import Beside
from planner.search.proof import Bound
from planner.search.search import Answer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LINE_WIDTH = 118
WIDE = 125  # columns from which a pool fits into a row
RUNNERS_UP = 3
NOT_PLAYED = (
    "Latencies are of a stationary stream with the trace's moments: the trace itself has fewer requests than would "
    "load the plan, or cannot be played (a stated reuse, turns that wait for answers); plan simulate --trace plays it."
)


def render(
    console: "Console",
    asked: SearchInput,
    answer: Answer,
    best: Plan,
    search_seconds: float,
    *,
    runners: bool = True,
) -> None:
    """Write the plan on a console, with the first ``runners`` of its front."""
    _lines(console, headline(best))
    for shown in (*pool_tables(best, console.width), latency_table(best)):
        console.print()
        console.print(shown)
    console.print()
    if asked.day:
        seen = over_the_day(best, asked.day)
        console.print(day_table(seen, best.question.percentile))
        console.print()
        _lines(console, day_text(seen))
    told = [interval_text(best), f"Binding: {answer.binding_limit}. {answer.explanation}", *short_form(best)]
    if isinstance(best, AggregatedPlan) and best.caution:
        told.insert(0, f"Caution: {best.caution}.")
    if asked.on_trace is not None:
        from cli.on_trace import rounds_text, trace_text  # only a trace needs it

        told.insert(0, trace_text(asked.on_trace, best))
        if len(asked.rounds) > 1:
            told.insert(1, rounds_text(asked.rounds))
    elif asked.trace is not None:
        told.insert(0, NOT_PLAYED)
    told.append(queueing_text(best))
    told += [f"Decode: {line}." for line in expert_devices_lines(best.answering)]
    if answer.formats:
        told.append(formats_text(answer.formats))
    told.append(f"Assumed: {'; '.join(assumption_texts(asked, best))}.")
    costed = f"{answer.candidates_evaluated:,} candidates costed in {format_duration(search_seconds)}."
    told.append(f"{bound_text(answer.bound)} {costed}" if answer.bound else costed)
    told += [published_text(beside, best) for beside in answer.published]
    for text in told:
        _lines(console, text)
    others = [plan for plan in answer.pareto if plan is not best][:RUNNERS_UP]
    if others and runners:
        console.print()
        console.print(runners_table(others))


def _lines(console: "Console", text: str) -> None:
    console.print(fill(text, min(console.width, LINE_WIDTH), subsequent_indent="  "), markup=False, soft_wrap=True)


def formats_text(formats: Sequence[Tried]) -> str:
    """Say what each number format came to, the chosen one and the others alike."""
    said = []
    for each in formats:
        plan = each.plan
        outcome = f"no plan ({each.binding_limit or 'nothing fits'})"
        if plan is not None:
            outcome = f"{requests_text(plan.requests_per_second)} on {plan.devices} devices"
        said.append(f"{each.told}: {outcome}")
    return f"Formats: {'; '.join(said)}."


def published_text(beside: Beside, best: Plan) -> str:
    """Say what a published deployment would do on the same devices, beside the plan."""
    published, plan = beside.published, beside.plan
    start = f"Published: {published.name} ({published.source})"
    if plan is None:
        return f"{start} has no instances that keep the limits on these devices."
    pools = " + ".join(f"{pool.instances} × {strategy_text(pool)}" for _, pool in plan.pools())
    each = plan.output_tokens_per_second / plan.chips
    gain = best.output_tokens_per_second / best.chips / each - 1
    return (
        f"{start}: {pools} would serve {requests_text(plan.requests_per_second)} on {plan.devices} devices, "
        f"{format_count(each)} output tokens/s per chip; the plan has {gain:+.1%}."
    )


def headline(plan: Plan) -> str:
    """Say what the plan does."""
    question = plan.question
    names = {"prefill": question.prefill.hardware.name, "decode": question.decode.hardware.name}
    alike = len(set(names.values())) == 1
    on = f" on {names['prefill']}" if alike else "".join(f", {role} on {name}" for role, name in names.items())
    counts = {"node": plan.nodes, "chip": plan.chips, "device": plan.devices}
    if plan.devices == plan.chips:
        del counts["device"]
    size = ", ".join(counted(count, thing) for thing, count in counts.items())
    per = [f"{format_count(plan.output_tokens_per_second / plan.chips)} per chip"]
    if plan.devices != plan.chips:
        per.append(f"{format_count(plan.output_tokens_per_second / plan.devices)} per device")
    cost = plan.cost_per_million_tokens
    price = f", {cost:.3g} USD per million" if cost is not None else ""
    price += energy_text(plan)
    limits = f"TTFT {format_duration(question.ttft_seconds)} and TPOT {format_duration(question.tpot_seconds)}"
    return (
        f"{question.model.name}{on}: {size} serve {requests_text(plan.requests_per_second)}, "
        f"{format_count(plan.output_tokens_per_second)} output tokens/s ({', '.join(per)}{price}) "
        f"within {limits} at p{question.percentile:g}"
        f"{f', also after losing any one {question.survive}' if question.survive else ''}."
    )


def energy_text(plan: Plan) -> str:
    """Return the power of a plan's machines and the energy of a million tokens; of its chips alone where only that."""
    watts, joules = plan.power_watts, plan.joules_per_million_tokens
    if watts is not None and joules is not None:
        return f", {format_count(watts)}W, {joules / JOULES_PER_KWH:.3g} kWh per million"
    return f", {format_count(plan.chip_power_watts)}W in the chips alone" if plan.chip_power_watts is not None else ""


def requests_text(per_second: float) -> str:
    """Return a rate of requests, such as ``12.5 requests/s``."""
    count, period = format_rate(per_second).split("/")
    return f"{count} requests/{period}"


def pool_tables(plan: Plan, width: int) -> "list[Table]":
    """Return how each pool is built and what it does and holds: a row per pool, a column on a narrow console."""
    shape, work = shape_cells(plan), work_cells(plan)
    roles = [role for role, _ in plan.pools()]
    if width < WIDE:
        rows = [[name, *cells] for name, cells in (shape | work).items()]
        return [table(["pool", *roles], rows, tight=True)]
    return [
        table(["pool", *cells], list(zip(roles, *cells.values(), strict=True)), right=right, tight=True)
        for cells, right in ((shape, ()), (work, [name for name in work if name != "bound by"]))
    ]


def shape_cells(plan: Plan) -> dict[str, list[str]]:
    """Return how each pool is built, prefill before decode."""
    pools = [pool for _, pool in plan.pools()]
    cells = {
        "instances": [f"{pool.instances} × {pool.candidate.devices} {pool.machines.hardware.name}" for pool in pools],
        **({"spare": [str(spare_pool_instances(plan, pool)) for pool in pools]} if plan.question.survive else {}),
        "strategy": [strategy_text(pool) for pool in pools],
        "load": [_load(pool) for pool in pools],
        "microbatches": [str(pool.candidate.microbatches) for pool in pools],
    }
    if plan.question.model.mtp_layers:
        cells["MTP"] = ["" if pool.role == "prefill" else str(pool.drafts) for pool in pools]
    if plan.question.model.moe is not None:
        cells["experts"] = [_experts(pool) for pool in pools]
    return cells


def work_cells(plan: Plan) -> dict[str, list[str]]:
    """Return what each pool does and holds, prefill before decode; prefill's tokens are prompt tokens."""
    workload, pools = plan.question.workload, [pool for _, pool in plan.pools()]
    words = {"prefill": ("prompt", workload.input_tokens.mean)}
    output = ("output", workload.output_tokens.mean)
    told = [words.get(pool.role, output) for pool in pools]
    rates = [(word, plan.requests_per_second * mean) for word, mean in told]
    cells = {
        "tokens/s per chip": [
            f"{format_count(rate / pool.chips)} {word}" for (word, rate), pool in zip(rates, pools, strict=True)
        ]
    }
    if any(pool.machines.devices_per_chip > 1 for pool in pools):
        each = zip(rates, pools, strict=True)
        cells["per device"] = [format_count(rate / pool.devices) for (_, rate), pool in each]
    cells["busy"] = [f"{pool.utilisation:.0%}" for pool in pools]
    cells["bound by"] = [pool.prediction.bottleneck for pool in pools]
    for kind in MEMORY_KINDS:
        name = kind.replace("kv_cache", "KV cache")
        cells[name] = [format_bytes(float(getattr(pool.memory, kind))) for pool in pools]
    return cells


def _load(pool: PlannedPool) -> str:
    if isinstance(pool, PrefillPool):
        return f"{pool.candidate.tokens_per_device} tokens/device"
    if isinstance(pool, MixedPool):
        return f"{pool.candidate.batch} requests, {pool.candidate.batched_tokens} tokens a step/DP rank"
    assert isinstance(pool, DecodePool)
    return f"{pool.candidate.batch} requests/DP rank"


def _experts(pool: PlannedPool) -> str:
    moe = pool.question.model.moe
    shared = f", shared {shared_text(pool)}" if moe and moe.shared_experts else ""
    return f"{pool.candidate.row.redundant} redundant{shared}"


def latency_table(plan: Plan) -> "Table":
    """Return TTFT (waiting included), TPOT and end-to-end time against their limits."""
    question, percentile = plan.question, plan.question.percentile
    levels = sorted({50.0, 99.0, percentile})
    e2e = [plan.e2e_mean_seconds, *(plan.e2e_at(level) for level in levels)]
    ttft = [plan.ttft.mean, *(plan.ttft.at(level) for level in levels)]
    tpot = [plan.tpot.mean, *(plan.tpot.at(level) for level in levels)]
    rows = [
        ["TTFT, with waiting", *map(format_duration, ttft), _limit(question.ttft_seconds, percentile)],
        *([_transfer_row(plan.links, len(levels))] if isinstance(plan, DisaggregatedPlan) else []),
        ["TPOT", *map(format_duration, tpot), _limit(question.tpot_seconds, percentile)],
        ["end to end", *map(format_duration, e2e), ""],
    ]
    names = [f"p{level:g}" for level in levels]
    return table(["latency", "mean", *names, "limit"], rows, right=["mean", *names], tight=True)


def _transfer_row(links: LinkState, levels: int) -> list[str]:
    """Return the time that a prompt's KV takes to decode, its wait for links included."""
    busy = max(links.utilisation.values())
    told = f"{format_duration(links.wait_seconds)} of it waiting, links {busy:.1%} busy"
    return ["KV transfer", format_duration(links.seconds), *[""] * levels, told]


def _limit(seconds: float, percentile: float) -> str:
    return f"{format_duration(seconds)} at p{percentile:g}"


def interval_text(plan: Plan) -> str:
    """Say how far off the predicted times may be."""
    what = {"prefill": "a full prefill pass", "decode": "TPOT at the full batch", "mixed": "TPOT at the plan's load"}
    known = [(what[pool.role], pool.prediction.interval) for _, pool in reversed(plan.pools())]
    told = ", ".join(
        f"{name} {format_duration(own.low)} to {format_duration(own.high)}" if own.high else f"no {name}"
        for name, own in known
    )
    drawn_of = "passes" if isinstance(plan, DisaggregatedPlan) else "steps"
    drawn = f" {sample_text(plan.ttft_error, drawn_of)}" if plan.ttft_error else ""
    return f"Service times, {known[0][1].level:.0%} interval: {told}.{drawn}"


def sample_text(error: float, what: str = "passes") -> str:
    """Say that waiting is known from a sample, of passes or of steps, and how well."""
    return f"Waiting is read off a sample of {what}: mean TTFT ± {error:.1%} (standard error)."


def bound_text(bound: Bound) -> str:
    """Say how good a plan could be at best, and over what that is proven."""
    shown = {
        "throughput": requests_text(bound.value),
        "chips": f"{bound.value:g} devices",
        "cost": f"{bound.value:.4g} USD/h",
        "latency": f"{format_duration(bound.value)} on average",
    }
    return f"Bound: {shown[bound.objective]}, gap {bound.gap:.2%}, over {bound.covers}."


def runners_table(plans: list[Plan]) -> "Table":
    """Return plans of the Pareto front that trade rate, chips, TTFT and TPOT otherwise."""
    rows = [
        [
            format_rate(plan.requests_per_second),
            f"{plan.chips:g}",
            format_duration(plan.ttft.mean),
            format_duration(plan.tpot.mean),
            "" if plan.cost_per_million_tokens is None else f"{plan.cost_per_million_tokens:.3g}",
            "" if plan.power_watts is None else f"{format_count(plan.power_watts)}W",
            " + ".join(f"{pool.instances} × {strategy_text(pool)}" for _, pool in plan.pools()),
            _load(plan.answering),
        ]
        for plan in plans
    ]
    right = ["requests", "chips", "mean TTFT", "mean TPOT", "USD per M", "power"]
    columns = [*right, "pools", "load"]
    return table(columns, rows, title="Runners-up", right=right, tight=True)
