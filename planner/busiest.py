"""Static factors of many expert layouts at once: what ``imbalance.static_factor`` gives one by one.

A search asks for hundreds of layouts of one model. Longest processing time first is sequential over replicas but
not over layouts, so all layouts place their next replica in one array operation.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.imbalance import drifted_loads, static_factor
from planner.placement.counts import check_redundancy, replica_counts
from planner.skew import LoadDistribution, quantile_loads

Layout = tuple[int, int]
"""Expert-parallel ranks, and slots beyond one per expert in all."""
_FEW = 8
_MOST_REPLICAS = 32
"""Of one expert, before the greedy count is asked instead."""
_NONE = -1


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
    counts = [_replica_counts(past, ranks, redundant) for ranks, redundant in layouts]
    placed = _place(past, counts, [ranks for ranks, _ in layouts])
    result = np.empty(len(layouts))
    for number, ((ranks, redundant), own, slots) in enumerate(zip(layouts, counts, placed, strict=True)):
        if slots is None:  # one of the rare layouts in which LPT has to exchange experts to avoid a repetition
            result[number] = static_factor(experts, ranks, redundant, distribution, balanced)
            continue
        per_slot = (present / own)[:, slots]  # [draws, slots]
        busiest = per_slot.reshape(per_slot.shape[0], ranks, -1).sum(axis=2).max(axis=1)
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


def _place(
    loads: NDArray[np.float64], counts: Sequence[NDArray[np.int64]], ranks: Sequence[int]
) -> list[NDArray[np.int64] | None]:
    """Experts of every layout's slots, rank by rank; None where LPT finds a replica no rank without its expert."""
    order = [_replicas(loads, own) for own in counts]
    placed = [_halves(experts, each) for (experts, _), each in zip(order, ranks, strict=True)]
    many = [number for number, own in enumerate(placed) if own is None]
    if many:
        found = _lightest_first([order[number] for number in many], [ranks[number] for number in many])
        for number, own in zip(many, found, strict=True):
            placed[number] = own
    return placed


def _halves(experts: NDArray[np.int64], ranks: int) -> NDArray[np.int64] | None:
    """With one or two slots a rank: the n-th heaviest replica beside the n-th lightest. None where that is not LPT."""
    if len(experts) == ranks:
        return experts
    if len(experts) > 2 * ranks or experts[ranks - 1] == experts[ranks]:  # an expert that must not meet itself
        return None
    return np.stack([experts[:ranks], experts[: ranks - 1 : -1]], axis=1).ravel()


def _lightest_first(
    order: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]], ranks: Sequence[int]
) -> list[NDArray[np.int64] | None]:
    """Each replica in turn to the lightest open rank without its expert, in all layouts side by side."""
    kinds, widest, steps = len(ranks), max(ranks), max(len(experts) for experts, _ in order)
    rows = np.arange(kinds)
    per_rank = np.array([len(experts) // each for (experts, _), each in zip(order, ranks, strict=True)])
    experts, weights = np.full((kinds, steps), _NONE), np.zeros((kinds, steps))
    for number, (own, load) in enumerate(order):
        experts[number, : len(own)], weights[number, : len(load)] = own, load
    held = np.zeros((kinds, widest), dtype=np.int64)
    total = np.where(np.arange(widest) < np.array(ranks)[:, None], 0.0, np.inf)  # infinite: no rank, or a full one
    last = np.full((kinds, widest), _NONE)
    chosen = np.zeros((kinds, steps), dtype=np.int64)
    stuck = np.zeros(kinds, dtype=bool)
    for step in range(steps):
        expert, going = experts[:, step], experts[:, step] != _NONE
        rank = total.argmin(axis=1)
        again = np.flatnonzero((expert == experts[:, step - 1]) & (step > 0))  # replicas of one expert part
        if again.size:
            rank[again] = np.where(last[again] == expert[again, None], np.inf, total[again]).argmin(axis=1)
        chosen[:, step] = rank
        stuck |= going & (np.isinf(total[rows, rank]) | (last[rows, rank] == expert))
        held[rows, rank] += going
        last[rows, rank] = np.where(going, expert, last[rows, rank])
        weighed = total[rows, rank] + weights[:, step]
        total[rows, rank] = np.where(held[rows, rank] >= per_rank, np.inf, weighed)
    return [
        None if stuck[number] else experts[number, np.argsort(chosen[number, : len(own)], kind="stable")]
        for number, (own, _) in enumerate(order)
    ]


def _replicas(loads: NDArray[np.float64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Experts of all replicas by falling load, and those loads, [slots]."""
    per_replica = loads / counts
    order = np.argsort(-per_replica, kind="stable")
    experts = np.repeat(order, counts[order])
    return experts, per_replica[experts]
