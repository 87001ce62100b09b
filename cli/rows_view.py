"""Plans as rows of one table, and what their cost and power rest on."""

from collections.abc import Iterable, Mapping, Sequence

from cli.output import Screen
from cli.plan_view import power_text
from ground.units import JOULES_PER_KWH, format_count, format_duration, format_rate
from planner.question import Question
from podplan.machines import figure_texts
from podplan.result import Cell, Row

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
RIGHT = ("chips", "requests", "tokens/s per chip", "USD per M tokens", "power", "kWh per M tokens", "TTFT", "TPOT")
SPARE = ("USD per M tokens", "power", "kWh per M tokens")
MEASURES = {
    "requests": ("requests_per_second", "requests/s"),
    "tokens-per-chip": ("tokens_per_second_per_chip", "output tokens/s per chip"),
    "cost": ("cost_per_million_tokens", "USD per million output tokens"),
    "chips": ("chips", "chips"),
    "power": ("power_watts", "W"),
    "ttft": ("ttft_seconds", "TTFT in s"),
    "tpot": ("tpot_seconds", "TPOT in s"),
}
"""What a plot may show: a key of a row, and the name of its axis."""


def show_rows(screen: Screen, rows: Sequence[Row], extra: Sequence[str]) -> None:
    """Write a row per plan, the ``extra`` keys before the usual columns."""
    rows = [_with_power(row) | ({"prefill": "no plan"} if row.get("feasible") is False else {}) for row in rows]
    keys = [*extra, *(key for key in SHOWN if key not in extra and any(row.get(key) is not None for row in rows))]
    show_keys(screen, rows, {key: SHOWN.get(key, key.replace("_", "-")) for key in keys})


def show_keys(screen: Screen, rows: Sequence[Row], names: Mapping[str, str]) -> None:
    """Write the cells of some keys, under their names."""
    shown = [_with_power(row) for row in rows]
    cells = [[_shown(key, row.get(key)) for key in names] for row in shown]
    own = tuple(names.values())
    screen.table(own, cells, right=[name for name in own if name in RIGHT], spare=[n for n in SPARE if n in own])


def number(value: Cell) -> float | None:
    """Return a cell as a number for a plot."""
    return float(value) if isinstance(value, int | float) else None


def _with_power(row: Row) -> Row:
    """Return a row in which power says of what it is."""
    if isinstance(row.get("power_watts"), str):
        return row
    return {
        **row,
        "power_watts": power_text(number(row.get("power_watts")), number(row.get("chip_power_watts"))) or None,
    }


def _shown(key: str, value: Cell) -> str:
    if value is None or isinstance(value, str | bool):
        return "" if value is None else str(value)
    if key in ("ttft_seconds", "tpot_seconds"):
        return format_duration(float(value))
    if key == "requests_per_second":
        return format_rate(float(value))
    if key == "cost_per_million_tokens":
        return f"{value:.3g}"
    if key == "energy_joules_per_million_tokens":
        return f"{float(value) / JOULES_PER_KWH:.3g}"
    return format_count(float(value))


def basis_lines(questions: Iterable[Question]) -> list[str]:
    """Return what cost and power of some questions' machines rest on, a line each."""
    machines = [part.hardware for question in questions for part in (question.prefill, question.decode)]
    return [f"{name.capitalize()}: {told}." for name, told in figure_texts(machines).items()]
