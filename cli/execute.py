"""`plan execute`: the manifest's parallelism on a small model with real tensors, checked against an unsharded run."""

from dataclasses import dataclass
from json import dumps as dump_json
from pathlib import Path

from cli.execute_clock import clock_json, clock_rows, iteration_json, show_clock, show_iteration
from cli.execute_view import recovery_json, report_json, show_recovery, show_report
from cli.exit_codes import ExitCode
from cli.options import JSON, File, takes
from cli.output import check_force, print_json
from ground.errors import BadInput
from ground.files import check_file, write_files
from ground.units import parse_duration
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from podplan.options import Text, argument, flag, flag_name, switch
from podplan.readers import read_choice
from runtime.execute.check import Report
from runtime.execute.check import execute as run_check
from runtime.execute.faults import execute_with_drop, parse_drop
from runtime.execute.mpi import MpiLoop, connect
from runtime.execute.plan import Choices
from runtime.execute.run import Settings
from runtime.execute.timeline import chrome_trace, clocked_iteration
from runtime.execute.transport import RankFailed, Stuck

MOST_ITERATIONS = 64
MOST_SEED = 2**32
OF_A_WHOLE_RUN = ("clock", "timeline", "transport")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteFlags:
    """Flags as they were typed; None where one was not given."""

    manifest: Path = argument("MANIFEST", "The manifest, such as out/manifest.yaml.")
    iterations: int = flag("N", "Decode iterations, 1 to 64.", default=8)
    int8: bool = switch("INT8 matrices, activations and dispatch messages.")
    seed: int = flag("N", "Seed of weights and prompts.", default=0)
    clock: bool = switch("Time the plan's collectives on a virtual clock, beside closed forms.")
    timeline: File = flag("FILE", "Write one decode iteration on the clock as a Chrome trace.")
    force: bool = switch("Replace the timeline's file.")
    drop: Text = flag("RANK@ITERATION", "Lose a decode rank before an iteration, and recover.")
    recover: Text = flag("NAME", "With --drop, shrink: go on without the rank; rollback: repeat with it [shrink].")
    transport: str = flag(
        "NAME", "local: all ranks in this process; mpi: in those that mpirun started.", default="local"
    )
    timeout: str = flag("DURATION", "How long MPI ranks wait before the run ends.", default="60s")


@takes(ExecuteFlags)
def command(
    flags: ExecuteFlags,
    json: bool = JSON,
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


def check_together(flags: ExecuteFlags) -> None:
    """Raise BadInput where flags contradict each other, or a file is in the way."""
    check_force(flags.force, {"--timeline FILE": flags.timeline})
    if flags.timeline is not None:
        check_file(flags.timeline, force=flags.force, flag="--timeline")
    if flags.recover is not None and flags.drop is None:
        raise BadInput("--recover says what follows a lost rank; give --drop RANK@ITERATION with it or leave it out")
    read_choice(flags.transport, "--transport", ("local", "mpi"))
    for name in OF_A_WHOLE_RUN:
        if flags.drop is not None and getattr(flags, name) not in (False, None, "local"):
            raise BadInput(f"{flag_name(name)}: is for a run without a loss; leave it or --drop out")


def read_settings(flags: ExecuteFlags) -> Settings:
    """Return what is to be run."""
    if not 1 <= flags.iterations <= MOST_ITERATIONS:
        raise BadInput(f"--iterations: {flags.iterations} must be from 1 to {MOST_ITERATIONS}")
    if not 0 <= flags.seed < MOST_SEED:
        raise BadInput(f"--seed: {flags.seed} must be from 0 to {MOST_SEED - 1}")
    return Settings(
        iterations=flags.iterations, seed=flags.seed, int8=flags.int8, choices=Choices(int8_messages=flags.int8)
    )
