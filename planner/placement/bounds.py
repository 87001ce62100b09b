"""Lower bounds on the busiest rank that cost microseconds: mean, water level, filler. ``dual`` has the stronger one.

All hold for maps with equally many slots on every rank, tokens of an expert split evenly over its replicas and, the
filler bound, no expert twice on a rank. Rows are layers, or nodes of layers; loads may have any unit.
"""

import numpy as np

from ground.arrays import Bools, Floats

_MARGIN = 1e-9
"""Keeps rounding from calling a reachable target impossible."""

_HALVINGS = 16


def simple_bounds(loads: Floats, ranks: int, slots: int) -> Floats:
    """Return the greatest bound on the busiest of ``ranks`` ranks with ``slots`` slots in all, [rows].

    Of the mean rank, the water level (some rank holds the heaviest replica, as light as counts can make it), and the
    filler: that replica with the lightest ones that can fill the other slots of its rank.

    Args: ``loads`` [rows, experts].
    """
    return _filler_bound(loads, ranks, slots, np.maximum(loads.sum(axis=1) / ranks, water_level(loads, slots, ranks)))


def water_level(loads: Floats, slots: int, ranks: int) -> Floats:
    """Least max w_i / r_i over all counts with sum r_i <= slots and 1 <= r_i <= ranks, [rows].

    The level is one of the values w_i / r; it is bracketed by bisection and then taken up to the least such value.
    """
    low, high = loads.max(axis=1) / ranks, loads.max(axis=1)  # the counts of ``high`` fit: one of each
    for _ in range(52):
        middle = (low + high) / 2
        fits = _needed(loads, middle).sum(axis=1) <= slots
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    counts = np.minimum(_needed(loads, high), ranks)
    return np.asarray((loads / counts).max(axis=1))


def _needed(loads: Floats, level: Floats) -> Floats:
    """Fewest replicas that are no heavier than ``level``, [rows, experts]."""
    safe = np.where(level > 0, level, 1.0)[:, None]
    return np.maximum(np.ceil(loads / safe - _MARGIN), 1.0)


def _filler_bound(loads: Floats, ranks: int, slots: int, proven: Floats) -> Floats:
    """Greatest target that the filler argument rules out, at least ``proven``; [rows].

    With the busiest rank at T, a replica shares its rank with slots_per_rank - 1 others, whose load is at least F, so
    r_i >= w_i / (T - F); the slots left over, s, cap every count at need_i + s and so bound F from below; repeated
    until it settles, T is impossible when the needs exceed the slots. Bisected on T.

    Ref: derived here, see docs/placement.md.
    """
    if slots == ranks:
        return proven
    # A greedy packing stays below the mean plus the heaviest replica, so nothing higher can be ruled out.
    low, high = proven.copy(), 2 * proven + _MARGIN
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        out = _ruled_out(loads, ranks, slots, middle)
        low, high = np.where(out, middle, low), np.where(out, high, middle)
    return low


def _ruled_out(loads: Floats, ranks: int, slots: int, target: Floats) -> Bools:
    """Whether the filler argument rules out a busiest rank of ``target``, [rows]."""
    others = slots // ranks - 1
    filler, impossible = np.zeros(len(loads)), np.zeros(len(loads), dtype=bool)
    rows = np.arange(len(loads))
    while len(rows):
        room = target[rows] - filler[rows]
        need = _needed(loads[rows], np.maximum(room, np.finfo(float).tiny))
        spare = slots - need.sum(axis=1)
        beyond = (room <= 0) | (spare < 0) | (need.max(axis=1) > ranks)
        impossible[rows[beyond]] = True
        rows, need, spare = rows[~beyond], need[~beyond], spare[~beyond]
        lightest = loads[rows] / np.minimum(need + spare[:, None], ranks)
        grown = np.partition(lightest, others - 1, axis=1)[:, :others].sum(axis=1)
        rises = grown > filler[rows] * (1 + _MARGIN)
        filler[rows] = np.maximum(filler[rows], grown)
        rows = rows[rises]
    return impossible
