"""Small layers exactly, as an integer programme: the oracle for the searches, with or without a limit on moves.

For each expert i one count r is chosen, z[i, r] in {0, 1}; on[i, r, g] in {0, 1} says that a replica of i stands on
rank g while i has r of them. Minimise T with

    sum_r z[i, r] = 1                     every expert has one count
    sum_g on[i, r, g] = r z[i, r]         and as many replicas, no two on a rank
    sum_{i, r} on[i, r, g] = slots        every rank is full
    sum_{i, r} w_i / r on[i, r, g] <= T   the busiest rank
    sum of on where i stands on g now >= slots in all - moves

HiGHS needs minutes from about 60 slots on and is then worse than the local search, so larger layers are refused.
"""

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from planner.placement.problem import Problem

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_PLACES = 400
"""Experts x counts x ranks: what HiGHS solves in seconds."""


def exact(problem: Problem) -> Integers:
    """Map every layer optimally, [layers, slots]; BadInput for layers that are too large."""
    counts = min(problem.ranks, problem.redundant + 1)
    if problem.experts * counts * problem.ranks > MOST_PLACES or problem.keep_groups:
        raise BadInput("--method: exact is for a few experts on a few devices, groups not kept; use joint")
    return np.stack([solve_layer(load, problem.ranks, problem.slots) for load in problem.mean_loads])


def solve_layer(
    loads: Floats, ranks: int, slots: int, current: Integers | None = None, most_moves: int | None = None
) -> Integers:
    """The least busiest rank of one layer [experts], at most ``most_moves`` loads away from ``current`` [slots]."""
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
    if current is not None and most_moves is not None:
        held = current.reshape(ranks, -1).tolist()
        kept = pulp.lpSum(on[i, r, g] for g in each for i in held[g] for r in counts)
        model += kept >= slots - most_moves, "moves"
    model.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, random_seed=0))
    placed = [i for g in each for i in experts if any(on[i, r, g].value() > 0.5 for r in counts)]
    return np.array(placed, dtype=np.int64)
