"""Further placements: for the experts' seconds, for less traffic between nodes, or near the current map.

In memory-bound decode a rank waits for the weights of the experts that some token hits, not for tokens: an expert whose
replica expects n tokens of an iteration is read with probability 1 - exp(-n). So a replica has two components, tokens
and expected reads, and a rank's cost is the roofline (``costs.roofline``) of its grouped products over both. METRO
(arXiv 2512.09277) balances activated experts for the same reason.

With group-limited routing a token goes to few groups, so to few nodes if groups stay together. A replica away from its
group's node (the node that serves most of the group) costs up to one more message between nodes for every token that it
serves: ``leaving_share`` counts those tokens. ``pay_for_leaving`` starts from groups that are kept, lets replicas leave
one exchange at a time where that relieves the busiest rank, goes on with trades, and takes on every layer the map where
imbalance plus the weighted share is least. ``trade_off_bound`` is an integer programme over groups and nodes that no
map can better.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from planner.costs.deployment import Deployment
from planner.costs.expert_operators import expert_terms
from planner.costs.predict import Configuration, expert_layouts
from planner.manifest.loads import imbalance, rank_loads
from planner.manifest.terms import Number, timing
from planner.placement.eplb import eplb
from planner.placement.grouped import keep_groups
from planner.placement.methods import Placement, measure
from planner.placement.migrate import few_moves, moves, renumbered
from planner.placement.problem import Problem
from planner.placement.rows import Objective, Rows, search_jointly, swap_best

_MOST_STEPS = 400
_ROUNDING = 1e-6  # the solver's feasibility tolerance
_STEPS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Maps for the least seconds of the busiest rank, [layers, slots], and those seconds beside others', [layers]."""

    slots: Ints
    seconds: Floats
    balanced_tokens: Floats  # seconds of the map that balances tokens
    eplb: Floats


def seconds_objective(deployment: Deployment) -> Objective:
    """Return the objective of a deployment; loads are tokens of one iteration, [rows, experts]."""
    terms = [term for term in expert_terms(deployment) if term.stage == "experts"]

    def weights(loads: Floats, counts: Ints) -> Floats:
        tokens = loads / counts
        return np.stack([tokens, -np.expm1(-tokens)], axis=2)

    def cost(sums: Floats) -> Floats:
        values: dict[str, Number] = {"one": 1.0, "routed": sums[..., 0], "hit": sums[..., 1]}
        return np.asarray(sum(np.asarray(timing(term, values).seconds()) for term in terms))

    return Objective(weights, cost)


def tokens_per_iteration(loads: Floats, deployment: Deployment, tokens: float) -> Floats:
    """Scale loads to one iteration in which the whole instance routes ``tokens`` tokens."""
    routed = tokens * deployment.moe.experts_per_token
    return np.asarray(loads * (routed / loads.sum(axis=1, keepdims=True)))


def busiest_seconds(loads: Floats, slots: Ints, ranks: int, objective: Objective) -> Floats:
    """Seconds of the busiest rank, [layers], from tokens of an iteration [layers, experts] and maps [layers, slots]."""
    counts = np.stack([np.bincount(row, minlength=loads.shape[1]) for row in slots])
    weight = objective.weights(loads, counts)
    held = weight[np.arange(len(loads))[:, None], slots]  # [layers, slots, components]
    sums = held.reshape(len(loads), ranks, -1, weight.shape[2]).sum(axis=2)
    return np.asarray(objective.cost(sums).max(axis=1))


