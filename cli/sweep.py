"""`plan sweep`: one or two flags over ranges, a plan at every point."""

import re
from itertools import product
from typing import Annotated

import typer

from cli.answer_output import read_outputs, write_answers
from cli.answer_rows import Row, answer_row
from cli.exit_codes import ExitCode
from cli.flags import flag_name
from cli.options import Json, Text, option, switch
from cli.output import check_force
from cli.parallel import spread
from cli.plots import Curve, Plot
from cli.progress import bar
from cli.question_options import OPTIONS, asks_a_question, search_flags
from cli.search_flags import SearchInput, read_search
from ground.errors import BadInput
from ground.names import suggest
from ground.units import parse_count
from planner.ranges import spaced
from planner.search.search import search

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MOST_POINTS = 1000
SWEPT = tuple(name for name in OPTIONS if name not in ("trace", "format", "engine"))
MEASURES = {
    "requests": ("requests_per_second", "requests/s"),
    "tokens-per-chip": ("tokens_per_second_per_chip", "output tokens/s per chip"),
    "chips": ("chips", "chips"),
    "cost": ("cost_per_million_tokens", "USD per million output tokens"),
    "ttft": ("ttft_seconds", "TTFT in s"),
    "tpot": ("tpot_seconds", "TPOT in s"),
}
COUNTS = ("isl", "osl", "nodes", "chips", "devices", "mtp", "redundant_experts")
_RANGE = re.compile(r"\s*([0-9.]+)([^0-9.]*)\.\.([0-9.]+)([^0-9.:]*):([0-9]+)(:log)?\s*")
Values = tuple[str, list[str], bool]
"""Field, its values as they would be typed, and whether they lie a factor apart."""


@app.command()
@asks_a_question(optional=True)
def sweep(
    given: dict[str, str | None],
    over: Annotated[list[str] | None, option("--over", "FLAG=VALUES", "isl=1k,4k or rate=5/s..50/s:10[:log].")] = None,
    measure: Annotated[
        Text, option("--measure", "NAME", "What --plot shows: requests, chips, cost, ... [by flags].")
    ] = None,
    csv: Annotated[Text, option("--csv", "FILE", "Write the points as CSV, every figure in SI units.")] = None,
    plot: Annotated[Text, option("--plot", "FILE", "Draw the curve as .png or .svg.")] = None,
    force: Annotated[bool, switch("--force", "Replace files that are there.")] = False,
    json: Json = False,
) -> int:
    """Find the best plan at every point of one range, or of two.

    \b
    Examples:
      plan sweep deepseek-r1 --hw cm384 --over tpot=20ms..100ms:9
      plan sweep qwen3-32b --hw h100 --nodes 4 --over rate=5/s..40/s:8:log --csv sizing.csv --plot sizing.svg
      plan sweep deepseek-r1 --hw cm384 --over isl=1k,4k,16k --over osl=256,1k --measure tokens-per-chip

    A point without a plan stays in the table, with what binds. Exit code 3 where none has one.
    """
    if given.get("model") is None or given.get("hw") is None:
        raise BadInput("give MODEL, --hw HW and --over FLAG=VALUES; see plan sweep --help")
    check_force(force, {"--csv FILE": csv, "--plot FILE": plot})
    outputs = read_outputs(csv, plot, force)
    axes = _axes(over, given)
    fields = [field for field, _, _ in axes]
    points = [dict(zip(fields, values, strict=True)) for values in product(*(values for _, values, _ in axes))]
    asked = [(point, read_search(search_flags({**given, **point}))) for point in points]
    key, label = _measure(measure, asked[0][1])
    rows = list(bar(spread(_row, asked), "sweeping", len(asked)))
    write_answers(rows, outputs, _plot(axes, rows, key, label), fields, json=json)
    return ExitCode.DONE if any(row["feasible"] for row in rows) else ExitCode.INFEASIBLE


def _row(asked: tuple[dict[str, str], SearchInput]) -> Row:
    point, one = asked
    return {**point, **answer_row(one, search(one.question, explain=False, beside=False))}


