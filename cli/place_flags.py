"""From the flags of `plan place` to one problem; every refusal names the flag and what would be right."""

from dataclasses import dataclass

from planner.placement.loadfiles import LoadFile
from planner.placement.problem import Problem
from podplan.errors import BadInput
from podplan.units import parse_count

MOST_DEVICES = 4096
MOST_SLOTS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFlags:
    """Flags as they were typed; None where one was not given."""

    devices: str
    nodes: str | None = None
    redundant_experts: str | None = None
    slots_per_device: str | None = None
    groups: str | None = None
    keep_groups: bool = False


def read_problem(flags: PlaceFlags, read: LoadFile) -> Problem:
    """Return what is to be placed; BadInput naming the flag."""
    ranks = parse_count(flags.devices, "--devices")
    if ranks > MOST_DEVICES:
        raise BadInput(f"--devices: {ranks} are more than the {MOST_DEVICES} that experts are placed on")
    experts = read.loads.shape[1]
    redundant = _redundant(flags, experts, ranks)
    if experts + redundant > MOST_SLOTS:
        raise BadInput(
            f"--redundant-experts: {experts + redundant} slots are more than the {MOST_SLOTS} that are placed"
        )
    return Problem(
        loads=read.loads,
        ranks=ranks,
        redundant=redundant,
        nodes=1 if flags.nodes is None else parse_count(flags.nodes, "--nodes"),
        groups=1 if flags.groups is None else parse_count(flags.groups, "--groups"),
        keep_groups=flags.keep_groups,
    )


def _redundant(flags: PlaceFlags, experts: int, ranks: int) -> int:
    if flags.slots_per_device is None:
        if flags.redundant_experts is None:
            return -experts % ranks
        return parse_count(flags.redundant_experts, "--redundant-experts", allow_zero=True)
    if flags.redundant_experts is not None:
        raise BadInput("--redundant-experts and --slots-per-device both give the slots; leave one of them out")
    slots = parse_count(flags.slots_per_device, "--slots-per-device")
    if not experts <= slots * ranks or slots > experts:
        least = -(-experts // ranks)
        raise BadInput(f"--slots-per-device: {slots} must be from {least}, where {experts} experts fit, to {experts}")
    return slots * ranks - experts
