"""Small layers exactly, as an integer programme: the oracle for the searches.

For each expert i one count r is chosen, z[i, r] in {0, 1}; on[i, r, g] in {0, 1} says that a replica of i stands on
rank g while i has r of them. Minimise T with

    sum_r z[i, r] = 1                     every expert has one count
    sum_g on[i, r, g] = r z[i, r]         and as many replicas, no two on a rank
    sum_{i, r} on[i, r, g] = slots        every rank is full
    sum_{i, r} w_i / r on[i, r, g] <= T   the busiest rank

HiGHS needs minutes from about 60 slots on and is then worse than the local search, so larger layers are refused.
"""

import numpy as np

from ground.arrays import Floats, Ints
from ground.errors import BadInput
from planner.placement.problem import Problem

MOST_PLACES = 400
"""Experts x counts x ranks: what HiGHS solves in seconds."""


def exact(problem: Problem) -> Ints:
    """Map every layer optimally, [layers, slots]; BadInput for layers that are too large."""
    counts = min(problem.ranks, problem.redundant + 1)
    if problem.experts * counts * problem.ranks > MOST_PLACES or problem.keep_groups:
        raise BadInput("--method: exact is for a few experts on a few devices, groups not kept; use joint")
    return np.stack([_solve_layer(load, problem.ranks, problem.slots) for load in problem.mean_loads])


def _solve_layer(loads: Floats, ranks: int, slots: int) -> Ints:
    """The least busiest rank of one layer [experts]."""
    import pulp  # only this method needs it

    model = pulp.LpProblem("placement", pulp.LpMinimize)
    add_variable = getattr(model, "add_variable", pulp.LpVariable)  # PuLP before 3.3 has no add_variable
    experts, each = range(len(loads)), range(ranks)
    counts = range(1, min(ranks, slots - len(loads) + 1) + 1)
    scaled = loads / loads.sum() * ranks
    busiest = add_variable("busiest", lowBound=1.0)
    chosen = {(i, r): add_variable(f"count_{i}_{r}", cat=pulp.LpBinary) for i in experts for r in counts}
    on = {(i, r, g): add_variable(f"on_{i}_{r}_{g}", cat=pulp.LpBinary) for i in experts for r in counts for g in each}
    model += busiest
    for i in experts:
        model += pulp.lpSum(chosen[i, r] for r in counts) == 1, f"one_count_{i}"
        for r in counts:
            model += pulp.lpSum(on[i, r, g] for g in each) - r * chosen[i, r] == 0, f"replicas_{i}_{r}"
        for g in each:
            model += pulp.lpSum(on[i, r, g] for r in counts) <= 1, f"once_{i}_{g}"
    for g in each:
        model += pulp.lpSum(on[i, r, g] for i in experts for r in counts) == slots // ranks, f"full_{g}"
        load = pulp.lpSum(float(scaled[i]) / r * on[i, r, g] for i in experts for r in counts)
        model += load - busiest <= 0, f"busiest_{g}"
    model.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, random_seed=0))
    placed = [i for g in each for i in experts if any(on[i, r, g].value() > 0.5 for r in counts)]
    return np.array(placed, dtype=np.int64)
