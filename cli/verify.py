"""`plan verify`: measured runs beside their predictions; exit 0 inside the intervals, 3 outside."""

from cli.exit_codes import ExitCode
from cli.options import CSV, FORCE, JSON, File, Text, options
from cli.output import Outputs, Screen, print_json
from ground.errors import BadInput
from ground.units import format_count, format_duration, number_of
from planner.verification.outliers import NAMES
from planner.verification.verify import Summary, by_label
from podplan.options import argument, flag
from podplan.verification import LABELS, VerifyResult, calibrate, verify

COLUMNS = ["run", "figure", "measured", "predicted", "error", "interval", "inside"]
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
    """Set measured runs beside their predictions, with intervals, and learn from them.

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
        *(results or ()), manifest=manifest, calibration_file=calibration, level=_level(level), next=_count(next_runs)
    )
    if calibrate_to is not None:
        if calibration is not None:
            raise BadInput("--calibrate: errors are taken without --calibration; give all runs at once")
        calibrate(found, calibrate_to, force=force)
    outputs.write(found)
    print_json(found.to_dict()) if json else _show(found)
    return ExitCode.DONE if found.holds else ExitCode.INFEASIBLE


def _level(text: str | None) -> float:
    value = 0.8 if text is None else number_of(text)
    if not 0 < value < 1:
        raise BadInput(f"--level: {(text or '')[:40]!r} is not a share between 0 and 1, such as 0.8")
    return value


def _count(text: str | None) -> int:
    if text is not None and not (text.isascii() and text.isdigit() and 1 <= int(text) <= 100):
        raise BadInput(f"--next: {text[:40]!r} is not a number of runs from 1 to 100")
    return int(text or 0)


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
    rows = [
        [
            each.run.id,
            NAMES[name],
            _told(name, each.run.measured[name]),
            _told(name, each.predicted[name]),
            f"{error:+.1%}",
            f"{_told(name, each.interval[name][0])} to {_told(name, each.interval[name][1])}",
            "yes" if each.inside[name] else "no",
        ]
        for each in found.compared
        for name, error in each.error.items()
    ]
    if len(rows) <= MOST_ROWS:
        screen.table(COLUMNS, rows, right=["measured", "predicted", "error"])
    screen.table(
        ["runs", "of", "figure", "mean |error|", "median", "bias", "in interval", "rank corr."],
        _summary_rows(found),
        right=["of", "mean |error|", "median", "bias", "in interval", "rank corr."],
    )
    for each in found.runs:
        if each.reason:
            screen.text(f"Skipped: {each.reason}.")
    screen.text(*found.notes[:8])


def _summary_rows(found: VerifyResult) -> list[list[str]]:
    rows = _of("all", found.summary)
    for label in LABELS:
        groups = by_label(found.runs, label)
        for name, own in groups.items() if len(groups) > 1 else ():
            rows += _of(name, own)
    return rows


def _of(what: str, summary: Summary) -> list[list[str]]:
    return [
        [
            what,
            str(summary.count),
            NAMES[name],
            f"{value:.1%}",
            f"{summary.median[name]:.1%}",
            f"{summary.bias[name]:+.1%}",
            f"{summary.coverage[name]:.0%}",
            f"{summary.rank_correlation[name]:.2f}" if name in summary.rank_correlation else "",
        ]
        for name, value in summary.mape.items()
    ]


def _told(name: str, value: float) -> str:
    return f"{format_count(round(value))} tokens/s per chip" if name.startswith("output") else format_duration(value)
