"""`plan place`: expert placement from measured loads."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cli.options import File, Force, Json, option, takes
from cli.output import Screen, check_force, print_json, progress
from cli.place_view import (
    CURVE_COLUMNS,
    PLOTS,
    Answer,
    as_json,
    curve_rows,
    decision_lines,
    headline,
    plot_files,
    summary_lines,
    table_rows,
)
from cli.placing import (
    FILES,
    PlaceFlags,
    decide,
    dense_line,
    migrate,
    moe_map,
    placement_files,
    read_asked,
    read_current,
    read_dense_layers,
    read_holdout,
    read_weight,
    time_experts,
    weigh_traffic,
)
from cli.plots import check_matplotlib
from ground.files import check_folder, write_files
from planner.placement.certify import Certified, certify
from planner.placement.heldout import hold_out
from planner.placement.loadfiles import LoadFile, read_loads
from planner.placement.methods import place as place_experts

app = typer.Typer(rich_markup_mode=None)

COLUMNS = ["placement", "mean over layers", "worst layer"]


@app.command()
@takes(PlaceFlags)
def place(
    flags: PlaceFlags,
    out: Annotated[File, option("--out", "DIR", "Write the map in every engine's format.")] = None,
    plot: Annotated[File, option("--plot", "DIR", "Draw loads per device, and the curve; podplan[plot].")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Place experts and their replicas on devices from measured loads.

    \b
    Examples:
      plan place loads.csv --devices 32 --nodes 4 --redundant-experts 32
      plan place slices.csv --devices 8 --slots-per-device 9 --holdout alternate
      plan place counts.npy --devices 32 --nodes 4 --redundant-experts 32 --groups 8 --keep-groups
      plan place counts.npy --devices 32 --redundant-experts auto --model deepseek-r1 --hw h800 --batch 64

    Imbalance is the busiest device's load over the mean; the bound is the least that any placement could reach.
    """
    check_force(force, {"--out DIR": out, "--plot DIR": plot})
    _check_folders(out, plot, force)
    read = read_loads(flags.loads)
    dense_layers = read_dense_layers(flags, read)
    answer = _placed(flags, read)
    moe = moe_map(answer, dense_layers)
    data = as_json(answer, moe)
    drawn = {} if plot is None else plot_files(plot, answer)
    written = {} if out is None else placement_files(out, moe, data)
    write_files({**written, **drawn}, force=force)
    if json:
        print_json(data)
        return
    _print(answer, read)
    if drawn:
        Screen().lines(f"drew {', '.join(path.name for path in drawn)} in {plot}")
    if out is not None:
        Screen().lines(f"wrote {', '.join(FILES)} to {out}", dense_line(flags, moe))


def _check_folders(out: Path | None, plot: Path | None, force: bool) -> None:
    """Raise BadInput before any work where the files could not be made or written."""
    if out is not None:
        check_folder(out, FILES, force=force, flag="--out")
    if plot is not None:
        check_folder(plot, PLOTS, force=force, flag="--plot")
        check_matplotlib()


def _placed(flags: PlaceFlags, read: LoadFile) -> Answer:
    """Place the experts as the flags ask; BadInput naming the flag before anything that takes long."""
    asked = read_asked(flags)
    problem, decision = decide(flags, read, asked)
    split = read_holdout(flags, problem)
    running, weight = read_current(flags, problem), read_weight(flags, problem)
    start = time.perf_counter()
    with progress("placing experts ..."):
        placed = place_experts(problem, flags.method)
        timed = None if asked is None else time_experts(flags, problem, asked, placed)
        if timed is not None and flags.by_seconds:
            placed = timed.placement
        traffic = migration = None
        if weight is not None:
            placed, traffic = weigh_traffic(problem, placed, weight)
        certified = certify(problem, placed) if flags.certify else Certified(placement=placed, certificates={})
        if running is not None:
            placed, migration = migrate(flags, problem, certified.placement, running)
            certified = replace(certified, placement=placed)
        seconds = time.perf_counter() - start
        held_out = hold_out(problem, split, flags.method) if split else None
    return Answer(
        problem=problem,
        certified=certified,
        seconds=seconds,
        held_out=held_out,
        decision=decision,
        timed=timed,
        traffic=traffic,
        migration=migration,
    )


def _print(answer: Answer, read: LoadFile) -> None:
    Screen().lines(headline(answer.problem, read))
    Screen().table(COLUMNS, table_rows(answer), right=COLUMNS[1:])
    Screen().lines(*summary_lines(answer))
    if answer.decision is not None and answer.decision.choices:
        Screen().table(CURVE_COLUMNS, curve_rows(answer.decision), title="Redundant experts", right=CURVE_COLUMNS)
    Screen().lines(*decision_lines(answer))
