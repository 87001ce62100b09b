"""Answers as rows: one plan a row, with SI units in the names, for tables, CSV and plots."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO

from cli.search_flags import SearchInput
from cli.search_json import strategy_text
from ground.units import JOULES_PER_KWH, format_count, format_duration, format_rate
from planner.plans.plan import Plan
from planner.search.search import Answer

Cell = str | float | int | bool | None
Row = dict[str, Cell]

SHOWN = {
    "model": "model",
    "hardware": "hardware",
    "chips": "chips",
    "requests_per_second": "requests",
    "tokens_per_second_per_chip": "tokens/s per chip",
    "cost_per_million_tokens": "USD per M tokens",
    "power_watts": "power",
    "energy_joules_per_million_tokens": "kWh per M tokens",
    "ttft_seconds": "TTFT",
    "tpot_seconds": "TPOT",
    "prefill": "prefill",
    "decode": "decode",
    "mixed": "mixed",
    "binding_limit": "binding",
}
_RATES = ("requests_per_second",)
_TIMES = ("ttft_seconds", "tpot_seconds")


def answer_row(asked: SearchInput, answer: Answer) -> Row:
    """Return the best plan of an answer as a row; without a plan only what was asked and what binds."""
    row = _asked_row(asked, answer)
    return row | plan_row(answer.best) if answer.best is not None else row


def _asked_row(asked: SearchInput, answer: Answer) -> Row:
    """Return what was asked and what binds."""
    question = asked.question
    names = {machines.hardware.name: None for machines in (question.prefill, question.decode)}
    return {
        "model": question.model.name,
        "hardware": " + ".join(names),
        "feasible": answer.best is not None,
        "binding_limit": answer.binding_limit,
        "percentile": question.percentile,
    }


def front_rows(asked: SearchInput, answer: Answer) -> list[Row]:
    """Return the Pareto front of an answer, one plan a row, the best plan first."""
    if answer.best is None:
        return []
    head = _asked_row(asked, answer)  # its plan's pools are not those of the others
    others = [plan for plan in answer.pareto if plan is not answer.best]
    rows = [head | plan_row(plan) | {"binding_limit": plan.binding_limit} for plan in others]
    return [answer_row(asked, answer), *rows]


def plan_row(plan: Plan) -> Row:
    """Return what a plan is and does; latencies at the asked percentile beside their means."""
    percentile = plan.question.percentile
    return {
        "nodes": plan.nodes,
        "chips": plan.chips,
        "devices": plan.devices,
        "requests_per_second": plan.requests_per_second,
        "output_tokens_per_second": plan.output_tokens_per_second,
        "tokens_per_second_per_chip": plan.output_tokens_per_second / plan.chips,
        "cost_per_million_tokens": plan.cost_per_million_tokens,
        "power_watts": plan.power_watts,
        "chip_power_watts": plan.chip_power_watts,
        "energy_joules_per_million_tokens": plan.joules_per_million_tokens,
        "ttft_mean_seconds": plan.ttft.mean,
        "ttft_seconds": plan.ttft.at(percentile),
        "tpot_mean_seconds": plan.tpot.mean,
        "tpot_seconds": plan.tpot.at(percentile),
        "e2e_mean_seconds": plan.e2e_mean_seconds,
        **{role: f"{pool.instances} × {pool.candidate.devices}: {strategy_text(pool)}" for role, pool in plan.pools()},
    }


def columns_of(rows: Sequence[Mapping[str, Cell]]) -> list[str]:
    """Return the keys of all rows, in the order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def as_csv(rows: Sequence[Mapping[str, Cell]]) -> str:
    """Return rows as CSV with a header; what a row does not have is empty."""
    text = StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    return text.getvalue()


def shown_cells(row: Mapping[str, Cell], keys: Sequence[str]) -> list[str]:
    """Return the cells of a table."""
    return [_shown(key, row.get(key)) for key in keys]


def power_text(watts: float | None, chip_watts: float | None) -> str:
    """Return the power of machines, or of their chips alone where only that is stated."""
    if watts is not None:
        return f"{format_count(watts)}W"
    return "" if chip_watts is None else f"{format_count(chip_watts)}W chips alone"


def _shown(key: str, value: Cell) -> str:
    if value is None or isinstance(value, str | bool):
        return "" if value is None else str(value)
    if key in _TIMES:
        return format_duration(float(value))
    if key in _RATES:
        return format_rate(float(value))
    if key == "cost_per_million_tokens":
        return f"{value:.3g}"
    if key == "energy_joules_per_million_tokens":
        return f"{float(value) / JOULES_PER_KWH:.3g}"
    return format_count(float(value))
