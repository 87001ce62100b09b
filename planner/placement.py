"""Experts and their replicas -> ranks: how many copies of each, and where, so that the busiest rank carries least.

Stated as an optimisation, per layer: choose replicas r_i >= 1 with sum r_i = experts + redundant and put every replica
on a rank, slots_per_rank on each and never two of one expert on one rank, to minimise max over ranks of
sum w_i / r_i. Counts come from water-filling, positions from LPT and a best-swap local search; the result carries a
lower bound, so that the gap is known. Tokens are split evenly over the replicas of an expert.
"""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.manifest.loads import imbalance, rank_loads
from podplan.errors import BadInput

_SETTLED = 1e-4
"""Local search stops below this excess of the busiest rank over the bound: routing noise is a hundred times larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An expert map with what it achieves and what no map could better."""

    slots: NDArray[np.int64]
    """[layers, ranks * slots_per_rank] logical expert ids, rank by rank."""
    imbalance: NDArray[np.float64]
    """[layers] busiest rank over the mean."""
    lower_bound: NDArray[np.float64]
    """[layers] least imbalance that any duplicate-free map with as many slots can reach."""


def check_redundancy(experts: int, ranks: int, redundant: int) -> int:
    """Slots per rank, (experts + redundant) / ranks.

    Raises:
        BadInput: the slots do not divide over the ranks, or some expert would need two replicas on one rank; names the
            nearest values of --redundant-experts that do.
    """
    most = experts * (ranks - 1)
    slots = experts + redundant
    if redundant < 0 or redundant > most:
        raise BadInput(
            f"--redundant-experts {redundant} must be between 0 and {most}: {experts} experts have at most "
            f"one replica on each of {ranks} ranks."
        )
    if slots % ranks:
        below, above = redundant - slots % ranks, redundant + ranks - slots % ranks
        fitting = " or ".join(str(value) for value in (below, above) if 0 <= value <= most)
        raise BadInput(
            f"--redundant-experts {redundant} makes {slots} slots, which {ranks} ranks cannot share "
            f"equally; {fitting} would do."
        )
    return slots // ranks


def replica_counts(loads: NDArray[Any], slots: int, max_per_expert: int) -> NDArray[np.int64]:
    """Replicas of every expert that minimise the busiest replica, max w_i / r_i.

    Greedy: every slot beyond one per expert goes to the expert with the largest w_i / r_i that may have more. Optimal,
    because a count below the greedy one leaves some replica at least as loaded as the greedy maximum.

    Args:
        loads: [experts], any unit, not negative.
        slots: slots in all, experts <= slots <= experts * max_per_expert.
        max_per_expert: the number of ranks where a rank holds an expert once.

    Returns:
        [experts] counts with the sum ``slots``.

    Raises:
        BadInput: ``slots`` is outside its range.

    Ref: the replication step of DeepSeek EPLB, github.com/deepseek-ai/EPLB (README), with the cap added.
    """
    experts = len(loads)
    if not experts <= slots <= experts * max_per_expert:
        raise BadInput(
            f"--redundant-experts {slots - experts} must be between 0 and {experts * (max_per_expert - 1)} "
            f"for {experts} experts."
        )
    counts = [1] * experts
    # Ties go to the expert with fewer replicas, then to the lower id: equal loads get equal counts.
    heap = [(-float(load), 1, expert) for expert, load in enumerate(loads)] if max_per_expert > 1 else []
    heapq.heapify(heap)
    for _ in range(slots - experts):
        _, count, expert = heap[0]
        counts[expert] = count + 1
        if count + 1 < max_per_expert:
            heapq.heapreplace(heap, (-float(loads[expert]) / (count + 1), count + 1, expert))
        else:
            heapq.heappop(heap)
    return np.array(counts, dtype=np.int64)


