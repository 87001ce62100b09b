"""Lower bounds on the busiest rank, against every map of small instances."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from planner.balance.counts import replica_counts
from planner.placement.methods import place
from planner.placement.problem import Problem, simple_bounds, water_level
from tests.expert_loads import brute_force, power_law

SMALL = [
    (6, 2, 0),
    (6, 3, 0),
    (8, 2, 0),
    (5, 2, 1),
    (3, 3, 3),
    (6, 2, 2),
    (4, 3, 2),
    (6, 3, 3),
    (5, 5, 5),
    (7, 4, 1),
    (4, 4, 8),
    (5, 3, 4),
]


@pytest.mark.parametrize(("experts", "ranks", "redundant"), SMALL)
def test_bounds_and_maps_lie_on_their_sides_of_the_optimum(experts, ranks, redundant):
    """600 random instances, half of them with ties and idle experts: no bound above, no map below the best of all maps.

    On average the default is within 3 % of the best of every shape.
    """
    rng = np.random.default_rng(experts * 100 + ranks * 10 + redundant)
    smooth = np.exp(rng.standard_normal((25, experts)))
    ties = rng.integers(0, 4, (25, experts)).astype(float)
    ties[:, 0] += 1
    loads = np.concatenate([smooth, ties])
    placed = place(Problem(loads=loads, ranks=ranks, redundant=redundant))
    best = brute_force(loads, ranks, redundant)
    assert (placed.lower_bound <= best * (1 + 1e-9)).all()
    assert (placed.imbalance >= best * (1 - 1e-9)).all()
    assert (placed.imbalance / best).mean() <= 1.03


@pytest.mark.parametrize(("experts", "ranks", "redundant"), [(5, 2, 1), (4, 3, 2), (6, 3, 3)])
def test_the_integer_programme_finds_the_best_of_all_maps(experts, ranks, redundant):
    """Counts and positions together, against enumeration; larger layers are refused."""
    loads = np.random.default_rng(experts).lognormal(0, 1, (3, experts))
    placed = place(Problem(loads=loads, ranks=ranks, redundant=redundant), "exact")
    assert placed.imbalance == pytest.approx(brute_force(loads, ranks, redundant), rel=1e-6)
    with pytest.raises(BadInput, match="--method: exact"):
        place(Problem(loads=np.ones((1, 64)), ranks=8), "exact")


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), experts=st.integers(2, 40), ranks=st.integers(1, 12), more=st.integers(0, 60))
def test_the_water_level_is_what_water_filling_reaches(seed, experts, ranks, more):
    """The closed form and the greedy counts agree."""
    loads = np.random.default_rng(seed).lognormal(0, 1.5, (1, experts))
    slots = experts + min(more, experts * (ranks - 1))
    reached = (loads[0] / replica_counts(loads[0], slots, ranks)).max()
    assert water_level(loads, slots, ranks)[0] == pytest.approx(reached, rel=1e-12)


def test_the_filler_bound_is_what_closes_part_of_the_gap_at_two_slots():
    """Published in the project's reference measurements: at 288 slots on 144 ranks it is above the water level."""
    loads = power_law(4, 256, 1.0)
    level = water_level(loads, 288, 144)
    assert (simple_bounds(loads, 144, 288) > np.maximum(level, loads.sum(axis=1) / 144) * 1.01).any()
