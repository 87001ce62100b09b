"""`plan execute`: the manifest's parallelism on a small model with real tensors, checked against an unsharded run."""

from dataclasses import dataclass
from json import dumps as dump_json
from math import isfinite
from pathlib import Path
from typing import Any

from cli.execute_clock import clock_json, clock_rows, show_clock, show_iteration
from cli.options import JSON, File, takes
from cli.output import Outputs, Screen, print_json
from ground.errors import BadInput, ExitCode
from ground.files import write_files
from ground.units import format_count, format_duration, parse_duration
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from podplan.options import Flags, Text, argument, flag, flag_name, switch
from podplan.readers import read_choice
from podplan.result import picked
from runtime.execute.check import TOLERANCE, Report, execute as run_check, groups_with_four
from runtime.execute.faults import Recovered, execute_with_drop, parse_drop
from runtime.execute.mpi import MpiLoop, connect
from runtime.execute.run import Settings
from runtime.execute.timeline import chrome_trace, clocked_iteration
from runtime.execute.transport import RankFailed, Stuck

MOST_ITERATIONS = 64
MOST_SEED = 2**32
OF_A_WHOLE_RUN = ("clock", "timeline", "transport")
SHOWN_POSITIONS = 10
INSTANCE = "role=layout.pool.role strategy=layout.pool.strategy drafts"
EXCHANGE = (
    "role pairs=plain.all_pairs pairs_met_by_the_run=natural pairs_met_by_forced_routes=plain.pairs "
    "forced_tokens=plain.tokens largest_difference=plain.difference "
    "int8_messages_largest_error=quantised.difference int8_messages_error_over_bound=quantised.bound_used"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteFlags(Flags):
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
def command(flags: ExecuteFlags, json: bool = JSON) -> int:
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
    if not 1 <= flags.iterations <= MOST_ITERATIONS:
        raise BadInput(f"--iterations: {flags.iterations} must be from 1 to {MOST_ITERATIONS}")
    if not 0 <= flags.seed < MOST_SEED:
        raise BadInput(f"--seed: {flags.seed} must be from 0 to {MOST_SEED - 1}")
    settings = Settings(iterations=flags.iterations, seed=flags.seed, int8=flags.int8)
    limit_seconds = parse_duration(flags.timeout, "--timeout")
    plan = read_manifest(flags.manifest)
    if flags.drop is not None:
        how = flags.recover or "shrink"
        recovered = execute_with_drop(plan, settings, parse_drop(flags.drop, how))
        print_json(recovery_json(recovered)) if json else show_recovery(recovered, how)
        return ExitCode.DONE if recovered.compared.equal else ExitCode.FAULT
    report = _run(plan, settings, flags.transport, limit_seconds)
    if report is None:
        return ExitCode.DONE
    rows = clock_rows(plan) if flags.clock else []
    iteration = clocked_iteration(plan, settings) if flags.clock or flags.timeline else None
    if flags.timeline and iteration:
        write_files({flags.timeline: dump_json(chrome_trace(iteration)) + "\n"}, force=flags.force)
    timed = iteration if flags.clock else None
    if json:
        clocked = {"clock": clock_json(rows), "iteration": picked(timed, "seconds layers collectives")} if timed else {}
        print_json(report_json(report) | clocked)
    else:
        show_report(report)
        if timed:
            show_clock(rows)
            show_iteration(timed)
    return ExitCode.DONE if report.equal else ExitCode.FAULT


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
    Outputs(flags.force, {"--timeline FILE": flags.timeline})
    if flags.recover is not None and flags.drop is None:
        raise BadInput("--recover says what follows a lost rank; give --drop RANK@ITERATION with it or leave it out")
    read_choice(flags.transport, "--transport", ("local", "mpi"))
    for name in OF_A_WHOLE_RUN:
        if flags.drop is not None and getattr(flags, name) not in (False, None, "local"):
            raise BadInput(f"{flag_name(name)}: is for a run without a loss; leave it or --drop out")


def report_json(report: Report) -> dict[str, Any]:
    """Return what was checked and what came out, for `--json`."""
    world, compared = report.world, report.compared
    lengths = [len(prompt) for prompt in world.prompts]
    return {
        "equal": report.equal,
        "tolerance": TOLERANCE,
        "model": world.decode.small.source.name,
        "layers": list(world.decode.small.layers),
        "left_out": world.decode.small.left_out,
        "int8": world.settings.int8,
        "seed": world.settings.seed,
        "instances": [picked(setup, INSTANCE) | {"ranks": len(setup.layout.places)} for setup in world.instances],
        "prompts": len(world.prompts),
        "prompt_tokens": {"min": min(lengths), "max": max(lengths)},
        "decode_groups": len(world.decode.layout.dp_groups()),
        "decode_groups_with_four_lengths": groups_with_four(world),
        "iterations": world.settings.iterations,
        **picked(compared, "tokens drafts accepted_drafts"),
        **picked(compared, "largest_logit_difference=logit_difference largest_draft_difference=draft_difference"),
        "wrong_tokens": len(compared.wrong),
        "wrong": [list(at) for at in compared.wrong[:SHOWN_POSITIONS]],
        "too_close_to_call": [list(at) for at in compared.close],
        "closest_token_margin": compared.closest_token if isfinite(compared.closest_token) else None,
        "closest_expert_margin": compared.closest_expert if isfinite(compared.closest_expert) else None,
        "exchanges": [picked(swept, EXCHANGE) for swept in report.swept],
        "wall_seconds": report.seconds,
    }


def show_report(report: Report) -> None:
    """Print what was checked, the largest difference, and what was too close to call."""
    data, world, compared = report_json(report), report.world, report.compared
    verdict = "computes the same model" if report.equal else "DIFFERS from the unsharded model"
    pools = [setup.layout.pool for setup in (world.prefill, world.decode)]
    Screen().grid(
        list(zip(data["instances"], pools, strict=False)),
        {
            "instance": lambda at: at[0]["role"],
            "strategy": lambda at: at[0]["strategy"],
            ">ranks": lambda at: str(at[0]["ranks"]),
            ">microbatches": lambda at: str(at[1].microbatches),
            ">drafts": lambda at: str(at[0]["drafts"]),
        },
        f"{data['model']}, small: the plan {verdict}",
    )
    low, high = data["prompt_tokens"]["min"], data["prompt_tokens"]["max"]
    kind = "INT8 with a scale per token and output channel" if data["int8"] else "float64"
    lines = [
        f"Layers {', '.join(map(str, data['layers']))} of the checkpoint, every expert and slot, widths small; {kind}.",
        f"{data['prompts']} prompts of {low} to {high} tokens; {data['decode_groups_with_four_lengths']} of "
        f"{data['decode_groups']} decode groups have four of different lengths, the others one or more.",
        f"{format_count(compared.tokens)} tokens over {data['iterations']} iterations, {len(compared.wrong)} wrong; "
        f"largest difference of a logit {compared.logit_difference:.1e}, tolerance {TOLERANCE:.0e}.",
    ]
    if data["left_out"]:
        lines.append(f"Left out of the small model: {'; '.join(data['left_out'])}.")
    if compared.drafts:
        lines.append(
            f"{compared.accepted_drafts} of {compared.drafts} drafts accepted; "
            f"largest difference of a draft logit {compared.draft_difference:.1e}."
        )
    if compared.wrong:
        lines.append(f"Wrong at (request, token): {data['wrong']}.")
    lines += [_exchange_line(one) for one in data["exchanges"]]
    close = [tuple(at) for at in compared.close[:SHOWN_POSITIONS]]
    experts = f", experts {compared.closest_expert:.1e}" if isfinite(compared.closest_expert) else ""  # dense: none
    lines += [
        f"Closest decisions: tokens {compared.closest_token:.1e}{experts}; {len(compared.close)} positions too close "
        f"to call{f', (request, token) {close}' if close else ''}.",
        f"{format_duration(report.seconds)} in all.",
    ]
    Screen().lines(*lines)


def _exchange_line(one: dict[str, Any]) -> str:
    bound = one["int8_messages_error_over_bound"]
    quantised = f"; INT8 messages reach {bound:.1%} of their error bound" if bound else ""
    return (
        f"{one['role']}: {one['pairs_met_by_the_run']} of {one['pairs']} pairs of ranks exchanged tokens in the run, "
        f"{one['pairs_met_by_forced_routes']} under forced routes, largest difference {one['largest_difference']:.1e}"
        f"{quantised}."
    )


def recovery_json(recovered: Recovered) -> dict[str, Any]:
    """Return what was lost and what came of it, for `--json`."""
    compared = recovered.compared
    return {
        **picked(compared, "equal tokens largest_logit_difference=logit_difference"),
        "tolerance": TOLERANCE,
        "wrong_tokens": len(compared.wrong),
        "too_close_to_call": [list(at) for at in compared.close],
        **picked(recovered, "lost_ranks moved_requests ranks_after noticed"),
    }


def show_recovery(recovered: Recovered, how: str) -> None:
    """Print what was lost, how the run went on, and whether the answers are still the model's."""
    compared = recovered.compared
    lost = ", ".join(map(str, recovered.lost_ranks))
    went_on = (
        f"Rank {lost} left; {recovered.ranks_after} ranks went on, {len(recovered.moved_requests)} requests were "
        "computed again on them."
        if how == "shrink"
        else "All groups rolled back one iteration and repeated it with every rank."
    )
    verdict = "the answers are the unsharded model's" if compared.equal else "the answers DIFFER"
    Screen().lines(
        f"Noticed: {recovered.noticed}.",
        went_on,
        f"{format_count(compared.tokens)} tokens, {len(compared.wrong)} wrong, largest difference of a logit "
        f"{compared.logit_difference:.1e}, tolerance {TOLERANCE:.0e}: {verdict}.",
    )
