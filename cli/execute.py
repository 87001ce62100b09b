"""`plan execute`: the manifest's parallelism on a small model with real tensors, checked against an unsharded run."""

from json import dumps as dump_json

import typer

from cli.execute_clock import clock_json, clock_rows, iteration_json, show_clock, show_iteration
from cli.execute_flags import ExecuteFlags, check_together, read_settings
from cli.execute_render import recovery_json, report_json, show_recovery, show_report
from cli.exit_codes import ExitCode
from cli.options import Json, takes
from cli.output import print_json
from ground.files import write_files
from ground.units import parse_duration
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from runtime.execute.check import Report
from runtime.execute.check import execute as run_check
from runtime.execute.faults import execute_with_drop, parse_drop
from runtime.execute.mpi import MpiLoop, connect
from runtime.execute.run import Settings
from runtime.execute.timeline import chrome_trace, clocked_iteration
from runtime.execute.transport import RankFailed, Stuck

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes(ExecuteFlags)
def execute(
    flags: ExecuteFlags,
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
    check_together(flags)
    settings, limit_seconds = read_settings(flags), parse_duration(flags.timeout, "--timeout")
    plan = read_manifest(flags.manifest)
    if flags.drop is not None:
        return _recovered(flags.drop, flags.recover or "shrink", plan, settings, json=json)
    report = _run(plan, settings, flags.transport, limit_seconds)
    if report is None:
        return ExitCode.DONE
    rows = clock_rows(plan) if flags.clock else []
    iteration = clocked_iteration(plan, settings) if flags.clock or flags.timeline else None
    if flags.timeline and iteration:
        write_files({flags.timeline: dump_json(chrome_trace(iteration)) + "\n"}, force=flags.force)
    timed = iteration if flags.clock else None
    if json:
        clocked = {"clock": clock_json(rows), "iteration": iteration_json(timed)} if timed else {}
        print_json(report_json(report) | clocked)
    else:
        show_report(report)
        if timed:
            show_clock(rows)
            show_iteration(timed)
    return ExitCode.DONE if report.equal else ExitCode.FAULT


def _recovered(drop: str, how: str, plan: Manifest, settings: Settings, *, json: bool) -> int:
    """Run with the loss of a rank, show how it was met."""
    recovered = execute_with_drop(plan, settings, parse_drop(drop, how))
    print_json(recovery_json(recovered)) if json else show_recovery(recovered, how)
    return ExitCode.DONE if recovered.compared.equal else ExitCode.FAULT


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
