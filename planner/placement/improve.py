"""Local search over maps: swaps until settled, then counts and positions together by repeated trades."""

import numpy as np

from ground.arrays import Floats, Ints
from planner.placement.rows import MILD, TOKENS, Kick, Objective, Rows, swap_best, trade_at_random

SETTLED = 2e-4
"""A row is done within this excess over its floor: routing noise is fifty times larger."""

_TEMPERATURE = 1e-3
"""Mean share by which a settled map may be worse than the one before it and still be searched on from."""


def settle(loads: Floats, held: Ints, floor: Floats, objective: Objective = TOKENS) -> Ints:
    """Swap replicas of the busiest rank, the best pair first, until no swap helps; counts stay.

    Every step lowers the busiest rank of its row strictly, so it ends.

    Args:
        loads: [rows, experts], any unit.
        held: [rows, ranks, slots] expert ids without duplicates on a rank.
        floor: [rows] lower bounds on the busiest rank; rows within ``SETTLED`` of theirs are done.
        objective: what a rank costs.

    Returns:
        [rows, ranks, slots]; the costs of ``held`` or less.
    """
    state = Rows.start(loads, held, objective)
    rows = np.arange(len(loads))
    while True:
        _, highest = state.peak(rows)
        rows = rows[highest > floor[rows] * (1 + SETTLED)]
        if not len(rows):
            return state.held
        stuck, _ = swap_best(state, rows)
        rows = np.setdiff1d(rows, stuck, assume_unique=True)


def search_jointly(
    loads: Floats,
    held: Ints,
    floor: Floats,
    steps: int,
    *,
    seed: int = 0,
    objective: Objective = TOKENS,
    kick: Kick = MILD,
) -> Ints:
    """Iterated local search over counts and positions: trade at random, settle, go on from what is hardly worse.

    Args:
        loads: [rows, experts], any unit.
        held: [rows, ranks, slots] expert ids without duplicates on a rank.
        floor: [rows] lower bounds on the busiest rank; rows within ``SETTLED`` of theirs are done.
        steps: steps of the search; every unfinished row makes one swap or one trade in each.
        seed: of the random trades; equal arguments give equal maps.
        objective: what a rank costs.
        kick: how trades are drawn.

    Returns:
        [rows, ranks, slots]; the costs of ``held`` or less.

    Ref: derived here, see docs/placement.md.
    """
    rng = np.random.default_rng(seed)
    state = Rows.start(loads, held, objective)
    every = np.arange(len(loads))
    _, reached = state.peak(every)
    current, current_counts, cost = state.held.copy(), state.counts.copy(), reached.copy()
    best = state.held.copy()
    rows = every
    for _ in range(steps):
        rows = rows[reached[rows] > floor[rows] * (1 + SETTLED)]
        if not len(rows):
            break
        stuck, highest = swap_best(state, rows)
        if not len(stuck):
            continue
        better = highest < reached[stuck]
        best[stuck[better]], reached[stuck[better]] = state.held[stuck[better]], highest[better]
        taken = highest <= cost[stuck] * (1 + _TEMPERATURE * rng.exponential(size=len(stuck)))
        kept = stuck[taken]
        current[kept], current_counts[kept], cost[kept] = state.held[kept], state.counts[kept], highest[taken]
        state.held[stuck], state.counts[stuck] = current[stuck], current_counts[stuck]
        state.refresh(stuck)
        trade_at_random(state, stuck, rng, kick)
    return best
