"""`plan verify`: measured runs beside their predictions; exit 0 inside the intervals, 3 outside."""

from collections.abc import Callable

from cli.options import CSV, FORCE, JSON, File, Text, options
from cli.output import Outputs, Screen, print_json
from ground.errors import BadInput, ExitCode
from ground.units import format_count, format_duration
from planner.verification.outliers import NAMES
from planner.verification.verify import Summary, Verified, by_label
from podplan.options import argument, flag
from podplan.verification import LABELS, VerifyResult, calibrate, verify

MOST_ROWS = 40


@options
def command(  # noqa: PLR0913 - typer makes a flag of each
    results: list[str] | None = argument(
        "RESULT...", "CSV tables of runs, or what load generators wrote.", default=None
    ),
    manifest: Text = flag("FILE", "What ran, for reports of load generators."),
    calibration: Text = flag("FILE", "Learn from runs that were verified before."),
    calibrate_to: File = flag("OUT.yaml", "Write what these runs teach, for --calibration.", "--calibrate"),
    level: Text = flag("L", "Of the intervals [0.8]."),
    next_runs: Text = flag("K", "Name the K runs most likely to change the pick of --manifest's plan.", "--next"),
    csv: Text = CSV,
    force: bool = FORCE,
    json: bool = JSON,
) -> int:
    """Compare measured runs with their predictions and intervals, and learn from them.

    \b
    Examples:
      plan verify runs.csv
      plan verify result.json --manifest plan/manifest.yaml
      plan verify first.csv --calibrate ours.yaml && plan verify later.csv --calibration ours.yaml

    A row of a CSV names model, hardware, engine, strategy, isl, osl, concurrency and what was measured: ttft_seconds,
    tpot_seconds, output_tokens_per_second_per_chip. Exit code 3: a measured value lies outside its interval.
    """
    outputs = Outputs(force, {"--csv FILE": csv, "--calibrate OUT.yaml": calibrate_to})
    found = verify(
        *(results or ()), manifest=manifest, calibration_file=calibration, level=level or "0.8", next=next_runs or "0"
    )
    if calibrate_to is not None:
        if calibration is not None:
            raise BadInput("--calibrate: errors are taken without --calibration; give all runs at once")
        calibrate(found, calibrate_to, force=force)
    outputs.write(found)
    print_json(found.to_dict()) if json else _show(found)
    return ExitCode.DONE if found.holds else ExitCode.INFEASIBLE


def _show(found: VerifyResult) -> None:
    screen = Screen()
    if found.runs:
        _show_runs(screen, found)
    for each in found.next:
        what = "the pick" if each.picked else "a runner-up"
        gain = f"; better by {each.gain:.1%} then in the mean" if each.gain > 0 else ""
        screen.text(f"Next: {each.layout} ({what}); {each.chance:.0%} to change the pick{gain}.")
        screen.lines(*(f"  {command}" for command in each.commands))


def _show_runs(screen: Screen, found: VerifyResult) -> None:
    screen.text(found.headline + ".")
    screen.lines("")
    pairs = [(each, name) for each in found.compared for name in each.error]
    if len(pairs) <= MOST_ROWS:
        screen.grid(pairs, COLUMNS)
    groups = [("all", found.summary)]
    for label in LABELS:
        own = by_label(found.runs, label)
        groups += own.items() if len(own) > 1 else ()
    screen.grid([(what, summary, name) for what, summary in groups for name in summary.mape], SUMMARY)
    for each in found.runs:
        if each.reason:
            screen.text(f"Skipped: {each.reason}.")
    screen.text(*found.notes[:8])


def _told(name: str, value: float) -> str:
    return f"{format_count(round(value))} tokens/s per chip" if name.startswith("output") else format_duration(value)


COLUMNS: dict[str, Callable[[tuple[Verified, str]], str]] = {  # of a run and the name of a figure
    "run": lambda at: at[0].run.id,
    "figure": lambda at: NAMES[at[1]],
    ">measured": lambda at: _told(at[1], at[0].run.measured[at[1]]),
    ">predicted": lambda at: _told(at[1], at[0].predicted[at[1]]),
    ">error": lambda at: f"{at[0].error[at[1]]:+.1%}",
    "interval": lambda at: " to ".join(_told(at[1], end) for end in at[0].interval[at[1]]),
    "inside": lambda at: "yes" if at[0].inside[at[1]] else "no",
}
SUMMARY: dict[str, Callable[[tuple[str, Summary, str]], str]] = {
    "runs": lambda at: at[0],
    ">of": lambda at: str(at[1].count),
    "figure": lambda at: NAMES[at[2]],
    ">mean |error|": lambda at: f"{at[1].mape[at[2]]:.1%}",
    ">median": lambda at: f"{at[1].median[at[2]]:.1%}",
    ">bias": lambda at: f"{at[1].bias[at[2]]:+.1%}",
    ">in interval": lambda at: f"{at[1].coverage[at[2]]:.0%}",
    ">rank corr.": lambda at: f"{at[1].rank_correlation[at[2]]:.2f}" if at[2] in at[1].rank_correlation else "",
}
"""Of a group's name, its errors and the name of a figure."""
