"""More time on the proof: longer searches and the dual bound for every layer whose gap is not closed yet."""

from dataclasses import dataclass, replace

import numpy as np

from ground.arrays import Ints
from planner.manifest.loads import imbalance, rank_loads
from planner.placement.dual import GOAL, strongest_bound
from planner.placement.improve import search_jointly
from planner.placement.methods import Placement, lower_bound
from planner.placement.pricing import Certificate
from planner.placement.problem import Problem

_ROUNDS = ((GOAL, 3_000, GOAL), (0.01, 8_000, GOAL / 4), (0.01, 16_000, GOAL / 4))
"""Rounds of (layers with a wider gap, steps of the search from another seed, gap at which the proof stops)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """A placement with its best bounds, and the certificates of layers whose bound needs one: layer -> certificate."""

    placement: Placement
    certificates: dict[int, Certificate]


def certify(problem: Problem, placed: Placement) -> Certified:
    """Improve and prove layers until their gap is at most ``GOAL`` or the effort is spent.

    Time slices, groups that are kept, and one slot per rank have the best bounds known here already.
    """
    certificates: dict[int, Certificate] = {}
    if problem.sliced or problem.keep_groups or problem.slots_per_rank == 1:
        return Certified(placement=placed, certificates=certificates)
    placed = replace(placed, slots=placed.slots.copy(), imbalance=placed.imbalance.copy())
    placed = replace(placed, lower_bound=np.minimum(lower_bound(problem), placed.imbalance))
    for seed, (gap, steps, goal) in enumerate(_ROUNDS):
        rows = np.flatnonzero(placed.lower_bound < placed.imbalance * (1 - gap))
        if not len(rows):
            break
        _search_longer(problem, placed, rows, steps, seed + 1)
        for layer in rows.tolist():
            bound, found = strongest_bound(
                problem.mean_loads[layer],
                problem.ranks,
                problem.slots,
                float(placed.lower_bound[layer]),
                float(placed.imbalance[layer]),
                goal,
            )
            if found is not None:
                placed.lower_bound[layer], certificates[layer] = bound, found
    return Certified(placement=placed, certificates=certificates)


def _search_longer(problem: Problem, placed: Placement, rows: Ints, steps: int, seed: int) -> None:
    """Continue the search of the maps of ``rows``, in place."""
    loads = problem.mean_loads[rows]
    floor = placed.lower_bound[rows] * loads.sum(axis=1) / problem.ranks
    held = placed.slots[rows].reshape(len(rows), problem.ranks, -1)
    found = np.sort(search_jointly(loads, held, floor, steps, seed=seed), axis=2).reshape(len(rows), -1)
    reached = imbalance(rank_loads(loads, found, problem.ranks))
    better = reached < placed.imbalance[rows]
    placed.slots[rows[better]] = found[better]
    placed.imbalance[rows[better]] = reached[better]
