"""Links between two devices."""

import pytest

from ground.errors import BadInput
from hardware.links import common_scope
from hardware.loader import load_hardware

CM384 = load_hardware("cm384")


@pytest.mark.parametrize(
    ("rank_b", "scope", "plane", "reached", "latency"),
    [
        (1, "package", "sio", None, None),
        (2, "node", "ub", 167e9, 1.2e-6),
        (15, "node", "ub", 167e9, 1.2e-6),
        (16, "supernode", "ub", 164e9, 1.9e-6),
        (768, "cluster", "rdma", None, None),
    ],
)
def test_the_smallest_scope_that_holds_both_carries_the_data(rank_b, scope, plane, reached, latency):
    """From die 0: its package, its node, the supernode, then RDMA (arXiv 2506.12708, section 3); a read between two
    NPUs reaches what Table 1 has.
    """
    found = common_scope(CM384, rank_b, 0)
    assert (found.name, found.plane) == (scope, plane)
    if reached is not None:
        efficiency = CM384.plane(plane).efficiency.value
        assert found.bandwidth_bytes_per_second.value * efficiency == pytest.approx(reached, rel=0.02)
        assert found.latency_seconds.value == latency


@pytest.mark.parametrize("ranks", [(3, 3), (-1, 2)])
def test_no_link_to_itself_or_to_nowhere(ranks: tuple[int, int]) -> None:
    """Equal and negative device numbers are refused."""
    with pytest.raises(BadInput, match="two different device numbers"):
        common_scope(CM384, *ranks)
