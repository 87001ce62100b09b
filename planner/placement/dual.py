"""More time on the proof: longer searches, and prices that prove a target impossible, found by cutting planes.

A certificate for one layer is a target T and a price mu_i per expert. A replica of expert i at count r has the load
w_i / r and the price mu_i / r. If no rank with S replicas of total load at most T holds replicas worth more than M,
then a map with the busiest rank at T would need sum mu_i <= ranks * M, for each expert's replicas are worth mu_i
together. So sum mu_i > ranks * M proves that every map is busier than T. The greatest worth is found exactly on loads
rounded down to T / 1000, which only allows more; so the check (``certificate_holds``, without a solver) never proves
too much.

Prices are linear between knots over the experts' loads: experts of similar load have similar prices, and a few dozen
variables settle in a few rounds where one per expert takes hundreds. Each round solves the linear programme over the
ranks seen so far and prices a point between its answer and the best prices known (without that the answers swing); the
dearest rank near every knot becomes a cut.

Ref: the dual of the configuration linear programme (Gilmore and Gomory 1961, Operations Research 9:849), with replica
counts as columns; in-out separation, Ben-Ameur and Neto 2007 (Networks 49:3); derived in docs/placement.md.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ground.arrays import Floats, Ints
from planner.manifest.loads import imbalance, rank_loads
from planner.placement.methods import Placement, lower_bound
from planner.placement.problem import Problem
from planner.placement.rows import search_jointly

GOAL = 5e-3  # a layer is done when the proven gap is this small
_TRIALS = 8
_ROUNDS = 40
_RATIOS = (0.95, 0.98)  # neighbouring knots differ by these factors, coarse before fine
_TOWARDS = (0.3, 0.6, 1.0)
_LEAST_PRICE = -2.0
_VIOLATED = 1e-7
_EFFORTS = ((GOAL, 3_000, GOAL), (0.01, 8_000, GOAL / 4), (0.01, 16_000, GOAL / 4))
"""Rounds of (layers with a wider gap, steps of the search from another seed, gap at which the proof stops)."""
GRID = 1000
_MARGIN = 1e-9


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proof that the busiest rank of a layer exceeds ``target``, in units of the mean rank."""

    target: float
    prices: Floats  # [experts]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Every replica that a map with the busiest rank at the target can have: expert, count and load on the grid."""

    expert: Ints
    count: Ints
    size: Ints
    slots_per_rank: int


@dataclass(frozen=True, slots=True)
class Priced:
    """The greatest worth of a rank with each replica on it, and the choices that recover its other replicas."""

    worth: Floats  # [replicas]
    rest: Ints  # [replicas] grid load that the other slots use
    dearest: Ints  # [grid] replica that is dearest at a grid load
    steps: list[Ints]  # for each further slot, [grid] grid load of the replica in it


