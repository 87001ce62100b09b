"""`plan execute`: the manifest's parallelism on a small model with real tensors, checked against an unsharded run."""

from json import dumps as dump_json
from pathlib import Path
from typing import Annotated

import typer

from cli.execute_clock import clock_json, clock_rows, iteration_json, show_clock, show_iteration
from cli.execute_render import recovery_json, report_json, show_recovery, show_report
from cli.exit_codes import ExitCode
from cli.options import File, Json, Text, argument, option, switch
from cli.output import check_force, print_json
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from podplan.errors import BadInput
from podplan.files import write_files
from podplan.units import parse_duration
from runtime.execute.check import Report
from runtime.execute.check import execute as run_check
from runtime.execute.faults import execute_with_drop, parse_drop
from runtime.execute.mpi import MpiLoop, connect
from runtime.execute.plan import Choices
from runtime.execute.run import Settings
from runtime.execute.timeline import chrome_trace, clocked_iteration
from runtime.execute.transport import RankFailed, Stuck

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MOST_ITERATIONS = 64


@app.command()
def execute(
    manifest: Annotated[Path, argument("MANIFEST", "The manifest, such as out/manifest.yaml.")],
    iterations: Annotated[int, option("--iterations", "N", "Decode iterations, 1 to 64.")] = 8,
    int8: Annotated[bool, switch("--int8", "INT8 matrices, activations and dispatch messages.")] = False,
    seed: Annotated[int, option("--seed", "N", "Seed of weights and prompts.")] = 0,
    clock: Annotated[
        bool, switch("--clock", "Time the plan's collectives on a virtual clock, beside closed forms.")
    ] = False,
    timeline: Annotated[
        File, option("--timeline", "FILE", "Write one decode iteration on the clock as a Chrome trace.")
    ] = None,
    force: Annotated[bool, switch("--force", "Replace the timeline's file.")] = False,
    drop: Annotated[
        Text, option("--drop", "RANK@ITERATION", "Lose a decode rank before an iteration, and recover.")
    ] = None,
    recover: Annotated[
        Text,
        option("--recover", "NAME", "With --drop, shrink: go on without the rank; rollback: repeat with it [shrink]."),
    ] = None,
    transport: Annotated[
        str, option("--transport", "NAME", "local: all ranks in this process; mpi: in those that mpirun started.")
    ] = "local",
    timeout: Annotated[str, option("--timeout", "DURATION", "How long MPI ranks wait before the run ends.")] = "60s",
    json: Json = False,
) -> int:
    """Run the plan of a manifest on a small model of the same structure and compare it with an unsharded run.

    \b
    Examples:
      plan execute out/manifest.yaml
      plan execute out/manifest.yaml --int8 --json
      plan execute out/manifest.yaml --drop 5@3 --recover shrink
      plan execute out/manifest.yaml --clock --timeline trace.json
      mpirun --oversubscribe -n 8 plan execute out/manifest.yaml --transport mpi

    Every rank of the first prefill and the first decode instance runs: its shards, its experts, every collective with
    real messages. Prompts are prefilled, caches handed over, tokens decoded greedily. Exit 1 where a token, a
    logit or a message differs, exit 2 where the manifest does not cover the model.
    """
    if not 1 <= iterations <= MOST_ITERATIONS:
        raise BadInput(f"--iterations: {iterations} must be from 1 to {MOST_ITERATIONS}")
    check_force(force, {"--timeline FILE": timeline})
    if timeline and timeline.exists() and not force:
        raise BadInput(f"{timeline}: the file exists already; give --force to replace it")
    if recover is not None and drop is None:
        raise BadInput("--recover says what follows a lost rank; give --drop RANK@ITERATION with it or leave it out")
    if not 0 <= seed < 2**32:
        raise BadInput(f"--seed: {seed} must be from 0 to {2**32 - 1}")
    settings = Settings(iterations=iterations, seed=seed, int8=int8, choices=Choices(int8_messages=int8))
    plan = read_manifest(manifest)
    if drop is not None:
        how = recover or "shrink"
        recovered = execute_with_drop(plan, settings, parse_drop(drop, how))
        print_json(recovery_json(recovered)) if json else show_recovery(recovered, how)
        return ExitCode.DONE if recovered.compared.equal else ExitCode.FAULT
    report = _run(plan, settings, _transport(transport), parse_duration(timeout, "--timeout"))
    if report is None:
        return ExitCode.DONE
    rows = clock_rows(plan) if clock else []
    iteration = clocked_iteration(plan, settings) if clock or timeline else None
    if timeline and iteration:
        write_files({timeline: dump_json(chrome_trace(iteration)) + "\n"}, force=force)
    if json:
        timed = {"clock": clock_json(rows), "iteration": iteration_json(iteration)} if clock and iteration else {}
        print_json(report_json(report) | timed)
    else:
        show_report(report)
        if clock and iteration:
            show_clock(rows)
            show_iteration(iteration)
    return ExitCode.DONE if report.equal else ExitCode.FAULT


def _transport(name: str) -> str:
    if name not in ("local", "mpi"):
        raise BadInput(f"--transport: {name[:40]!r} must be local or mpi")
    return name


def _run(plan: Manifest, settings: Settings, transport: str, limit_seconds: float) -> Report | None:
    """Run the check in this process, or this process's part of it; None where another process has the report."""
    if transport == "local":
        return run_check(plan, settings)
    communicator, loops = connect(), []

    def make_loop(ranks: int) -> MpiLoop:
        loops.append(MpiLoop(communicator, ranks, limit_seconds))
        return loops[-1]

    try:
        return run_check(plan, settings, make_loop)
    except (Stuck, RankFailed) as error:
        # The other processes wait for this one's messages, so it must not end alone.
        loops[-1].abort(str(error))
        raise
