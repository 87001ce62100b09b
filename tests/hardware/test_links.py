"""Links between two devices."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ground.errors import BadInput
from hardware.links import path
from hardware.loader import load_hardware

CM384 = load_hardware("cm384")


@pytest.mark.parametrize(
    ("rank_b", "scope", "plane"),
    [(1, "package", "sio"), (2, "node", "ub"), (15, "node", "ub"), (16, "supernode", "ub"), (768, "cluster", "rdma")],
)
def test_the_smallest_scope_that_holds_both_carries_the_data(rank_b: int, scope: str, plane: str) -> None:
    """From die 0: its package, its node, the supernode, then RDMA (arXiv 2506.12708, section 3)."""
    link = path(CM384, 0, rank_b)
    assert (link.scope, link.plane) == (scope, plane)


def test_unified_bus_reaches_what_was_measured() -> None:
    """A read between two NPUs reaches 167 GB/s at 1.2 us in a node, 164 at 1.9 across (arXiv 2506.12708, Table 1)."""
    near, far = path(CM384, 0, 2), path(CM384, 0, 16)
    assert near.bandwidth_bytes_per_second == pytest.approx(167e9, rel=0.01)
    assert far.bandwidth_bytes_per_second == pytest.approx(164e9, rel=0.02)
    assert (near.latency_seconds, far.latency_seconds) == (1.2e-6, 1.9e-6)


def test_a_mesh_does_not_pool_its_links() -> None:
    """Two cards of an eight-card mesh see one link of 28 GB/s, not the card's 196."""
    assert path(load_hardware("910b"), 0, 5).bandwidth_bytes_per_second < 28e9


def test_a_transfer_costs_latency_and_bytes() -> None:
    """1 MB between the servers of an H100 cluster: 3.7 us + 1e6/(50e9 · 0.71) = 31.9 us."""
    assert path(load_hardware("h100"), 7, 8).transfer_seconds(1e6) == pytest.approx(31.9e-6, rel=0.01)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 767), st.integers(0, 767))
def test_a_link_is_the_same_both_ways(rank_a: int, rank_b: int) -> None:
    """Direction does not change the way."""
    if rank_a != rank_b:
        assert path(CM384, rank_a, rank_b) == path(CM384, rank_b, rank_a)


@pytest.mark.parametrize("ranks", [(3, 3), (-1, 2)])
def test_no_link_to_itself_or_to_nowhere(ranks: tuple[int, int]) -> None:
    """Equal and negative device numbers are refused."""
    with pytest.raises(BadInput, match="two different device numbers"):
        path(CM384, *ranks)
