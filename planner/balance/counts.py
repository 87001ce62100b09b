"""How many replicas each expert gets: what slots allow, and water-filling."""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput


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


def water_filling(loads: NDArray[Any], slots: int, max_per_expert: int) -> NDArray[np.int64]:
    """``replica_counts`` of every row, [rows, experts]."""
    return np.stack([replica_counts(row, slots, max_per_expert) for row in loads])
