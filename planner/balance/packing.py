"""Which rank every replica stands on, counts given: longest processing time first, no expert twice on a rank."""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def longest_first_rows(loads: NDArray[Any], counts: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """``longest_first`` of every row, [rows, ranks, slots_per_rank]."""
    return np.stack([longest_first(row, count, ranks) for row, count in zip(loads, counts, strict=True)])
