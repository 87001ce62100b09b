"""`plan compare` and `plan sweep`: the best plans of several questions, side by side or over a range."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from cli.options import CSV, FORCE, JSON, WORKERS, Given, Text, takes_question
from cli.output import Outputs, Screen, print_json, with_bar
from cli.plan_parts import MEASURES, number, show_rows
from cli.plots import Plot, PlotLine
from ground.errors import BadInput, ExitCode
from ground.units import format_duration, format_rate
from ground.workers import executor_of
from planner.question import Question
from podplan.comparison import CompareResult, compare, sweep as swept
from podplan.machines import basis_lines, unlike_prices
from podplan.options import flag, switch
from podplan.question import Asked
from podplan.readers import read_choice


@takes_question("QUESTIONS.yaml | MODEL,...", "A question file, or models with --hw, each by commas.")
def command(
    given: Given,
    front: bool = switch("All plans of each Pareto front, not only the best."),
    measure: Text = flag("NAME", "What --plot shows: requests, tokens-per-chip, cost, ..."),
    csv: Text = CSV,
    plot: Text = flag("FILE", "Draw a bar for each row as .png or .svg."),
    workers: Text = WORKERS,
    force: bool = FORCE,
    json: bool = JSON,
) -> int:
    """Compare the best plans of several models and machines, or of the questions of a file.

    \b
    Examples:
      plan compare deepseek-r1 --hw cm384,h800,h200 --devices 64
      plan compare qwen3-32b,llama-3.3-70b --hw h100 --nodes 1 --csv compared.csv
      plan compare deepseek-r1 --hw cm384 --strategy "decode=DP=320, EP=320 | decode=DP=160 x 3, EP=288"
      plan compare examples/questions/capacity.yaml --plot compared.svg --measure cost

    Exit code 3 where no question has a plan.
    """
    outputs = Outputs(force, {"--csv FILE": csv, "--plot FILE": plot})
    key, label = _measure(measure or "tokens-per-chip")
    found = compare(**given, front=front, workers=with_bar("comparing", executor_of(workers)))
    unlike = unlike_prices([one.question for one in found.asked]) if key == "cost_per_million_tokens" else None
    if unlike and plot is not None:
        raise BadInput(f"--measure cost: {unlike}")
    heights = [number(row.get(key)) for row in found.table]
    names = [str(row["question"]) for row in found.table]
    drawn = Plot(
        title=label,
        question=limits_text(found.asked),
        y_label=label,
        curves=[PlotLine(label, [], heights)],
        names=names,
    )
    code = _shown(found, outputs, drawn, ["question"], json=json)
    if not json:
        Screen().text(*basis_lines([one.question for one in found.asked]))
    return code


@takes_question("MODEL", "Catalogue name, config.json or model YAML.")
def sweep(
    given: Given,
    over: list[str] | None = flag("FLAG=VALUES", "isl=1k,4k or rate=5/s..50/s:10[:log]."),
    measure: Text = flag("NAME", "What --plot shows: requests, chips, cost, ... [by flags]."),
    csv: Text = CSV,
    plot: Text = flag("FILE", "Draw the curve as .png or .svg."),
    workers: Text = WORKERS,
    force: bool = FORCE,
    json: bool = JSON,
) -> int:
    """Find the best plan at every point of one range, or of two.

    \b
    Examples:
      plan sweep deepseek-r1 --hw cm384 --over tpot=20ms..100ms:9
      plan sweep qwen3-32b --hw h100 --nodes 4 --over rate=5/s..40/s:8:log --csv sizing.csv --plot sizing.svg
      plan sweep deepseek-r1 --hw cm384 --over isl=1k,4k,16k --over osl=256,1k --measure tokens-per-chip

    A point without a plan stays in the table, with what binds. Exit code 3 where none has one.
    """
    outputs = Outputs(force, {"--csv FILE": csv, "--plot FILE": plot})
    if measure is not None:
        _measure(measure)
    found = swept(**given, over=over or [], workers=with_bar("sweeping", executor_of(workers)))
    rated = found.asked[0].question.rate_per_second is not None
    drawn = _curves(found, *_measure(measure or ("chips" if rated else "requests")))
    return _shown(found, outputs, drawn, [axis.field for axis in found.axes], json=json)


def _shown(found: CompareResult, outputs: Outputs, drawn: Plot, extra: list[str], *, json: bool) -> int:
    """Write the files, then the table or the JSON; ``extra`` keys stand before the usual columns."""
    outputs.write(found, lambda: drawn)
    print_json(found.to_dict()) if json else show_rows(Screen(), found.table, extra)
    return ExitCode.DONE if found.feasible else ExitCode.INFEASIBLE


def _measure(text: str) -> tuple[str, str]:
    return MEASURES[read_choice(text, "--measure", tuple(MEASURES))]


def _curves(found: CompareResult, key: str, label: str) -> Plot:
    """Return the curve over the first swept flag, one for each value of the second."""
    first, *others = found.axes
    ticks = [re.match(r"[0-9.]+", value) for value in first.values]
    x = [float(tick[0]) if tick else float(place) for place, tick in enumerate(ticks)]
    curves = []
    for other in others[0].values if others else [""]:
        own: list[Mapping[str, object]] = [row for row in found.table if not others or row[others[0].field] == other]
        y = [float(value) if isinstance(value := row.get(key), int | float) else None for row in own]
        curves.append(PlotLine(f"{others[0].field} {other}" if others else label, x, y))
    unit = re.sub(r"^[0-9.eE+-]*", "", first.values[0])
    x_label = f"{first.field.replace('_', '-')} in {unit}" if unit else first.field.replace("_", "-")
    asked = found.asked[0].question
    limit = {"ttft_seconds": asked.ttft_seconds, "tpot_seconds": asked.tpot_seconds}.get(key)
    swept = {axis.field for axis in found.axes}
    return Plot(
        title=f"{found.table[0]['model']} on {found.table[0]['hardware']}",
        question=limits_text(found.asked, swept),
        x_label=x_label,
        y_label=label,
        curves=curves,
        logarithmic=first.logarithmic,
        y_limits=[]
        if limit is None or key.removesuffix("_seconds") in swept
        else [(limit, f"limit {format_duration(limit)}")],
    )


def limits_text(asked: Sequence[Asked], swept: Collection[str] = ()) -> str:
    """Say which load and limits a picture holds for: what all questions have alike."""
    alike = [one.question for one in asked]
    told: dict[str, Callable[[Question], str]] = {
        "isl": lambda one: f"prompts {one.workload.input_tokens.mean:g} tokens",
        "osl": lambda one: f"answers {one.workload.output_tokens.mean:g} tokens",
        "rate": lambda one: format_rate(one.rate_per_second) if one.rate_per_second else "",
        "ttft": lambda one: f"TTFT {format_duration(one.ttft_seconds)}",
        "tpot": lambda one: f"TPOT {format_duration(one.tpot_seconds)} at p{one.percentile:g}",
    }
    said = [{tell(one) for one in alike} for name, tell in told.items() if name not in swept]
    return ", ".join(text for each in said if len(each) == 1 for text in each if text)