def longest_first(loads: NDArray[Any], counts: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Map one layer by longest processing time first: replicas by falling load, each to the lightest open rank.

    All ranks get equally many slots and no rank an expert twice.

    Args:
        loads: [experts], any unit.
        counts: [experts] replicas, at most ``ranks`` each, with a sum that ``ranks`` divides.
        ranks: expert-parallel degree.

    Returns:
        [ranks, slots_per_rank] expert ids.

    Ref: Graham 1969 (SIAM J. Appl. Math. 17:416), with equal cardinality as in DeepSeek EPLB.
    """
    slots_per_rank = int(counts.sum()) // ranks
    per_replica = loads / counts
    order = np.argsort(-per_replica, kind="stable")
    held: list[list[int]] = [[] for _ in range(ranks)]
    heap = [(0.0, rank) for rank in range(ranks)]
    for expert, load, count in zip(order.tolist(), per_replica[order].tolist(), counts[order].tolist(), strict=True):
        if count == 1 and heap:
            total, rank = heap[0]
            held[rank].append(expert)
            if len(held[rank]) < slots_per_rank:
                heapq.heapreplace(heap, (total + load, rank))
            else:
                heapq.heappop(heap)
            continue
        # Taking all replicas of an expert at once puts them on different ranks.
        chosen = [heapq.heappop(heap) for _ in range(min(count, len(heap)))]
        for total, rank in chosen:
            held[rank].append(expert)
            if len(held[rank]) < slots_per_rank:
                heapq.heappush(heap, (total + load, rank))
        for _ in range(count - len(chosen)):
            _make_room(held, expert, slots_per_rank)
            heap = [entry for entry in heap if len(held[entry[1]]) < slots_per_rank]
            heapq.heapify(heap)
    return np.array(held, dtype=np.int64)


def _make_room(held: list[list[int]], expert: int, slots_per_rank: int) -> None:
    """Give ``expert`` a slot on a full rank by moving one of that rank's experts to a rank that is open.

    Needed when every open rank has the expert already. It always works: a full rank without the expert exists (there
    are at most ``ranks`` replicas) and holds more distinct experts than the open one, so one of them can move.
    """
    receiver = next(rank for rank, experts in enumerate(held) if len(experts) < slots_per_rank)
    giver = next(rank for rank in reversed(range(len(held))) if expert not in held[rank])
    moving = next(other for other in reversed(held[giver]) if other not in held[receiver])
    held[giver][held[giver].index(moving)] = expert
    held[receiver].append(moving)


def _swap_until_settled(held: NDArray[np.int64], per_replica: NDArray[np.float64], floor: float) -> NDArray[np.int64]:
    """Local search on one layer: swap one replica of the busiest rank for a lighter one elsewhere, best pair first.

    The best pair leaves the smallest maximum on the two ranks. Stops when no swap helps the busiest rank or when it is
    within ``_SETTLED`` of ``floor``. Every step lowers the busiest rank strictly, so it ends.

    Args:
        held: [ranks, slots_per_rank] expert ids without duplicates on a rank.
        per_replica: [experts] load of one replica.
        floor: a lower bound on the busiest rank, in the unit of ``per_replica``.
    """
    held = held.copy()
    ranks = len(held)
    load = per_replica[held]  # [ranks, slots_per_rank]
    total = load.sum(axis=1)
    on = np.zeros((len(per_replica), ranks), dtype=bool)
    on[held, np.arange(ranks)[:, None]] = True
    while True:
        busy = int(total.argmax())
        if total[busy] <= floor * (1 + _SETTLED):
            return held
        shift = load[busy][:, None, None] - load[None]  # [own slot, other rank, other slot]
        peak = np.maximum(total[busy] - shift, total[None, :, None] + shift)
        peak[on[held[busy]]] = np.inf  # the other rank has ours already
        peak[:, on[held, busy]] = np.inf  # we have theirs already
        own, other, slot = np.unravel_index(int(peak.argmin()), peak.shape)
        if not peak[own, other, slot] < total[busy] * (1 - 1e-12):
            return held
        give, take = held[busy, own], held[other, slot]
        held[busy, own], held[other, slot] = take, give
        on[give, busy] = on[take, other] = False
        on[give, other] = on[take, busy] = True
        for rank in (busy, other):
            load[rank] = per_replica[held[rank]]
            total[rank] = load[rank].sum()


def least_peak(loads: NDArray[Any], counts: NDArray[np.int64], ranks: int, reached: float) -> float:
    """Lower bound on the busiest rank of any duplicate-free map with as many slots, in the unit of ``loads``.

    The largest of: the mean rank; the water-filling value max w_i / r_i at optimal counts; the filler bound. Filler:
    with the busiest rank at T, a replica shares its rank with slots_per_rank - 1 others, whose load is at least F, so
    r_i >= w_i / (T - F); the slots left over, s, cap every count at need_i + s and so bound F from below; repeated
    until it settles, T is impossible when the needs exceed the slots. Bisected on T, to 1e-4 of the mean.

    Args:
        loads: [experts], any unit.
        counts: [experts] as ``replica_counts`` chose them.
        ranks: expert-parallel degree.
        reached: busiest rank of a known map; the bound never passes it.

    Ref: derived here; mean and water-filling are the usual ones.
    """
    slots = int(counts.sum())
    mean = float(loads.sum()) / ranks
    proven = max(mean, float((loads / counts).max()))
    low, high = proven, reached  # ``high`` is possible, ``low`` is proven
    if slots == ranks or high <= low * (1 + _SETTLED):
        return min(low, high)
    while high - low > 1e-4 * mean:
        target = (low + high) / 2
        if _excluded(loads, slots, ranks, target):
            low = target
        else:
            high = target
    return low


def _excluded(loads: NDArray[Any], slots: int, ranks: int, target: float) -> bool:
    """Whether the filler argument of ``least_peak`` rules out a busiest rank of ``target``."""
    others = slots // ranks - 1
    filler = 0.0
    while target > filler:
        # The margin keeps rounding from calling a reachable target impossible.
        need = np.maximum(np.ceil(loads / (target - filler) - 1e-9), 1.0)
        spare = slots - need.sum()
        if spare < 0 or need.max() > ranks:
            return True
        smallest = np.partition(loads / np.minimum(need + spare, ranks), others - 1)[:others]
        grown = float(smallest.sum())
        if grown <= filler * (1 + 1e-9):
            return False
        filler = grown
    return True


def place(loads: NDArray[Any], ranks: int, redundant: int) -> Placement:
    """Place the experts of every layer: counts by water-filling, positions by LPT, then best-swap local search.

    Deterministic. With one slot per rank the counts are the whole problem and the result is optimal.

    Args:
        loads: [layers, experts], tokens or shares measured, not negative.
        ranks: expert-parallel degree.
        redundant: slots beyond one per expert, in all.

    Returns:
        Placement whose layers are independent of each other.

    Raises:
        BadInput: ``check_redundancy``, or loads that are not finite numbers from 0.
    """
    if loads.ndim != 2 or loads.size == 0:
        raise BadInput(f"Expert loads must be layers x experts, not of shape {loads.shape}.")
    bad = np.argwhere(~np.isfinite(loads) | (loads < 0))
    if bad.size:
        layer, expert = bad[0]
        raise BadInput(
            f"The load of expert {expert} in layer {layer} is {loads[layer, expert]}; it must be a finite "
            "number from 0."
        )
    check_redundancy(loads.shape[1], ranks, redundant)
    rows, bounds = [], []
    for layer in loads.astype(np.float64):
        row, bound = _place_layer(layer if layer.any() else np.ones_like(layer), ranks, redundant)
        rows.append(row)
        bounds.append(bound)
    slots = np.stack(rows)
    reached = imbalance(rank_loads(loads, slots, ranks))
    return Placement(slots=slots, imbalance=reached, lower_bound=np.minimum(np.array(bounds), reached))


def _place_layer(loads: NDArray[np.float64], ranks: int, redundant: int) -> tuple[NDArray[np.int64], float]:
    """One layer: its map, flat, and the lower bound on its imbalance."""
    counts = replica_counts(loads, len(loads) + redundant, ranks)
    per_replica = loads / counts
    mean = float(loads.sum()) / ranks
    held = longest_first(loads, counts, ranks)
    if held.shape[1] > 1:
        held = _swap_until_settled(held, per_replica, max(mean, float(per_replica.max())))
    reached = float(per_replica[held].sum(axis=1).max())
    return np.sort(held, axis=1).ravel(), least_peak(loads, counts, ranks, reached) / mean
