"""`plan search`, and `plan MODEL` for short: the best deployment for a load on a machine."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cli.options import JSON, VERBOSE, WORKERS, File, Given, Text, takes_question
from cli.output import Outputs, Screen, note, print_json, progress
from cli.plan_parts import number
from cli.plan_view import show_front, show_plan
from ground.errors import BadInput, Infeasible
from ground.units import counted, format_count, format_duration, format_rate
from ground.workers import aside, executor_of
from planner.search.search import at_need
from podplan.options import flag, switch
from podplan.planning import FILES as SAVED, PlanResult, read_levels, solved, widened
from podplan.question import Asked
from podplan.question_files import asked_of, single_question
from podplan.result import Row

if TYPE_CHECKING:
    from podplan.scenarios import ScenariosResult

FILES = (*SAVED, "report.txt", "report.html")


@takes_question("MODEL | QUESTION.yaml", "Catalogue name, config.json or model YAML, with --hw; or a question file.")
def command(  # noqa: PLR0913 - typer makes a flag of each
    given: Given,
    name: Text = flag("NAME", "Which question of the file."),
    pareto: Text = flag("LEVELS", "A wide front over so many levels of TTFT, TPOT and devices, 2 to 8."),
    csv: Text = flag("FILE", "Write the Pareto front as CSV, every figure in SI units."),
    plot: Text = flag("FILE", "Draw the front: tokens/s of a user and per chip; .png, .svg."),
    out: File = flag("DIR", "Write manifest.yaml, plan.json, report.txt and report.html there."),
    scenarios: File = flag("FILE", "One plan for its scenarios; a policy over time."),
    workers: Text = WORKERS,
    verbose: bool = VERBOSE,
    force: bool = switch("Replace these files where they exist."),
    json: bool = JSON,
) -> None:
    """Find the deployment that serves a load best on a machine: pools, strategies, batches, and why.

    \b
    Examples:
      plan deepseek-r1 --hw cm384
      plan qwen3-235b-a22b --hw h800 --nodes 8 --rate 20/s --ttft 1s --tpot 40ms
      plan deepseek-r1 --hw prefill=910b,decode=cm384 --trace conversation.jsonl --out plan-r1
      plan search ./config.json --hw h100 --nodes 2 --json
      plan deepseek-r1 --hw cm384 --rate 200/s --survive node
      plan deepseek-r1 --hw cm384 --strategy prefill="SP=2 + DP=16, EP=32",decode="DP=320, EP=320" --instances decode=1
      plan examples/published/cloudmatrix384.yaml --out plan-published
      plan deepseek-r1 --hw cm384 --scenarios day.yaml
      plan deepseek-r1 --hw cm384 --pareto 4 --csv front.csv --plot front.svg

    Counts take k and M. Exit code 3: no plan keeps the limits; what binds and the nearest change are told.
    """
    outputs = Outputs(force, {"--out DIR": out, "--csv FILE": csv, "--plot FILE": plot}, {"--out": FILES})
    levels, executor = read_levels(pareto), executor_of(workers)
    if scenarios is not None:
        _scenarios(given, scenarios, json, [pareto, csv, plot, name], outputs)
        return
    asked = _asked(given, name)
    with progress(f"searching deployments of {asked.question.model.name} ..."):
        found = widened(solved(asked, aside=aside if workers is None else at_need), levels, executor)
    if found.best is None:
        if json:
            print_json(found.to_dict())
        raise Infeasible(found.headline)
    if outputs.paths:  # before anything is printed: a reader that closes the pipe must not cost the files
        from cli.report import front_plot, reports  # only files need them

        outputs.write(found, partial(front_plot, found), partial(reports, found))
    print_json(found.to_dict()) if json else _show(Screen(), found, wide=levels is not None, verbose=verbose)


def _asked(given: Given, name: str | None) -> Asked:
    """Return the question that is asked, of a file with several the one of that name."""
    entry = single_question(given if name is None else {**given, "name": name}, "search")
    asked = asked_of(entry)
    if entry.ignored:
        note(entry.ignored)
    return asked


def _show(screen: Screen, found: PlanResult, *, wide: bool, verbose: bool) -> None:
    show_plan(screen, found, runners=not wide, verbose=verbose)
    if wide:
        screen.lines("")
        show_front(screen, "Pareto front", found.pareto)


def _scenarios(given: Given, path: Path, json: bool, others: Sequence[object], outputs: Outputs) -> None:
    """Answer a file of scenarios under the flags of a question."""
    from podplan.scenarios import solved_scenarios

    if any(each is not None for each in others) or "hw" not in given:
        raise BadInput("--scenarios: goes with MODEL and --hw HW; leave --name, --pareto, --csv and --plot out")
    with progress("searching every scenario ..."):
        found = solved_scenarios(given, path)
    if found.robust is not None:
        outputs.write(found)
    print_json(found.to_dict()) if json else show_scenarios(Screen(), found)
    if found.robust is None:
        raise Infeasible(f"{found.headline}; a lower share, or more devices, would have one")


def show_scenarios(screen: Screen, found: "ScenariosResult") -> None:
    """Print the scenarios with what is best for each, the one plan and the policy."""
    from podplan.scenarios import layout_text

    screen.text(f"{found.headline}.")
    screen.lines("")
    windows = found.policy
    holds: dict[object, str] = {None: "", True: "yes", False: "no"}
    columns: dict[str, Callable[[Row], str]] = {
        "scenario": lambda row: str(row["scenario"]),
        **({"model": lambda row: str(row["model"])} if len(found.space.layouts) > 1 else {}),
        ">rate": lambda row: format_rate(number(row["requests_per_second"]) or 0.0),
        ">weight": lambda row: f"{row['weight']:g}",
        ">chips alone": lambda row: format_count(chips) if (chips := number(row["chips_alone"])) else "none",
        "one plan holds": lambda row: holds[row["one_plan_holds"]],
        **({"policy": lambda row: str(row["policy"] or "no plan")} if windows else {}),
    }
    screen.grid(found.rows(), columns)
    for _, _, each in found.asked():
        if each.relaxed is not None:
            screen.text(f"{each.name}: nothing keeps the limits; planned is what comes nearest, {each.relaxed}.")
    for late in found.late:
        screen.text(
            f"{late.window}: {counted(late.instances, 'instance')} of {late.model} can serve "
            f"{format_duration(late.seconds)} into the window, as others drain from the devices first."
        )
    if found.robust is not None:
        screen.text(f"One plan: {' beside '.join(layout_text(each) for each in found.robust.layouts)}.")
    if windows is not None:
        screen.text(
            f"Policy: {format_count(windows.chip_hours)} chip-hours, {windows.moving_chip_hours:.3g} of them to move; "
            f"bound {format_count(windows.bound_chip_hours)} (proven for each window, moves free), gap "
            f"{windows.gap:.1%}; re-planning at every window {format_count(windows.replanned_chip_hours)}, "
            f"{windows.replanned_moving_chip_hours:.3g} of them to move; one plan for the peak "
            f"{format_count(windows.peak_chip_hours) if windows.peak else 'is not there'}."
        )
