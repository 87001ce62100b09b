"""Loads that change: the sum over slices of the busiest rank, and slices that were not seen."""

from pathlib import Path

import numpy as np
import pytest

from ground.errors import BadInput
from planner.manifest.loads import check_expert_map, imbalance, rank_loads
from planner.placement.eplb import eplb, hottest_first
from planner.placement.loadfiles import read_loads
from planner.placement.methods import hold_out, place
from planner.placement.problem import Problem
from planner.placement.sliced import fewer_slices, search_slices, slice_imbalance

SHARED = Path(__file__).parents[4] / "shared" / "data" / "expert-loads" / "esft_vanilla_lite_counts.csv"


def switching(layers, experts, slices, domains=3, seed=0):
    """Traffic that switches between domains, each with its own popular experts; Poisson counts of 300 per expert."""
    rng = np.random.default_rng(seed)
    popular = rng.lognormal(0, 0.9, (domains, layers, experts))
    shares = popular[rng.integers(domains, size=slices)].transpose(1, 2, 0)
    return rng.poisson(300 * shares / shares.mean(axis=1, keepdims=True)).astype(float)


def test_slice_imbalance_of_one_slice_is_the_imbalance():
    """And of equal slices too."""
    loads = switching(2, 16, 1)
    slots = np.tile(np.arange(16), (2, 1))
    once = imbalance(rank_loads(loads[:, :, 0], slots, 4))
    assert np.allclose(slice_imbalance(loads, slots, 4), once)
    assert np.allclose(slice_imbalance(np.repeat(loads, 3, axis=2), slots, 4), once)


def test_the_search_never_loses_and_keeps_maps_valid():
    """From EPLB's map, the sum over slices only falls; with nodes, experts stay on theirs."""
    loads = switching(3, 32, 6)
    problem = Problem(loads=loads, ranks=8, redundant=8, nodes=2, groups=4, keep_groups=True)
    start = eplb(problem)
    for within in (None, 4):
        found = search_slices(loads, start.reshape(3, 8, -1), steps=150, node_ranks=within).reshape(3, -1)
        check_expert_map(found, 32, 8)
        assert (slice_imbalance(loads, found, 8) <= slice_imbalance(loads, start, 8) * (1 + 1e-12)).all()
        if within:
            nodes, before = (np.sort(slots.reshape(3, 2, -1), axis=2) for slots in (found, start))
            assert all(set(a) == set(b) for x, y in zip(nodes, before, strict=True) for a, b in zip(x, y, strict=True))


def test_unseen_slices_of_switching_traffic_are_better_than_eplbs():
    """Placed on every second slice, the others show at least a tenth less imbalance than under EPLB."""
    problem = Problem(loads=switching(4, 64, 24), ranks=8, redundant=8)
    result = hold_out(problem, "alternate")
    assert result.gain >= 0.1
    assert result.seen.mean() <= result.unseen.mean()
    with pytest.raises(BadInput, match="--holdout"):
        hold_out(Problem(loads=problem.mean_loads, ranks=8, redundant=8), "later")


@pytest.mark.skipif(not SHARED.exists(), reason="the published loads are not here")
def test_published_loads_switching_domains():
    """ESFT, 26 layers of 64 experts, four domains: at least 10 % below EPLB on slices that were held out."""
    loads = read_loads(SHARED).loads
    assert loads.shape == (26, 64, 64) and loads[0, :3, 0].tolist() == [33, 38, 47]
    problem = Problem(loads=loads[:8], ranks=16, redundant=16)
    assert hold_out(problem, "alternate").gain >= 0.1


def test_the_bound_with_slices_is_below_what_is_reached():
    """Every slice with its own map could be no better."""
    problem = Problem(loads=switching(3, 16, 5), ranks=4, redundant=4)
    placed = place(problem)
    assert placed.method == "slices"
    assert (placed.lower_bound >= 1).all() and (placed.lower_bound <= placed.imbalance).all()
    assert (placed.imbalance <= slice_imbalance(problem.loads, eplb(problem), 4) + 1e-12).all()


def test_neighbouring_slices_are_added_up():
    """A thousand recorder steps become few slices with the same sum."""
    loads = switching(1, 4, 1000)
    fewer = fewer_slices(loads)
    assert fewer.shape[2] == 64
    assert np.allclose(fewer.sum(axis=2), loads.sum(axis=2))


def test_xdeepserve_replicates_what_lowers_the_sum_of_hottest_loads_most():
    """Section 4.5 by hand: expert 0 leads one slice by far, expert 1 two slices by little."""
    loads = np.array([[90.0, 1.0, 1.0], [10.0, 30.0, 30.0], [5.0, 20.0, 20.0], [5.0, 1.0, 1.0]])
    assert hottest_first(loads, 5, 4).tolist() == [2, 1, 1, 1]  # 90 -> 45 beats 30 -> 20 twice
    assert hottest_first(loads, 6, 4).tolist() == [2, 2, 1, 1]  # 30 -> 20 twice beats 45 -> 30
