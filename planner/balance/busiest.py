"""Static factors of many expert layouts at once: what ``imbalance.static_factor`` gives one by one.

A search asks for hundreds of layouts of one model, so what they have in common is computed once, and each replica costs
one step of a heap.
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.balance.counts import check_redundancy, replica_counts
from planner.balance.imbalance import drifted_loads, static_factor
from planner.balance.skew import LoadDistribution, quantile_loads

Layout = tuple[int, int]
"""Expert-parallel ranks, and slots beyond one per expert in all."""
_FEW = 8
_MOST_REPLICAS = 32
"""Of one expert, before the greedy count is asked instead."""


def static_factors(
    experts: int, layouts: Sequence[Layout], distribution: LoadDistribution, balanced: bool
) -> NDArray[np.float64]:
    """Return ``static_factor`` of every layout, [layouts].

    Raises:
        BadInput: the slots of a layout do not fit its ranks.
    """
    if not balanced or len(layouts) < _FEW:
        return np.array([static_factor(experts, *layout, distribution, balanced) for layout in layouts])
    for ranks, redundant in layouts:
        check_redundancy(experts, ranks, redundant)
    past, present = quantile_loads(distribution, experts), drifted_loads(distribution, experts)
    draws = np.ascontiguousarray(present.T)  # [experts, draws]
    result = np.empty(len(layouts))
    for number, (ranks, redundant) in enumerate(layouts):
        counts = _replica_counts(past, ranks, redundant)
        slots = _place(past, counts, ranks)
        if slots is None:  # one of the rare layouts in which LPT has to exchange experts to avoid a repetition
            result[number] = static_factor(experts, ranks, redundant, distribution, balanced)
            continue
        per_slot = (draws / counts[:, None])[slots]  # [slots, draws]
        busiest = per_slot.reshape(ranks, -1, per_slot.shape[1]).sum(axis=1).max(axis=0)
        result[number] = float(busiest.mean()) * ranks / experts
    return result


def _replica_counts(loads: NDArray[np.float64], ranks: int, redundant: int) -> NDArray[np.int64]:
    """Counts of ``placement.replica_counts``: the further slots go to the largest of w_i / 1, w_i / 2, ..."""
    if not redundant:
        return np.ones(loads.size, dtype=np.int64)
    most = min(ranks - 1, redundant, _MOST_REPLICAS)
    shares = (loads[:, None] / np.arange(1.0, most + 1)).ravel()  # [experts * replicas so far]
    largest = np.argpartition(shares, -redundant)[-redundant:]
    counts = 1 + np.bincount(largest // most, minlength=loads.size)
    reached = most == _MOST_REPLICAS and counts.max() > most
    return replica_counts(loads, loads.size + redundant, ranks) if reached else counts


def _place(loads: NDArray[np.float64], counts: NDArray[np.int64], ranks: int) -> NDArray[np.int64] | None:
    """Experts of a layout's slots, rank by rank; None where LPT finds a replica no rank without its expert."""
    experts, weights = _replicas(loads, counts)
    placed = _halves(experts, ranks)
    if placed is not None:
        return placed
    chosen = _lightest_first(experts.tolist(), weights.tolist(), ranks)
    return None if chosen is None else experts[np.argsort(chosen, kind="stable")]


def _halves(experts: NDArray[np.int64], ranks: int) -> NDArray[np.int64] | None:
    """With one or two slots a rank: the n-th heaviest replica beside the n-th lightest. None where that is not LPT."""
    if len(experts) == ranks:
        return experts
    if len(experts) > 2 * ranks or experts[ranks - 1] == experts[ranks]:  # an expert that must not meet itself
        return None
    return np.stack([experts[:ranks], experts[: ranks - 1 : -1]], axis=1).ravel()


def _lightest_first(experts: list[int], weights: list[float], ranks: int) -> list[int] | None:
    """The rank of each replica: the lightest that has a slot left and not its expert, of equal ones the first.

    Replicas come by falling weight, those of one expert one after the other, so the first of them take a rank each, and
    only the expert that a rank got last can be its own. None where no rank is left for a replica.
    """
    chosen, last, held = list(range(ranks)), experts[:ranks], [1] * ranks
    open_ranks = sorted((weight, rank) for rank, weight in enumerate(weights[:ranks]))  # sorted is a heap
    slots = len(experts) // ranks
    for expert, weight in zip(experts[ranks:], weights[ranks:], strict=True):
        aside = []
        while open_ranks and last[open_ranks[0][1]] == expert:
            aside.append(heapq.heappop(open_ranks))
        if not open_ranks:
            return None
        total, rank = open_ranks[0]
        chosen.append(rank)
        last[rank] = expert
        held[rank] += 1
        if held[rank] < slots:
            heapq.heapreplace(open_ranks, (total + weight, rank))
        else:
            heapq.heappop(open_ranks)
        for each in aside:
            heapq.heappush(open_ranks, each)
    return chosen


def _replicas(loads: NDArray[np.float64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Experts of all replicas by falling load, and those loads, [slots]."""
    per_replica = loads / counts
    order = np.argsort(-per_replica, kind="stable")
    experts = np.repeat(order, counts[order])
    return experts, per_replica[experts]
