"""Groups kept on nodes: the assignment against every assignment, and how near the bound the maps come."""

import itertools

import numpy as np
import pytest

from ground.errors import BadInput
from planner.manifest.loads import check_expert_map, imbalance, rank_loads
from planner.placement.eplb import eplb
from planner.placement.grouped import best_partition, group_sets
from planner.placement.methods import place
from planner.placement.problem import Problem
from tests.expert_loads import power_law


def deepseek(layers, alpha, redundant=32):
    """256 experts in 8 groups on 32 devices in 4 nodes."""
    loads = power_law(layers, 256, alpha)
    return Problem(loads=loads, ranks=32, redundant=redundant, nodes=4, groups=8, keep_groups=True)


def test_the_best_partition_is_the_best_of_all():
    """Against all 105 ways to put 8 groups into pairs, and all 10 ways to put 6 into triples."""
    rng = np.random.default_rng(3)
    for groups, each in ((8, 2), (6, 3)):
        sets, partitions = group_sets(groups, each)
        costs = rng.random((20, len(sets)))
        taken, peak = best_partition(costs, partitions)
        every = [
            chosen
            for chosen in itertools.combinations(range(len(sets)), groups // each)
            if len({g for index in chosen for g in sets[index]}) == groups
        ]
        best = costs[:, np.array(every)].max(axis=2).min(axis=1)
        assert np.allclose(peak, best)
        for row in taken:
            assert sorted(g for index in row for g in sets[index]) == list(range(groups))


@pytest.mark.parametrize(("alpha", "within"), [(0.6, 1.01), (0.8, 1.01), (1.2, 1.05)])
def test_maps_are_near_the_group_constrained_bound(alpha, within):
    """1 % up to a power law of 0.8, 5 % at 1.2, on 12 layers; groups stay, and no layer is worse than EPLB."""
    problem = deepseek(12, alpha)
    placed = place(problem)
    check_expert_map(placed.slots, 256, 32)
    homes = (placed.slots // 32).reshape(12, 4, -1)
    assert all(len(np.unique(node)) == 2 for layer in homes for node in layer)
    assert placed.imbalance.mean() <= placed.lower_bound.mean() * within
    theirs = imbalance(rank_loads(problem.loads, eplb(problem), 32))
    assert (placed.imbalance <= theirs * (1 + 1e-12)).all()


def test_more_groups_than_can_be_enumerated_are_packed():
    """32 groups on 4 nodes: longest first to the nodes, still a valid map that keeps them."""
    loads = power_law(2, 256, 0.6)
    problem = Problem(loads=loads, ranks=32, redundant=32, nodes=4, groups=32, keep_groups=True)
    slots = place(problem).slots
    homes = (slots // 8).reshape(2, 4, -1)
    assert all(len(np.unique(node)) == 8 for layer in homes for node in layer)


def test_groups_that_do_not_divide_are_refused():
    """8 groups on 3 nodes; 5 groups of 256 experts."""
    loads = power_law(1, 256, 0.6)
    with pytest.raises(BadInput, match="--keep-groups: 8 groups"):
        Problem(loads=loads, ranks=36, redundant=32, nodes=3, groups=8, keep_groups=True)
    with pytest.raises(BadInput, match="--groups 5"):
        Problem(loads=loads, ranks=32, redundant=0, groups=5)
    with pytest.raises(BadInput, match="--nodes 5"):
        Problem(loads=loads, ranks=32, redundant=0, nodes=5)
