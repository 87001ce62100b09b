"""Plans as rows of one table, and what their cost and power rest on."""

from collections.abc import Callable, Mapping, Sequence

from cli.output import Screen
from ground.units import JOULES_PER_KWH, carried_rate, format_count, format_duration, format_si
from podplan.result import Cell, Row

FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "chips": ("chips", "{:g}".format),
    "requests_per_second": ("requests", carried_rate),
    "tokens_per_second_per_chip": ("tokens/s per chip", format_count),
    "cost_per_million_tokens": ("USD per M tokens", "{:.3g}".format),
    "power_watts": ("power", lambda watts: format_si(watts, "W")),
    "energy_joules_per_million_tokens": ("kWh per M tokens", lambda joules: f"{joules / JOULES_PER_KWH:.3g}"),
    "ttft_seconds": ("TTFT", format_duration),
    "tpot_seconds": ("TPOT", format_duration),
    "ttft_mean_seconds": ("mean TTFT", format_duration),
    "tpot_mean_seconds": ("mean TPOT", format_duration),
}
"""Figures of a plan: what a column of them is called, and how one is written."""
SPARE = ("cost_per_million_tokens", "power_watts", "energy_joules_per_million_tokens")
USUAL = ("model", "hardware", *[key for key in FIGURES if "_mean_" not in key], "encode", "prefill", "decode", "mixed")
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
