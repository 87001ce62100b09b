"""How many replicas each expert gets, and which ranks hold them: what slots allow, water-filling, longest first."""

from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Ints
from ground.errors import BadInput


def check_redundancy(experts: int, ranks: int, redundant: int) -> int:
    """Slots per rank, (experts + redundant) / ranks.

    Raises BadInput: the slots do not divide over the ranks, or some expert would need two replicas on one rank; names
    the nearest values of --redundant-experts that do.
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


def replica_counts(loads: NDArray[Any], slots: int, max_per_expert: int) -> Ints:
    """Replicas of every expert that minimise the busiest replica, max w_i / r_i.

    Greedy: every slot beyond one per expert goes to the expert with the largest w_i / r_i that may have more. Optimal,
    because a count below the greedy one leaves some replica at least as loaded as the greedy maximum.

    Args: ``loads``: [experts], any unit, not negative; ``slots``: slots in all, experts <= slots <= experts *
    max_per_expert (``check_redundancy``); ``max_per_expert``: the number of ranks where a rank holds an expert once.
    Returns [experts] counts with the sum ``slots``.

    Ref: the replication step of DeepSeek EPLB, github.com/deepseek-ai/EPLB (README), with the cap added.
    """
    experts = len(loads)
    return np.bincount(replicated(loads, slots - experts, max_per_expert), minlength=experts) + 1


def replicated(loads: NDArray[Any], further: int, max_per_expert: int) -> Ints:
    """Return the experts that get the ``further`` slots beyond one per expert, slot by slot: see ``replica_counts``."""
    own = loads.tolist()
    # Ties go to the expert with fewer replicas, then to the lower id: equal loads get equal counts.
    heap = [(-load, 1, expert) for expert, load in enumerate(own)] if further and max_per_expert > 1 else []
    heapify(heap)
    taken = []
    for _ in range(further):
        _, count, expert = heap[0]
        taken.append(expert)
        if count + 1 < max_per_expert:
            heapreplace(heap, (-own[expert] / (count + 1), count + 1, expert))
        else:
            heappop(heap)
    return np.array(taken, dtype=np.int64)


def water_filling(loads: NDArray[Any], slots: int, max_per_expert: int) -> Ints:
    """``replica_counts`` of every row, [rows, experts]."""
    return np.stack([replica_counts(row, slots, max_per_expert) for row in loads])


def longest_first(loads: NDArray[Any], counts: Ints, ranks: int) -> Ints:
    """Map one layer by longest processing time first: replicas by falling load, each to the lightest open rank.

    All ranks get equally many slots and no rank an expert twice.

    Args: ``loads``: [experts], any unit; ``counts``: [experts] replicas, at most ``ranks`` each, with a sum that
    ``ranks`` divides; ``ranks``: expert-parallel degree.
    Returns [ranks, slots_per_rank] expert ids.

    Ref: Graham 1969 (SIAM J. Appl. Math. 17:416), with equal cardinality as in DeepSeek EPLB.
    """
    slots_per_rank = int(counts.sum()) // ranks
    per_replica = loads / counts
    order = np.argsort(-per_replica, kind="stable")
    if slots_per_rank == 1:
        return np.repeat(order, counts[order])[:, None]
    # The first that have a load stand alone, rank after rank.
    alone = int(((counts[order].cumsum() <= ranks) & (per_replica[order] > 0)).sum())
    first = np.repeat(order[:alone], counts[order[:alone]])
    held: list[list[int]] = [[expert] for expert in first.tolist()]
    heap = list(zip(per_replica[first].tolist(), range(first.size), strict=True))
    held += [[] for _ in range(ranks - first.size)]
    heap += [(0.0, rank) for rank in range(first.size, ranks)]
    heapify(heap)
    left = order[alone:]
    for expert, load, count in zip(left.tolist(), per_replica[left].tolist(), counts[left].tolist(), strict=True):
        if count == 1 and heap:
            total, rank = heap[0]
            own = held[rank]
            own.append(expert)
            if len(own) < slots_per_rank:
                heapreplace(heap, (total + load, rank))
            else:
                heappop(heap)
            continue
        # Taking all replicas of an expert at once puts them on different ranks.
        chosen = [heappop(heap) for _ in range(min(count, len(heap)))]
        for total, rank in chosen:
            held[rank].append(expert)
            if len(held[rank]) < slots_per_rank:
                heappush(heap, (total + load, rank))
        for _ in range(count - len(chosen)):
            _make_room(held, expert, slots_per_rank)
            heap = [entry for entry in heap if len(held[entry[1]]) < slots_per_rank]
            heapify(heap)
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


def longest_first_rows(loads: NDArray[Any], counts: Ints, ranks: int) -> Ints:
    """``longest_first`` of every row, [rows, ranks, slots_per_rank]."""
    return np.stack([longest_first(row, count, ranks) for row, count in zip(loads, counts, strict=True)])
