"""Which way data goes between two devices, and how fast."""

from dataclasses import dataclass

from ground.errors import BadInput
from hardware.spec import HardwareSpec, Scope, ScopeName


@dataclass(frozen=True, slots=True)
class Link:
    """The way between two devices; the bandwidth is what one large one-way transfer reaches."""

    scope: ScopeName
    plane: str
    latency_seconds: float
    bandwidth_bytes_per_second: float

    def transfer_seconds(self, transfer_bytes: float) -> float:
        """Return latency + bytes/bandwidth."""
        return self.latency_seconds + transfer_bytes / self.bandwidth_bytes_per_second


def path(hw: HardwareSpec, rank_a: int, rank_b: int) -> Link:
    """Return the link between two different devices, numbered node by node from 0.

    It is the one of the smallest scope that holds both: bandwidth = scope's bandwidth (in a mesh, of one pair)
    · efficiency of the scope's plane. Raises BadInput for equal or negative numbers, or if no scope holds both.
    """
    if rank_a == rank_b or min(rank_a, rank_b) < 0:
        raise BadInput(f"a link needs two different device numbers from 0 up, not {rank_a} and {rank_b}")
    scope = common_scope(hw, rank_a, rank_b)
    plane = hw.plane(scope.plane)
    nominal = scope.bandwidth_bytes_per_second
    if scope.topology == "mesh" and scope.pair_bandwidth_bytes_per_second is not None:
        nominal = scope.pair_bandwidth_bytes_per_second
    return Link(
        scope=scope.name,
        plane=scope.plane,
        latency_seconds=scope.latency_seconds.value,
        bandwidth_bytes_per_second=nominal.value * plane.efficiency.value,
    )


def common_scope(hw: HardwareSpec, rank_a: int, rank_b: int) -> Scope:
    """Return the smallest scope that holds both devices; BadInput where none does."""
    for scope in hw.scopes:
        size = int(scope.devices.value)
        if size == 0 or rank_a // size == rank_b // size:
            return scope
    raise BadInput(f"no scope of hardware {hw.name} holds devices {rank_a} and {rank_b}; add a cluster scope")