def place_for_seconds(
    problem: Problem, deployment: Deployment, tokens: float, usual: Ints, *, search: bool = True
) -> Timed:
    """Place so that the busiest rank's experts take least seconds in an iteration of ``tokens`` tokens in all.

    The search starts from ``usual``, a map that balances tokens, or from EPLB's where that is quicker; without
    ``search`` the usual map is only timed. Kept groups stay as they are.
    """
    objective = seconds_objective(deployment)
    loads = tokens_per_iteration(problem.mean_loads, deployment, tokens)
    theirs = eplb(problem)
    by_tokens, by_eplb = (busiest_seconds(loads, slots, problem.ranks, objective) for slots in (usual, theirs))
    if not search:
        return Timed(slots=usual, seconds=by_tokens, balanced_tokens=by_tokens, eplb=by_eplb)
    found = np.where((by_eplb < by_tokens)[:, None], theirs, usual)
    if problem.slots_per_rank > 1 and not problem.keep_groups:
        held = found.reshape(problem.layers, problem.ranks, -1)
        # No rank can take less than its share of the tokens with no weights read.
        share = np.stack([loads.sum(axis=1) / problem.ranks, np.zeros(problem.layers)], axis=1)
        found = search_jointly(loads, held, objective.cost(share), _STEPS, objective=objective)
        found = np.sort(found, axis=2).reshape(problem.layers, -1)
    reached = busiest_seconds(loads, found, problem.ranks, objective)
    return Timed(slots=found, seconds=reached, balanced_tokens=by_tokens, eplb=by_eplb)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MapChange:
    """Imbalance of the current map, and experts to load for the new one, each [layers]."""

    current: NDArray[np.float64]
    loads: NDArray[np.int64]
    unlimited_loads: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingTokens:
    """Share of tokens served away from their group's node, and the bound on imbalance + weight x share; [layers]."""

    weight: float
    leaving: NDArray[np.float64]
    bound: NDArray[np.float64]


def time_experts(problem: Problem, asked: Configuration, placed: Placement, *, search: bool) -> tuple[Placement, Timed]:
    """Return the placement (with ``search``, the one with the least seconds found) and the experts' seconds."""
    deployment = expert_layouts(replace(asked, redundant=problem.redundant, shared="local"))[0]
    rows = asked.tokens if asked.phase == "prefill" else asked.batch
    timed = place_for_seconds(problem, deployment, rows * problem.ranks, placed.slots, search=search)
    return (_moved(problem, placed, timed.slots, "seconds") if search else placed), timed


def _moved(problem: Problem, placed: Placement, slots: NDArray[np.int64], method: str | None = None) -> Placement:
    """Return a placement with other slots; its bound is the old one, or its own value where that is lower."""
    reached = measure(problem, slots)
    bound = placed.lower_bound.clip(max=reached)
    return replace(placed, slots=slots, imbalance=reached, lower_bound=bound, method=method or placed.method)


def moved_little(
    problem: Problem, placed: Placement, current: NDArray[np.int64], most: int | None
) -> tuple[Placement, MapChange]:
    """Return the placement that keeps most experts in place, with at most ``most`` loads per layer."""
    before = measure(problem, current)
    slots = renumbered(current, placed.slots, problem)
    unlimited = loaded = moves(current, slots, problem.ranks).sum(axis=1)
    if most is not None:
        rows = []
        for layer, loads in enumerate(problem.mean_loads):
            if unlimited[layer] <= most:
                rows.append(slots[layer])
                continue
            rows.append(few_moves(loads, current[layer], problem.ranks, most)[-1])
        slots = np.stack(rows)
        loaded = moves(current, slots, problem.ranks).sum(axis=1)
    return _moved(problem, placed, slots), MapChange(current=before, loads=loaded, unlimited_loads=unlimited)


def weigh_traffic(problem: Problem, placed: Placement, weight: float) -> tuple[Placement, LeavingTokens]:
    """Return the map with the least imbalance + weight x leaving share among the given one and those on the way."""
    slots = pay_for_leaving(replace(problem, keep_groups=True), weight)
    ours, usual = (measure(problem, rows) + weight * leaving_share(problem, rows) for rows in (slots, placed.slots))
    slots = np.where((usual < ours)[:, None], placed.slots, slots)
    told = LeavingTokens(weight=weight, leaving=leaving_share(problem, slots), bound=trade_off_bound(problem, weight))
    return _moved(problem, placed, slots, "traffic"), told
