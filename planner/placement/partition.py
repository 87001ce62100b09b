"""The best way to divide groups into sets of equal size, by a dynamic programme over the groups that are placed."""

from functools import lru_cache
from itertools import combinations

import numpy as np

from ground.arrays import Floats, Ints

_SHARPNESS = 16
"""Among partitions with the least maximum, the one with the least sum of this power of the sets' costs is taken."""


@lru_cache(maxsize=32)
def group_sets(groups: int, each: int) -> tuple[tuple[int, ...], ...]:
    """Every set of ``each`` out of ``groups`` groups, members in order."""
    return tuple(combinations(range(groups), each))


@lru_cache(maxsize=32)
def _transitions(groups: int, each: int) -> tuple[tuple[int, int, int], ...]:
    """(placed before, set, placed after), smaller before first; the set with the lowest unplaced group comes next."""
    sets = group_sets(groups, each)
    masks = [sum(1 << group for group in members) for members in sets]
    by_lowest: dict[int, list[int]] = {}
    for index, members in enumerate(sets):
        by_lowest.setdefault(members[0], []).append(index)
    steps: list[tuple[int, int, int]] = []
    level = [0]
    while level:
        found: dict[int, None] = {}
        for before in level:
            lowest = (~before & (before + 1)).bit_length() - 1
            for index in by_lowest.get(lowest, []):
                if not masks[index] & before:
                    steps.append((before, index, before | masks[index]))
                    found[before | masks[index]] = None
        level = list(found)
    return tuple(steps)


def best_partition(costs: Floats, groups: int, each: int) -> tuple[Ints, Floats]:
    """Partition ``groups`` groups into sets of ``each`` with the least maximum cost.

    Args:
        costs: [rows, sets] in the order of ``group_sets``, from 0.
        groups: number of groups, a multiple of ``each``.
        each: groups per set.

    Returns:
        Indices of the sets taken, [rows, groups / each], and the least maximum, [rows].
    """
    rows = len(costs)
    scale = costs.max(axis=1, keepdims=True)
    powers = (costs / np.where(scale > 0, scale, 1.0)) ** _SHARPNESS
    highest, total = {0: np.zeros(rows)}, {0: np.zeros(rows)}
    came: dict[int, tuple[Ints, Ints]] = {}  # placed -> (last set, placed before it), [rows] each
    for before, index, after in _transitions(groups, each):
        peak = np.maximum(highest[before], costs[:, index])
        spent = total[before] + powers[:, index]
        if after not in total:
            highest[after], total[after] = peak, spent
            came[after] = np.full(rows, index), np.full(rows, before)
            continue
        highest[after] = np.minimum(highest[after], peak)
        better = spent < total[after]
        total[after] = np.where(better, spent, total[after])
        last, origin = came[after]
        came[after] = np.where(better, index, last), np.where(better, before, origin)
    everything = (1 << groups) - 1
    taken = np.empty((rows, groups // each), dtype=np.int64)
    for row in range(rows):
        placed = everything
        for part in range(taken.shape[1]):
            last, origin = came[placed]
            taken[row, part], placed = last[row], int(origin[row])
    return taken, highest[everything]
