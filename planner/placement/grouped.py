"""Router groups kept on nodes: which groups share a node, and what no placement that keeps them can better.

With group-limited routing (DeepSeek-V3: a token's experts stand in at most 4 of 8 groups) a group that stays on one
node bounds the nodes that a token travels to. Every node holds equally many groups and slots, so a layer falls into one
placement per node once the groups are assigned. The least maximum of the nodes' lower bounds over all assignments is
the group-constrained bound. The search is optimistic: it takes the assignment that is best by the bounds, places its
nodes, puts what they reached in place of their bounds, and repeats until the best assignment is one that was placed.
"""

from functools import lru_cache
from itertools import combinations
from math import factorial

import numpy as np

from ground.arrays import Floats, Ints
from planner.balance.counts import longest_first_rows, water_filling
from planner.placement.eplb import balanced_packs
from planner.placement.problem import Problem, simple_bounds
from planner.placement.rows import BOLD, SETTLED, search_jointly, settle

_MOST_PARTITIONS = 10_000
_ROUNDS = 12
_STEPS = 400
_SHARPNESS = 16
"""Among partitions with the least maximum, the one with the least sum of this power of the sets' costs is taken."""


@lru_cache(maxsize=32)
def group_sets(groups: int, each: int) -> tuple[Ints, Ints]:
    """Return every set of ``each`` out of ``groups`` groups, [sets, each], and every partition into sets.

    Partitions are [partitions, groups / each] indices of sets; the set with the lowest group left out comes next.
    """
    sets = list(combinations(range(groups), each))
    partitions: list[tuple[tuple[int, ...], frozenset[int]]] = [((), frozenset())]
    for _ in range(groups // each):
        partitions = [
            ((*taken, index), placed | set(members))
            for taken, placed in partitions
            for index, members in enumerate(sets)
            if members[0] == min(set(range(groups)) - placed) and placed.isdisjoint(members)
        ]
    return np.array(sets), np.array([taken for taken, _ in partitions])


def best_partition(costs: Floats, partitions: Ints) -> tuple[Ints, Floats]:
    """Return the sets of the partition with the least maximum cost, [rows, sets taken], and that maximum, [rows].

    Args: ``costs`` from 0, [rows, sets].
    """
    scale = costs.max(axis=1, keepdims=True)
    powers = (costs / np.where(scale > 0, scale, 1.0)) ** _SHARPNESS
    taken = partitions[powers[:, partitions].sum(axis=2).argmin(axis=1)]
    return taken, costs[:, partitions].max(axis=2).min(axis=1)


def group_bound(problem: Problem) -> Floats:
    """Bound on the busiest rank of every map that keeps groups on nodes, [layers], in the unit of the loads."""
    each = problem.groups // problem.nodes
    if _many(problem):
        return simple_bounds(problem.mean_loads, problem.ranks, problem.slots)
    sets, partitions = group_sets(problem.groups, each)
    return best_partition(_set_bounds(problem, sets), partitions)[1]


def _many(problem: Problem) -> bool:
    """Whether the partitions are too many to be tried one by one."""
    each = factorial(problem.groups // problem.nodes)
    alike = int(each**problem.nodes) * factorial(problem.nodes)
    return factorial(problem.groups) > _MOST_PARTITIONS * alike


def keep_groups(problem: Problem) -> Ints:
    """Place with every group on one node, [layers, slots]."""
    each = problem.groups // problem.nodes
    if _many(problem):
        # Many groups: longest first to the nodes, [layers, slots]
        loads = problem.mean_loads
        group_loads = loads.reshape(problem.layers, problem.groups, -1).sum(axis=2)
        members = np.stack([balanced_packs(row, problem.nodes) for row in group_loads])
        layer = np.repeat(np.arange(problem.layers), problem.nodes)
        bound = simple_bounds(loads, problem.ranks, problem.slots)
        held, _ = _place_nodes(problem, layer, members.reshape(len(layer), -1), bound[layer])
        return held.reshape(problem.layers, -1)
    sets, partitions = group_sets(problem.groups, each)
    costs = _set_bounds(problem, sets)
    taken, bound = best_partition(costs, partitions)
    held = np.zeros((*costs.shape, problem.slots // problem.nodes), dtype=np.int64)
    placed = np.zeros(costs.shape, dtype=bool)
    layers = np.arange(problem.layers)
    for _ in range(_ROUNDS):
        new = np.zeros_like(placed)
        new[layers[:, None], taken] = True
        layer, index = np.nonzero(new & ~placed)
        if not len(layer):
            break
        held[layer, index], costs[layer, index] = _place_nodes(problem, layer, sets[index], bound[layer])
        placed[layer, index] = True
        # What was reached stands for the bound, so an assignment that was placed is left only for a better one.
        costs = np.where(costs <= bound[:, None] * (1 + SETTLED), np.minimum(costs, bound[:, None]), costs)
        taken, _ = best_partition(costs, partitions)
    # The best one into sets that were placed; the first partition is always one.
    taken, _ = best_partition(np.where(placed, costs, 1000 * costs.max() + 1.0), partitions)
    return held[layers[:, None], taken].reshape(problem.layers, -1)


def _set_bounds(problem: Problem, sets: Ints) -> Floats:
    """Bound on the busiest rank of a node that holds a set of groups, [layers, sets]."""
    by_group = problem.mean_loads.reshape(problem.layers, problem.groups, -1)
    rows = by_group[:, sets].reshape(problem.layers * len(sets), -1)
    bounds = simple_bounds(rows, problem.ranks // problem.nodes, problem.slots // problem.nodes)
    return bounds.reshape(problem.layers, -1)


def _place_nodes(problem: Problem, layer: Ints, members: Ints, floor: Floats) -> tuple[Ints, Floats]:
    """Place the experts of ``members`` [rows, groups] of a layer on one node: maps [rows, slots] and their peaks."""
    ranks, slots = problem.ranks // problem.nodes, problem.slots // problem.nodes
    size = problem.experts // problem.groups
    experts = (members[..., None] * size + np.arange(size)).reshape(len(layer), -1)
    loads = problem.mean_loads[layer[:, None], experts]
    counts = water_filling(loads, slots, ranks)
    held = longest_first_rows(loads, counts, ranks)
    if problem.slots_per_rank > 1:
        # No node need be better than the layer's bound.
        held = search_jointly(loads, settle(loads, held, floor), floor, _STEPS, kick=BOLD)
    flat = held.reshape(len(layer), -1)
    replicas = np.stack([np.bincount(row, minlength=loads.shape[1]) for row in flat])
    carried = np.take_along_axis(loads / replicas, flat, axis=1).reshape(len(layer), ranks, -1).sum(axis=2)
    return np.take_along_axis(experts, flat, axis=1), carried.max(axis=1)
