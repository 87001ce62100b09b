"""Methods behind one signature: valid maps, never worse than EPLB, near the bound in every regime."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from planner.manifest.loads import check_expert_map, imbalance, rank_loads
from planner.placement.eplb import eplb
from planner.placement.methods import METHODS, place
from planner.placement.problem import Problem
from tests.expert_loads import power_law


@pytest.mark.parametrize(("ranks", "redundant"), [(32, 64), (72, 32), (160, 64)])
@pytest.mark.parametrize("alpha", [0.8])
def test_place_is_never_worse_than_eplb(ranks, redundant, alpha):
    """On 256 experts, from two to ten slots per rank."""
    problem = Problem(loads=power_law(2, 256, alpha), ranks=ranks, redundant=redundant)
    placed = place(problem)
    check_expert_map(placed.slots, 256, ranks)
    theirs = imbalance(rank_loads(problem.loads, eplb(problem), ranks))
    assert (placed.imbalance <= theirs).all()
    assert (placed.imbalance >= placed.lower_bound).all()


@pytest.mark.parametrize(("alpha", "within"), [(0.6, 5e-4), (1.0, 5e-4), (1.2, 3e-3)])
def test_place_reaches_the_bound_where_ranks_hold_many_slots(alpha, within):
    """Nine slots per rank: 0.05 % up to a power law of 1.0, 0.3 % at 1.2, on 12 layers."""
    placed = place(Problem(loads=power_law(12, 256, alpha), ranks=32, redundant=32))
    assert placed.imbalance.mean() <= placed.lower_bound.mean() * (1 + within)


def test_place_with_one_slot_per_rank_is_proven_optimal():
    """One slot per rank makes the counts the whole problem: the map meets its bound."""
    placed = place(Problem(loads=power_law(4, 256, 0.8), ranks=288, redundant=32))
    assert placed.proven.all()
    assert placed.imbalance.mean() == pytest.approx(2.96, rel=0.05)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    experts=st.integers(1, 9),
    ranks=st.integers(1, 5),
    more=st.integers(0, 20),
    zeros=st.booleans(),
    method=st.sampled_from(
        ["auto", *(name for name in METHODS if name not in ("trivial", "groups", "exact", "slices"))]
    ),
)
def test_every_method_makes_a_valid_map(seed, experts, ranks, more, zeros, method):
    """Any divisible number of slots gives a map that passes the check, and twice the same."""
    slots = min(-(-experts // ranks) * ranks + more * ranks, experts * ranks)
    loads = np.random.default_rng(seed).lognormal(0, 2, (2, experts))
    if zeros:
        loads[:, 1::2] = 0
    problem = Problem(loads=loads, ranks=ranks, redundant=slots - experts)
    placed = place(problem, method)
    check_expert_map(placed.slots, experts, ranks)
    assert (placed.slots == place(problem, method).slots).all()
    assert (placed.imbalance >= placed.lower_bound).all()
    assert (placed.lower_bound >= 1 - 1e-9).all()


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_the_expert_with_an_impossible_load_is_named(bad):
    """Negative and non-finite loads are refused with their place."""
    loads = np.ones((2, 4))
    loads[1, 2] = bad
    with pytest.raises(BadInput, match="expert 2 in layer 1"):
        Problem(loads=loads, ranks=2)
    with pytest.raises(BadInput, match="layers x experts"):
        Problem(loads=np.ones(4), ranks=2)
    with pytest.raises(BadInput, match="Layer 1 has no load"):
        Problem(loads=np.array([[1.0, 2.0], [0.0, 0.0]]), ranks=2)
