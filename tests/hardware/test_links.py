"""Links between two devices."""

import pytest

from ground.errors import BadInput
from hardware.links import path
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
    link = path(CM384, 0, rank_b)
    assert (link.scope, link.plane) == (scope, plane)
    assert path(CM384, rank_b, 0) == link
    if reached is not None:
        assert link.bandwidth_bytes_per_second == pytest.approx(reached, rel=0.02)
        assert link.latency_seconds == latency


def test_a_mesh_does_not_pool_its_links() -> None:
    """Two cards of an eight-card mesh see one link of 28 GB/s, not the card's 196."""
    assert path(load_hardware("910b"), 0, 5).bandwidth_bytes_per_second < 28e9


def test_a_transfer_costs_latency_and_bytes() -> None:
    """1 MB between the servers of an H100 cluster: 3.7 us + 1e6/(50e9 · 0.71) = 31.9 us."""
    assert path(load_hardware("h100"), 7, 8).transfer_seconds(1e6) == pytest.approx(31.9e-6, rel=0.01)


@pytest.mark.parametrize("ranks", [(3, 3), (-1, 2)])
def test_no_link_to_itself_or_to_nowhere(ranks: tuple[int, int]) -> None:
    """Equal and negative device numbers are refused."""
    with pytest.raises(BadInput, match="two different device numbers"):
        path(CM384, *ranks)
