"""The flags of `plan execute`: which may stand together, and what they ask to run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cli.flags import flag_name
from cli.options import File, Text, argument, option, switch
from cli.output import check_force
from ground.errors import BadInput
from ground.files import check_file
from runtime.execute.plan import Choices
from runtime.execute.run import Settings

MOST_ITERATIONS = 64
MOST_SEED = 2**32
OF_A_WHOLE_RUN = ("clock", "timeline", "transport")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteFlags:
    """Flags as they were typed; None where one was not given."""

    manifest: Annotated[Path, argument("MANIFEST", "The manifest, such as out/manifest.yaml.")]
    iterations: Annotated[int, option("--iterations", "N", "Decode iterations, 1 to 64.")] = 8
    int8: Annotated[bool, switch("--int8", "INT8 matrices, activations and dispatch messages.")] = False
    seed: Annotated[int, option("--seed", "N", "Seed of weights and prompts.")] = 0
    clock: Annotated[
        bool, switch("--clock", "Time the plan's collectives on a virtual clock, beside closed forms.")
    ] = False
    timeline: Annotated[
        File, option("--timeline", "FILE", "Write one decode iteration on the clock as a Chrome trace.")
    ] = None
    force: Annotated[bool, switch("--force", "Replace the timeline's file.")] = False
    drop: Annotated[
        Text, option("--drop", "RANK@ITERATION", "Lose a decode rank before an iteration, and recover.")
    ] = None
    recover: Annotated[
        Text,
        option("--recover", "NAME", "With --drop, shrink: go on without the rank; rollback: repeat with it [shrink]."),
    ] = None
    transport: Annotated[
        str, option("--transport", "NAME", "local: all ranks in this process; mpi: in those that mpirun started.")
    ] = "local"
    timeout: Annotated[str, option("--timeout", "DURATION", "How long MPI ranks wait before the run ends.")] = "60s"


def check_together(flags: ExecuteFlags) -> None:
    """Raise BadInput where flags contradict each other, or a file is in the way."""
    check_force(flags.force, {"--timeline FILE": flags.timeline})
    if flags.timeline is not None:
        check_file(flags.timeline, force=flags.force, flag="--timeline")
    if flags.recover is not None and flags.drop is None:
        raise BadInput("--recover says what follows a lost rank; give --drop RANK@ITERATION with it or leave it out")
    if flags.transport not in ("local", "mpi"):
        raise BadInput(f"--transport: {flags.transport[:40]!r} must be local or mpi")
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
