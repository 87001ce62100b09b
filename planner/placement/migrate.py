"""From the map that runs now to a better one: the same map on other rank numbers, or few moves for much of the gain.

A move loads one expert's weights into one slot. Ranks are interchangeable, so a new map is first renumbered to share as
many experts with the current one as it can (an assignment problem); where that is still too much, ``few_moves`` starts
from the current map and takes, one by one, the exchange (two loads) or the trade (one load) that lowers the busiest
rank most per load. Its maps answer both questions: the best one within some moves, and the fewest moves for a gain.
"""

import numpy as np

from ground.arrays import Floats, Ints
from planner.placement.problem import Problem
from planner.placement.rows import Rows, swap_best

_GAIN = 1e-9


def moves(current: Ints, target: Ints, ranks: int) -> Ints:
    """Expert weights that each rank must load to get from one map to the other, [layers, ranks].

    Maps are [layers, slots]; the target may have more or fewer slots than the current one.
    """
    before, after = (slots.reshape(len(slots), ranks, -1) for slots in (current, target))
    return np.asarray((after[:, :, :, None] != before[:, :, None, :]).all(axis=3).sum(axis=2))


def renumbered(current: Ints, target: Ints, problem: Problem) -> Ints:
    """The target with its ranks renumbered so that most experts stay where they are; [layers, slots].

    With kept groups, or several nodes, ranks change places within their node only.
    """
    from scipy.optimize import linear_sum_assignment  # 0.4 s: only a map that runs already pays it

    per_node = problem.ranks // problem.nodes
    result = target.reshape(problem.layers, problem.ranks, -1).copy()
    before = current.reshape(problem.layers, problem.ranks, -1)
    for layer in range(problem.layers):
        for first in range(0, problem.ranks, per_node):
            node = slice(first, first + per_node)
            shared = (result[layer, node][:, None, :, None] == before[layer, node][None, :, None, :]).sum(axis=(2, 3))
            new, old = linear_sum_assignment(shared, maximize=True)
            result[layer, node] = result[layer, node][new[np.argsort(old)]]
    return result.reshape(problem.layers, -1)


def few_moves(loads: Floats, current: Ints, ranks: int, most_loads: int) -> list[Ints]:
    """Return one layer's maps on the way from the current one, the greatest gain per load first; each is better.

    Args: ``loads``: [experts]; ``current``: [slots], a valid map; ``ranks``: expert-parallel degree; ``most_loads``:
    stop before more experts than these would have to be loaded.
    """
    state = Rows.start(loads[None], current.reshape(1, ranks, -1))
    only = np.zeros(1, dtype=np.int64)
    maps = [current]
    while True:
        highest = float(state.peak(only)[1][0])
        swapped = Rows.start(loads[None], state.held)
        stuck, _ = swap_best(swapped, only)
        gain_swap = 0.0 if len(stuck) else (highest - float(swapped.peak(only)[1][0])) / 2
        trade = _best_trade(state)
        gain_trade = highest - trade[0]
        if max(gain_swap, gain_trade) <= _GAIN * highest:
            return maps
        if gain_trade >= gain_swap:
            _, rank, slot, expert = trade
            held = state.held.copy()
            held[0, rank, slot] = expert
            state = Rows.start(loads[None], held)
        else:
            state = swapped
        slots = state.held.reshape(-1).copy()
        if moves(current[None], slots[None], ranks).sum() > most_loads:
            return maps
        maps.append(slots)


def _best_trade(state: Rows) -> tuple[float, int, int, int]:
    """Busiest rank after the best trade of a single-row state, and the trade: rank, slot, and the expert that gains."""
    loads, counts, held, on = state.loads[0], state.counts[0], state.held[0], state.on[0]
    totals, each = state.total[0, :, 0], state.loads[0] / state.counts[0]
    busy = int(totals.argmax())
    best = float("inf"), 0, 0, 0
    for gains in np.unique(held[busy]).tolist():
        relief = on[gains] * (loads[gains] / counts[gains] - loads[gains] / (counts[gains] + 1))
        open_slots = np.argwhere((counts[held] > 1) & ~on[gains][:, None])
        if not len(open_slots):
            continue
        rank, slot = open_slots.T
        loses = held[rank, slot]
        burden = loads[loses] / (counts[loses] - 1) - each[loses]
        after = totals - relief + on[loses] * burden[:, None]  # [trades, ranks]
        after[np.arange(len(rank)), rank] += loads[gains] / (counts[gains] + 1) - loads[loses] / (counts[loses] - 1)
        peaks = after.max(axis=1)
        least = int(peaks.argmin())
        if peaks[least] < best[0]:
            best = float(peaks[least]), int(rank[least]), int(slot[least]), gains
    return best
