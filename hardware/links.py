"""Which way data goes between two devices."""

from ground.errors import BadInput
from hardware.spec import HardwareSpec, Scope


def common_scope(hw: HardwareSpec, rank_a: int, rank_b: int) -> Scope:
    """Return the smallest scope that holds both devices, numbered node by node from 0.

    Raises BadInput for equal or negative numbers, or if no scope holds both.
    """
    if rank_a == rank_b or min(rank_a, rank_b) < 0:
        raise BadInput(f"a link needs two different device numbers from 0 up, not {rank_a} and {rank_b}")
    for scope in hw.scopes:
        size = int(scope.devices.value)
        if size == 0 or rank_a // size == rank_b // size:
            return scope
    raise BadInput(f"no scope of hardware {hw.name} holds devices {rank_a} and {rank_b}; add a cluster scope")