def _axes(over: list[str] | None, given: dict[str, str | None]) -> list[Values]:
    """Return the swept flags; BadInput for none, three, or one that stands beside its own flag."""
    if not over or len(over) > 2:
        raise BadInput("--over: sweep one or two flags, such as --over tpot=20ms..100ms:9")
    axes = [_axis(text) for text in over]
    for field, _, _ in axes:
        if given.get(field) is not None:
            raise BadInput(f"{flag_name(field)} and --over {field} both give it; leave one of them out")
    if len({field for field, _, _ in axes}) < len(axes):
        raise BadInput(f"--over: {axes[0][0]} is swept twice; put its values into one list")
    count = len(axes[0][1]) * (len(axes[1][1]) if len(axes) > 1 else 1)
    if count > MOST_POINTS:
        raise BadInput(f"--over: {count} points are more than the {MOST_POINTS} that are swept; use fewer")
    return axes


def _axis(text: str) -> Values:
    name, equals, values = text.partition("=")
    field = name.strip().removeprefix("--").replace("-", "_")
    if not equals or not values.strip():
        raise BadInput(f"--over: {text[:40]!r} is not FLAG=VALUES, such as isl=1k,4k or tpot=20ms..100ms:9")
    if field not in SWEPT:
        raise BadInput(f"--over: {name.strip()[:40]!r} is no flag to sweep{suggest(field, SWEPT)}")
    match = _RANGE.fullmatch(values)
    if match is None:
        if ".." in values:
            raise BadInput(f"--over: {values[:40]!r} is not a range like 20ms..100ms:9, or with :log behind it")
        return field, [part.strip() for part in values.split(",") if part.strip()], False
    first, unit, last, other, count, logarithmic = match.groups()
    try:
        ends = float(first), float(last)
    except ValueError:
        raise BadInput(f"--over: {values[:40]!r} has an end that is no number") from None
    units = [own.strip() for end, own in zip(ends, (unit, other), strict=True) if end or own.strip()]  # 0 has any unit
    if len(set(units)) > 1 and field in COUNTS:  # 512..4k
        ends = parse_count(first + unit, "--over"), parse_count(last + other, "--over")
        units = []
    if len(set(units)) > 1:
        raise BadInput(f"--over: {values[:40]!r} has two units; write both ends in one, such as 20ms..100ms:9")
    try:
        found = spaced(*ends, int(count), logarithmic=logarithmic is not None)
    except BadInput as error:
        raise BadInput(f"--over: {values[:40]!r}: {error}") from None
    unit = units[0] if units else ""
    return field, [_typed(value, unit, field) for value in found], logarithmic is not None


def _typed(value: float, unit: str, field: str) -> str:
    """Return a value as it would be typed; counts are whole."""
    whole = field in COUNTS and not unit
    return f"{round(value)}" if whole else f"{value:.10g}{unit}"


def _measure(text: str | None, first: SearchInput) -> tuple[str, str]:
    word = ("chips" if first.question.rate_per_second is not None else "requests") if text is None else text.lower()
    if word not in MEASURES:
        raise BadInput(f"--measure: {word[:40]!r} is not one of {', '.join(MEASURES)}")
    return MEASURES[word]


def _plot(axes: list[Values], rows: list[Row], key: str, label: str) -> Plot:
    """Return the curve over the first flag, one for each value of the second."""
    field, values, logarithmic = axes[0]
    others = axes[1][1] if len(axes) > 1 else [""]
    ticks = [_number(value) for value in values]
    x = [float(number) if number is not None else float(place) for place, number in enumerate(ticks)]
    curves = []
    for other in others:
        own = [row for row in rows if len(axes) == 1 or row[axes[1][0]] == other]
        y = [float(row[key]) if isinstance(row.get(key), int | float) else None for row in own]  # type: ignore[arg-type]
        curves.append(Curve(f"{axes[1][0]} {other}" if other else label, x, y))
    unit = re.sub(r"^[0-9.eE+-]*", "", values[0])
    x_label = f"{field.replace('_', '-')} in {unit}" if unit else field.replace("_", "-")
    return Plot(str(rows[0]["model"]), x_label, label, curves, None, logarithmic)


def _number(text: str) -> float | None:
    match = re.match(r"[0-9.]+", text)
    return float(match[0]) if match else None
