"""Replica counts: what slots allow, and water-filling."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from planner.balance.counts import check_redundancy, longest_first, replica_counts
from planner.manifest.loads import check_expert_map


@settings(max_examples=30, deadline=None)
@given(loads=st.lists(st.floats(0.0, 100.0), min_size=2, max_size=5), extra=st.integers(0, 5), most=st.integers(2, 4))
def test_replica_counts_minimise_the_busiest_replica(loads, extra, most):
    """Greedy water-filling reaches the least max w/r of all counts with the sum and the cap."""
    weights = np.array(loads)
    slots = min(len(loads) + extra, len(loads) * most)
    counts = replica_counts(weights, slots, most)
    assert counts.sum() == slots
    assert counts.min() >= 1
    assert counts.max() <= most
    every = (np.array(c) for c in itertools.product(range(1, most + 1), repeat=len(loads)) if sum(c) == slots)
    assert (weights / counts).max() <= min((weights / c).max() for c in every) * (1 + 1e-12)


def test_replica_counts_of_equal_loads_are_equal():
    """Without a favourite, no expert gets a second spare before all have one; even when nothing was measured."""
    assert replica_counts(np.ones(4), 8, 8).tolist() == [2, 2, 2, 2]
    assert replica_counts(np.zeros(4), 8, 8).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("experts", "ranks", "redundant", "message"),
    [
        (256, 32, 30, r"--redundant-experts 30 .*; 0 or 32 would do"),
        (256, 48, 0, r"--redundant-experts 0 .*; 32 would do"),
        (8, 4, 28, r"--redundant-experts 28 must be between 0 and 24"),
        (8, 4, -4, r"--redundant-experts -4 must be between 0 and 24"),
        (8, 1, 8, r"must be between 0 and 0"),
    ],
)
def test_check_redundancy_names_values_that_fit(experts, ranks, redundant, message):
    """Slots that do not divide, and more replicas than ranks, are refused with what would be right."""
    with pytest.raises(BadInput, match=message):
        check_redundancy(experts, ranks, redundant)


def test_longest_first_makes_room_when_only_one_rank_is_open():
    """A replica whose last open rank has the expert already moves another expert out of its way."""
    loads = np.array([100.0, 3.0, 2.0, 1.0, 0.5])
    held = longest_first(loads, np.array([1, 1, 1, 1, 2]), 2)
    check_expert_map(held.reshape(1, -1), 5, 2)