def possible_replicas(loads: Floats, ranks: int, slots: int, target: float) -> Replicas | None:
    """Return the replicas that a map within ``target`` can have; None where it needs more slots than there are.

    ``loads`` [experts] and ``target`` in one unit. Expert i has at least w_i / target replicas, and at most what is
    left when every other has its least.
    """
    need = np.maximum(np.ceil(loads / target - _MARGIN), 1.0).astype(np.int64)
    spare = slots - int(need.sum())
    if spare < 0 or need.max() > ranks:
        return None
    most = np.minimum(need + spare, ranks)
    choices = most - need + 1
    expert = np.repeat(np.arange(len(loads)), choices)
    count = np.arange(len(expert)) - np.repeat(np.cumsum(choices) - choices, choices) + need[expert]
    size = np.maximum(np.floor(loads[expert] / count / target * GRID - _MARGIN), 0.0).astype(np.int64)
    return Replicas(expert, count, size, slots // ranks)


def price(replicas: Replicas, prices: Floats) -> Priced:
    """Return the greatest worth of a rank within the target for every replica that may stand on it.

    Dynamic programme over slots: the greatest worth of k replicas with a given grid load is the greatest sum of one
    replica and k - 1 others.
    """
    value = prices[replicas.expert] / replicas.count
    single, dearest = _dearest(replicas.size, value)
    offered = np.flatnonzero(np.isfinite(single))
    best, steps = single, []
    if replicas.slots_per_rank == 1:
        best = np.where(np.arange(GRID + 1) == 0, 0.0, -np.inf)  # no other slot
    for _ in range(replicas.slots_per_rank - 2):
        before = np.arange(GRID + 1)[:, None] - offered[None, :]  # [grid, offered]
        sums = np.where(before >= 0, best[before], -np.inf) + single[offered]
        chosen = sums.argmax(axis=1)
        best, used = sums[np.arange(GRID + 1), chosen], offered[chosen]
        steps.append(used)
    highest = np.maximum.accumulate(best)
    at = np.maximum.accumulate(np.where(best >= highest, np.arange(GRID + 1), 0))
    room = GRID - replicas.size
    return Priced(worth=value + highest[room], rest=at[room], dearest=dearest, steps=steps)


def _dearest(size: Ints, value: Floats) -> tuple[Floats, Ints]:
    """The greatest value at each grid load and the replica that has it; minus infinity where there is none."""
    order = np.lexsort((value, size))
    last = order[np.flatnonzero(np.append(size[order][1:] != size[order][:-1], True))]
    single, dearest = np.full(GRID + 1, -np.inf), np.full(GRID + 1, -1)
    single[size[last]], dearest[size[last]] = value[last], last
    return single, dearest


def dearest_ranks(replicas: Replicas, priced: Priced, first: Ints) -> Ints:
    """Return the dearest rank with each of the replicas ``first`` on it, [len(first), slots per rank] replicas."""
    ranks = np.empty((len(first), replicas.slots_per_rank), dtype=np.int64)
    ranks[:, 0] = first
    left = priced.rest[first]
    for slot, used in zip(range(1, replicas.slots_per_rank), [*reversed(priced.steps), None], strict=True):
        size = left if used is None else used[left]
        ranks[:, slot] = priced.dearest[size]
        left = left - size
    return ranks


def certificate_holds(certificate: Certificate, loads: Floats, ranks: int, slots: int) -> bool:
    """Whether the certificate proves that every map of the layer has a rank busier than its target.

    Args: ``certificate``: target in units of the mean rank, prices [experts]; ``loads``: [experts], any unit;
    ``ranks``: expert-parallel degree; ``slots``: slots in all, equally many on every rank, no expert twice on a rank.
    """
    scaled = loads * (ranks / loads.sum())
    if not 0 < certificate.target < np.inf or certificate.prices.shape != loads.shape:
        return False
    if not np.isfinite(certificate.prices).all():
        return False
    replicas = possible_replicas(scaled, ranks, slots, certificate.target)
    if replicas is None:
        return True
    worth = max(float(price(replicas, certificate.prices).worth.max()), 0.0)
    return bool(certificate.prices.sum() > ranks * worth * (1 + _MARGIN))


@dataclass(slots=True)
class _Prices:
    """Prices between knots: ``weights`` [experts, knots] are non-negative with row sums of 1."""

    weights: Floats
    inner: Floats  # [knots] prices that no rank exceeds 1 with
    proven: float  # sum of the experts' prices at ``inner``


def strongest_bound(
    loads: Floats, ranks: int, slots: int, low: float, high: float, goal: float = GOAL
) -> tuple[float, Certificate | None]:
    """Raise a lower bound of one layer by bisection towards what a map has reached.

    Args: ``loads``: [experts], any unit; ``ranks``: expert-parallel degree; ``slots``: slots in all; ``low``: a bound
    that is proven already, busiest rank over the mean; ``high``: what a map has reached; ``goal``: stop when (high -
    low) / high is no more.
    Returns the bound and the certificate that proves it; ``low`` and None where nothing better was found.
    """
    scaled = loads * (ranks / loads.sum())
    reached, found = high, None
    for _ in range(_TRIALS):
        if reached - low <= goal * reached or high - low <= goal / 2 * reached:
            break
        # The first trial aims near what was reached, for most maps are nearly optimal.
        target = (low + high) / 2 if high < reached else max((low + high) / 2, high * (1 - 2 * goal))
        certificate = prove(scaled, ranks, slots, target)
        if certificate is None:
            high = target
        else:
            low, found = target, certificate
    return low, found


def prove(scaled: Floats, ranks: int, slots: int, target: float) -> Certificate | None:
    """Return prices that prove the busiest rank above ``target``, None where none were found.

    ``scaled`` [experts] has the sum ``ranks``, so that the mean rank carries 1.
    """
    replicas = possible_replicas(scaled, ranks, slots, target)
    if replicas is None:
        return Certificate(target, np.zeros(len(scaled)))
    for ratio in _RATIOS:
        prices = _cutting_planes(scaled, ranks, target, replicas, ratio)
        if prices is not None:
            certificate = Certificate(target, prices)
            if certificate_holds(certificate, scaled, ranks, slots):
                return certificate
    return None


def _cutting_planes(scaled: Floats, ranks: int, target: float, replicas: Replicas, ratio: float) -> Floats | None:
    """Return prices [experts] whose sum exceeds ``ranks`` while no rank is worth more than 1, None without success."""
    knots = _knots(scaled, ratio)
    weights = _between_knots(scaled, knots)
    need = np.maximum(np.ceil(knots / target), 1.0)
    state = _Prices(weights, np.zeros(len(knots)), -np.inf)
    for start in (knots / target, need / replicas.slots_per_rank):  # the bounds that need no search
        _adopt(state, start, float(price(replicas, weights @ start).worth.max()))
    # A linear programme that maximises the sum of prices; rows are added as ranks are found
    gain = weights.sum(axis=0)
    import highspy  # only certificates need it

    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        solver.setOptionValue(name, value)
    count = len(gain)
    solver.addVars(count, np.full(count, _LEAST_PRICE), need)
    solver.changeColsCost(count, np.arange(count, dtype=np.int32), -gain)
    nearest = weights.argmax(axis=1)
    outer, seen = need, set[bytes]()
    for _ in range(_ROUNDS):
        cuts = _cuts(state, outer, replicas, nearest, seen)
        if state.proven > ranks:
            return np.asarray(weights @ state.inner)
        if cuts is None:
            return None
        at, column = np.nonzero(cuts)
        starts = np.searchsorted(at, np.arange(len(cuts))).astype(np.int32)
        least, most = np.full(len(cuts), -np.inf), np.ones(len(cuts))
        solver.addRows(len(cuts), least, most, len(column), starts, column.astype(np.int32), cuts[at, column])
        solver.run()
        outer = np.array(solver.getSolution().col_value)
        if weights.sum(axis=0) @ outer <= ranks:
            return None
    return None


def _adopt(state: _Prices, prices: Floats, worth: float) -> None:
    """Take over prices, scaled so that no rank exceeds 1, where their sum is the best so far."""
    if worth > 0 and (total := float((state.weights @ prices).sum() / worth)) > state.proven:
        state.inner, state.proven = prices / worth, total


def _cuts(state: _Prices, outer: Floats, replicas: Replicas, nearest: Ints, seen: set[bytes]) -> Floats | None:
    """Return rows [cuts, knots] of ranks worth more than 1 near the programme's answer; None at the optimum."""
    for towards in _TOWARDS:
        prices = state.inner + towards * (outer - state.inner)
        priced = price(replicas, state.weights @ prices)
        _adopt(state, prices, float(priced.worth.max()))
        region = nearest[replicas.expert]
        order = np.lexsort((priced.worth, region))
        dearest = order[np.flatnonzero(np.append(region[order][1:] != region[order][:-1], True))]
        dearest = dearest[priced.worth[dearest] > 1 + _VIOLATED]
        ranks = np.sort(dearest_ranks(replicas, priced, dearest), axis=1)
        new = [rank for rank in ranks if rank.tobytes() not in seen]
        if new:
            seen.update(rank.tobytes() for rank in new)
            held = np.array(new)
            share = state.weights[replicas.expert[held]] / replicas.count[held][:, :, None]
            return np.asarray(share.sum(axis=1))
    return None


def _knots(loads: Floats, ratio: float) -> Floats:
    """Loads in rising order, neighbours at least a factor apart, the least and the greatest among them."""
    knots: list[float] = []
    for load in np.unique(loads)[::-1].tolist():
        if not knots or load < knots[-1] * ratio:
            knots.append(load)
    least = float(loads.min())
    return np.array(([least] if knots[-1] > least else []) + knots[::-1])


def _between_knots(loads: Floats, knots: Floats) -> Floats:
    """Weights [loads, knots] of linear interpolation."""
    if len(knots) == 1:
        return np.ones((len(loads), 1))
    lower = np.clip(np.searchsorted(knots, loads, side="right") - 1, 0, len(knots) - 2)
    part = np.clip((loads - knots[lower]) / (knots[lower + 1] - knots[lower]), 0.0, 1.0)
    weights = np.zeros((len(loads), len(knots)))
    each = np.arange(len(loads))
    weights[each, lower] = 1 - part
    weights[each, lower + 1] += part
    return weights


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
    for seed, (gap, steps, goal) in enumerate(_EFFORTS):
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
