"""Experts that leave their group's node: the trade between a busier rank and traffic between nodes.

With group-limited routing a token goes to few groups, so to few nodes if groups stay together. A replica away from its
group's node (the node that serves most of the group) costs up to one more message between nodes for every token that it
serves: ``leaving_share`` counts those tokens. ``pay_for_leaving`` starts from groups that are kept, lets replicas leave
one exchange at a time where that relieves the busiest rank, goes on with trades, and takes on every layer the map where
imbalance plus the weighted share is least. ``trade_off_bound`` is an integer programme over groups and nodes that no
map can better.
"""

import numpy as np

from ground.arrays import Floats, Ints
from planner.manifest.loads import imbalance, rank_loads
from planner.placement.grouped import keep_groups
from planner.placement.improve import search_jointly
from planner.placement.problem import Problem
from planner.placement.rows import Rows, swap_best

_MOST_STEPS = 400
_ROUNDING = 1e-6
"""The solver's feasibility tolerance."""


def leaving_share(problem: Problem, slots: Ints) -> Floats:
    """Share of the tokens that is served away from the node of their expert's group, [layers]."""
    layers = problem.layers
    counts = np.stack([np.bincount(row, minlength=problem.experts) for row in slots])
    each = np.take_along_axis(problem.mean_loads / counts, slots, axis=1)  # [layers, slots]
    group = slots // (problem.experts // problem.groups)
    node = np.arange(problem.slots) // (problem.slots // problem.nodes)
    served = np.zeros((layers, problem.groups, problem.nodes))
    np.add.at(served, (np.arange(layers)[:, None], group, node[None, :]), each)
    return np.asarray(1 - served.max(axis=2).sum(axis=1) / served.sum(axis=(1, 2)))


def pay_for_leaving(problem: Problem, weight: float) -> Ints:
    """Map with the least imbalance + weight * leaving share on the way from kept groups to free swaps; [layers, slots].

    ``problem`` keeps its groups. ``weight`` is what serving all tokens away from home would add to the imbalance.
    """
    start = keep_groups(problem)
    state = Rows.start(problem.mean_loads, start.reshape(problem.layers, problem.ranks, -1))
    best = start.copy()
    least = _worth(problem, start, weight)
    rows = np.arange(problem.layers)
    for _ in range(_MOST_STEPS):
        stuck, _ = swap_best(state, rows)
        rows = np.setdiff1d(rows, stuck, assume_unique=True)
        if not len(rows):
            break
        slots = state.held.reshape(problem.layers, -1)
        now = _worth(problem, slots, weight)
        better = now < least
        best[better], least[better] = slots[better], now[better]
    held = start.reshape(problem.layers, problem.ranks, -1)
    floor = problem.mean_loads.sum(axis=1) / problem.ranks
    freed = search_jointly(problem.mean_loads, held, floor, _MOST_STEPS).reshape(problem.layers, -1)
    best = np.where((_worth(problem, freed, weight) < least)[:, None], freed, best)
    return np.sort(best.reshape(problem.layers, problem.ranks, -1), axis=2).reshape(problem.layers, -1)


def _worth(problem: Problem, slots: Ints, weight: float) -> Floats:
    reached = imbalance(rank_loads(problem.mean_loads, slots, problem.ranks))
    return np.asarray(reached + weight * leaving_share(problem, slots))


def trade_off_bound(problem: Problem, weight: float) -> Floats:
    """Least imbalance + weight * leaving share of any map, as far as groups and nodes tell; [layers].

    Per layer, minimise T + weight * sum away over home[g, n] in {0, 1} and served[g, n] >= 0 with one home per group,
    equally many groups on every node, served[g, n] adding up to the group's load, T at least the node's load over its
    mean, and away[g, n] >= served[g, n] where n is not the home. Experts within a node may be split at will, so the
    value is a lower bound.
    """
    loads = problem.mean_loads.reshape(problem.layers, problem.groups, -1).sum(axis=2)
    return np.array([_solve(row / row.sum(), problem.nodes, weight) for row in loads])


def _solve(shares: Floats, nodes: int, weight: float) -> float:
    """The programme of one layer; ``shares`` [groups] add up to 1."""
    import pulp  # only this bound needs it

    places = [(group, node) for group in range(len(shares)) for node in range(nodes)]
    model = pulp.LpProblem("groups_to_nodes", pulp.LpMinimize)
    add_variable = getattr(model, "add_variable", pulp.LpVariable)  # PuLP before 3.3 has no add_variable
    busiest = add_variable("busiest", lowBound=1.0)
    home = {place: add_variable(f"home_{place[0]}_{place[1]}", cat=pulp.LpBinary) for place in places}
    served = {place: add_variable(f"served_{place[0]}_{place[1]}", lowBound=0.0) for place in places}
    away = {place: add_variable(f"away_{place[0]}_{place[1]}", lowBound=0.0) for place in places}
    model += busiest + weight * pulp.lpSum(away.values())
    for group, share in enumerate(shares.tolist()):
        model += pulp.lpSum(home[group, node] for node in range(nodes)) == 1, f"one_home_{group}"
        model += pulp.lpSum(served[group, node] for node in range(nodes)) == share, f"all_served_{group}"
        for node in range(nodes):
            model += away[group, node] >= served[group, node] - share * home[group, node], f"away_{group}_{node}"
    for node in range(nodes):
        groups = range(len(shares))
        model += pulp.lpSum(home[group, node] for group in groups) == len(shares) // nodes, f"equal_{node}"
        model += nodes * pulp.lpSum(served[group, node] for group in groups) <= busiest, f"busiest_{node}"
    model.solve(pulp.HiGHS(msg=False, threads=1, random_seed=0))
    return max(float(model.solverModel.getInfo().mip_dual_bound) * (1 - _ROUNDING), 1.0)
