"""Parts of an answer as text: engines side by side, the windows of a day, and what to buy in which month."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cli.output import Screen
from ground.units import (
    HOUR_SECONDS,
    JOULES_PER_KWH,
    MONTH_SECONDS,
    carried_rate,
    counted,
    format_count,
    format_duration,
    format_rate,
    format_si,
)
from planner.changeover.growth import Month
from planner.instances.reachable import REFERENCE
from planner.plans.day import Seen, busy_share, mean_rate, peak_rate
from planner.plans.plan import Plan
from planner.plans.quantised import needs_of
from planner.question import Question, Role
from planner.search.answer import Answer
from podplan.day import roles_of, span_text
from podplan.plan_data import own_cuts, pools_text, total_cost
from podplan.result import Cell, Row

BRIEF = "{count} × {strategy}"
WORDS = {  # what an engine does not run, by the rule of ``planner.engines.rules`` that cut it
    "attention-grid": "this TP + DP of attention",
    "dedicated-shared-experts": "ranks for shared experts alone",
    "domains": "attention and experts apart",
    "drafts": "more MTP drafts",
    "drafts-model": "MTP of this model",
    "encode-pools": "encode instances",
    "exchange-node": "exchanges over small nodes",
    "exchange-ranks": "this EP degree of exchanges",
    "expert-blocks": "TP through blocks of FP8",
    "expert-grid": "this TP + EP of experts",
    "expert-model": "this split of the model's experts",
    "experts-divide": "uneven experts per rank",
    "kv-dtype": "this KV format",
    "microbatches": "two microbatches",
    "microbatches-dp": "two microbatches without DP",
    "microbatches-model": "two microbatches of this model",
    "microbatches-mode": "two microbatches without EP",
    "microbatches-redundancy": "two microbatches with replicas",
    "model": "this model",
    "most-nodes": "instances of so many nodes",
    "pair-device": "two kinds of machines",
    "pair-instances": "more instances",
    "pair-kv-dtype": "two KV formats",
    "pair-pipeline": "pipeline stages of separate pools",
    "pair-prefixes": "prefixes in prefill apart from decode",
    "pair-tensor": "this pair of TP degrees",
    "pipeline": "pipeline stages",
    "pipeline-drafts": "MTP over pipeline stages",
    "power-of-two": "degrees that are no power of two",
    "rank-in-node": "TP over nodes",
    "redundancy-blocks": "replicas of block-scaled FP8 experts",
    "redundancy-divides": "uneven replicas",
    "redundancy-model": "replicas of this model's experts",
    "redundancy-mode": "replicas of experts with TP",
    "redundancy-per-device": "other numbers of replicas",
    "staged-attention": "SP prefill",
    "tensor-scope": "TP beyond a node",
    "weights": "this weight format",
    "whole-nodes": "parts of nodes",
}


def engine_text(question: Question) -> str:
    """Return an engine and its version as they are read: ``sglang 0.5.23``; where none runs there, that."""
    if question.engine != REFERENCE:
        return question.engine.replace("@", " ")
    needs = needs_of(question)
    if needs.engines():
        return "the reference runtime"
    machines = " and ".join(hardware.name for hardware in needs.machines)
    return f"the reference runtime (no engine of the catalogue runs {question.model.name} on {machines})"


_BESIDE = {
    "throughput": ("carries", "more", "less"),
    "chips": ("takes", "more chips", "fewer chips"),
    "cost": ("costs", "more", "less"),
    "latency": ("takes", "longer", "less time"),
}
"""What the reference runtime does beside an engine, by objective."""


def show_engines(screen: Screen, answer: Answer) -> None:
    """Write what each engine reaches and which layouts it cannot run; last what the reference engine would."""
    rows = []
    for tried in answer.engines:
        cuts: Counter[str] = sum((Counter(rules) for rules in own_cuts(tried).values()), Counter())
        cannot = dict.fromkeys(WORDS.get(rule, rule) for rule, _ in cuts.most_common())
        name = tried.engine.replace("@", " ")
        rows.append([name, *_reached(tried.plan, tried.binding_limit), ", ".join(cannot) or "nothing of these"])
    for engine, broken in needs_of(answer.question).lacking() if rows else ():
        rows.append([engine.replace("@", " "), "no plan", "", WORDS.get(broken.rule, broken.rule)])
    best, most = answer.best, answer.unrestricted
    if best is not None and most is not None:
        goal = best.question.goal
        gap = goal.value(most) / goal.value(best) - 1
        does, more, less = _BESIDE[best.question.objective]
        told = f"nothing; with its own {_own(most, best)} {does} {abs(gap):.1%} {more if gap > 0 else less}"
        told = told if abs(gap) > 5e-4 else "nothing, and is no better"
        rows.append(["the reference runtime", *_reached(most, ""), told])
    screen.table(["engine", "requests", "chips", "does not run"], rows, right=["requests", "chips"])
    screen.text(*_tie(answer))


def _tie(answer: Answer) -> list[str]:
    """Say which engines do as well as the one that was taken, by what plans are compared by."""
    own, others = answer.question, [engine.replace("@", " ") for engine in answer.tied]
    alike = {"cost": "cost and chips", "latency": "time and chips"}.get(own.objective, "chips and rate")
    told = f"With the same {alike} as {' and '.join(others)}, {engine_text(own)} is taken, the first by name."
    return [told] if others else []


def _own(most: Plan, best: Plan) -> str:
    """Say what a plan of the reference runtime has of its own, beside the engine of the best plan."""
    pools = [pool.candidate.deployment for _, pool in most.pools()]
    if not any(replace(each, engine=best.question.engine).gathers for each in pools):
        return "kernels"
    return f"kernels, and exchanges where {engine_text(best.question)} gathers all tokens at every expert rank,"


def _reached(plan: Plan | None, limit: str) -> tuple[str, str]:
    return ("no plan", limit) if plan is None else (carried_rate(plan.requests_per_second), f"{plan.chips:g}")


def day_text(seen: Sequence[Seen]) -> str:
    """Say which window the plan is sized for."""
    windows = [each.window for each in seen]
    peak = max(windows, key=lambda window: window.rate_per_second)
    mean = mean_rate(windows)
    return (
        f"Sized for the worst window, {span_text(peak)} with {format_rate(peak.rate_per_second)}; the mean over the "
        f"day is {format_rate(mean)}, {mean / peak.rate_per_second:.0%} of it."
    )


def show_day(screen: Screen, seen: Sequence[Seen], percentile: float) -> None:
    """Write rate, load and latencies of every window."""
    peak, busy = peak_rate([each.window for each in seen]), roles_of(seen)
    columns: dict[str, Callable[[Seen], str]] = {
        "window": lambda each: span_text(each.window),
        ">rate": lambda each: format_rate(each.window.rate_per_second),
        ">of peak": lambda each: f"{each.window.rate_per_second / peak:.0%}",
        **{f">{role} needed": partial(_needed, role) for role in busy},
        **{f">{role} load": partial(_busy, role) for role in busy},
    }
    for name in ("ttft", "tpot"):
        tell = partial(_latency, name)
        columns |= {f">{name.upper()}": tell, f">{name.upper()} p{percentile:g}": partial(tell, percentile=percentile)}
    screen.grid(seen, columns)
    screen.text(day_text(seen))
    largest = max((each.plan for each in seen if each.plan), key=lambda plan: plan.requests_per_second)
    share = busy_share(largest, seen)
    stop = f"to stop the others in each window leaves {share:.0%} of the device-hours" if share < 1 else "all of them"
    screen.text(f"Needed are the fewest instances of the plan that keep the limits: {stop}.")


def _needed(role: Role, seen: Seen) -> str:
    return str(seen.needed[role])


def _busy(role: Role, seen: Seen) -> str:
    return "0%" if seen.plan is None else f"{dict(seen.plan.pools())[role].utilisation:.0%}"


def _latency(name: str, seen: Seen, percentile: float | None = None) -> str:
    """Return the mean of a latency in a window, or a percentile; nothing where nothing arrives."""
    if seen.plan is None:
        return ""
    latency = getattr(seen.plan, name)
    return format_duration(latency.mean if percentile is None else latency.at(percentile))


def show_growth(screen: Screen, months: Sequence[Month]) -> None:
    """Write a row for every month: its rate, what to add, what is there then, and how it is used."""
    cost = total_cost(months)
    columns: dict[str, Callable[[Month], str]] = {
        "month": lambda each: str(each.number),
        ">rate": lambda each: format_rate(each.requests_per_second),
        "nodes to add": lambda each: _counts(each.bought, each) or "none",
        "nodes": lambda each: _counts(each.nodes, each),
        ">chips in use": lambda each: f"{each.plan.chips:g}",
        **({} if cost is None else {">USD a month": lambda each: monthly_text(each.cost_per_hour or 0.0)}),
        "pools": lambda each: pools_text(each.plan, BRIEF),
    }
    screen.grid(months, columns)
    bought = [(month.number, sum(month.bought.values())) for month in months]
    first, *later = [(number, count) for number, count in bought if count]
    told = "; ".join(f"{counted(count, 'node')} in month {number}" for number, count in later) or "nothing later"
    paid = "" if cost is None else f" All {len(months)} months cost {format_count(cost)} USD."
    start = f"Buy {counted(first[1], 'node')} for the first month; then {told}."
    each = "cheapest" if months[0].plan.question.goal.priced else "smallest"
    screen.text(f"{start}{paid} Each month has the {each} plan for its rate; nodes that are there stay.")


def monthly_text(usd_per_hour: float) -> str:
    """Return what an hourly price comes to in a month."""
    return format_count(usd_per_hour * MONTH_SECONDS / HOUR_SECONDS)


def _counts(nodes: dict[str, int], month: Month) -> str:
    """Return nodes, by machine where there are several."""
    if len(nodes) == 1:
        return "".join(str(count) for count in nodes.values() if count)
    return ", ".join(f"{count} {name}" for name, count in nodes.items() if count)


FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "chips": ("chips", "{:g}".format),
    "requests_per_second": ("requests", carried_rate),
    "tokens_per_second_per_chip": ("tokens/s per chip", format_count),
    "cost_per_million_tokens": ("USD per M tokens", format_count),
    "power_watts": ("power", lambda watts: format_si(watts, "W")),
    "energy_joules_per_million_tokens": ("kWh per M tokens", lambda joules: format_count(joules / JOULES_PER_KWH)),
    "ttft_seconds": ("TTFT", format_duration),
    "tpot_seconds": ("TPOT", format_duration),
    "ttft_mean_seconds": ("mean TTFT", format_duration),
    "tpot_mean_seconds": ("mean TPOT", format_duration),
}
"""Figures of a plan: what a column of them is called, and how one is written."""
SPARE = ("cost_per_million_tokens", "power_watts", "energy_joules_per_million_tokens")
USUAL = ("model", "hardware", *[key for key in FIGURES if "_mean_" not in key], "encode", "prefill", "decode", "mixed")
MEASURES = {  # what a plot may show: a key of a row, and the name of its axis
    "requests": ("requests_per_second", "requests/s"),
    "tokens-per-chip": ("tokens_per_second_per_chip", "output tokens/s per chip"),
    "cost": ("cost_per_million_tokens", "USD per million output tokens"),
    "chips": ("chips", "chips"),
    "power": ("power_watts", "W"),
    "ttft": ("ttft_seconds", "TTFT in s"),
    "tpot": ("tpot_seconds", "TPOT in s"),
}


def show_rows(screen: Screen, rows: Sequence[Row], extra: Sequence[str]) -> None:
    """Write a row per plan, the ``extra`` keys before the usual columns."""
    shown = [row | ({"prefill": "no plan"} if row.get("feasible") is False else {}) for row in rows]
    keys = dict.fromkeys([*extra, *USUAL])
    names = {key: key.replace("_", "-") for key in keys if key in extra or any(row.get(key) for row in shown)}
    show_keys(screen, shown, {**names, "binding_limit": "binding"})


def show_keys(screen: Screen, rows: Sequence[Row], names: Mapping[str, str], title: str | None = None) -> None:
    """Write the cells of some keys that any row has; figures have their own names."""
    known = {key: name for key, name in names.items() if any(_shown(key, row) for row in rows)}
    columns = [FIGURES[key][0] if key in FIGURES else name for key, name in known.items()]
    right, spare = ([FIGURES[key][0] for key in own if key in known] for own in (FIGURES, SPARE))
    screen.table(columns, [[_shown(key, row) for key in known] for row in rows], title=title, right=right, spare=spare)


def _shown(key: str, row: Row) -> str:
    value = row.get(key)
    if key == "power_watts" and value is None and (alone := number(row.get("chip_power_watts"))) is not None:
        return f"{format_si(alone, 'W')} chips alone"
    if value is None or isinstance(value, str | bool):
        return "" if value is None else str(value)
    return FIGURES[key][1](float(value)) if key in FIGURES else format_count(float(value))


def number(value: Cell) -> float | None:
    """Return a cell as a number for a plot."""
    return float(value) if isinstance(value, int | float) else None
