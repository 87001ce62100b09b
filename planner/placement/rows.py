"""Maps under improvement, many layers side by side: the state of the local search and its moves.

A row is one layer (or one node of a layer). What a replica weighs has one or more components (tokens; or tokens and
expert weights that are read); a rank's cost is a function of the sums of its components. Two moves change a map: a swap
exchanges one replica of the busiest rank for one elsewhere; a trade turns a slot of a replicated expert into one more
replica of an expert on the busiest rank, so counts and positions are searched together.

The local search swaps until settled, then changes counts and positions together by repeated trades.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ground.arrays import Bools, Floats, Ints

_GAIN = 1e-9  # a move must lower the busiest rank by this share at least: rounding must not keep the search running

_CHEAPEST = 16  # trades take a replica from one of so many experts that suffer least by it

_MOST_TRADES = 3
_LEAST_SHARE = 1e-9
SETTLED = 2e-4  # a row is done within this excess over its floor: routing noise is fifty times larger

_TEMPERATURE = 1e-3  # mean share by which a settled map may be worse than the one before and still be searched on from


@dataclass(frozen=True, slots=True)
class Kick:
    """How trades are drawn: shares of all trades.

    ``relieve``: an expert of the busiest rank gains; any expert otherwise. ``shed``: an expert of the busiest rank
    gives a replica up; otherwise one whose replicas stay light. ``again``: a second trade follows, then a third.
    """

    relieve: float
    shed: float
    again: float


MILD = Kick(relieve=0.9, shed=0.1, again=0.2)
BOLD = Kick(relieve=0.8, shed=0.2, again=0.3)  # for few ranks, where a hot expert's replicas get in each other's way


@dataclass(frozen=True, slots=True)
class Objective:
    """What a rank costs.

    ``weights(loads, counts)`` gives [rows, experts, components] of one replica from two arrays [rows, experts];
    ``cost(sums)`` takes the components, added up over a rank, on the last axis and leaves the others.
    """

    weights: Callable[[Floats, Ints], Floats]
    cost: Callable[[Floats], Floats]


TOKENS = Objective(  # tokens of a rank, those of an expert split evenly over its replicas
    lambda loads, counts: np.asarray((loads / counts)[:, :, None]), lambda sums: np.asarray(sums[..., 0])
)


@dataclass(slots=True)
class Rows:
    """Maps and what their ranks carry; ``refresh`` derives the last four fields from the others."""

    objective: Objective
    loads: Floats  # [rows, experts]
    counts: Ints  # [rows, experts]
    held: Ints  # [rows, ranks, slots]
    weight: Floats  # [rows, experts, components] of one replica
    carried: Floats  # [rows, ranks, slots, components]
    total: Floats  # [rows, ranks, components]
    on: Bools  # [rows, experts, ranks]

    @classmethod
    def start(cls, loads: Floats, held: Ints, objective: Objective = TOKENS) -> "Rows":
        """Take over maps [rows, ranks, slots] without an expert twice on a rank."""
        rows, ranks, slots = held.shape
        experts = loads.shape[1]
        flat = held.reshape(rows, -1) + np.arange(rows)[:, None] * experts
        counts = np.bincount(flat.ravel(), minlength=rows * experts).reshape(rows, experts)
        weight = objective.weights(loads, counts)
        parts = weight.shape[2]
        state = cls(
            objective=objective,
            loads=loads,
            counts=counts,
            held=held.copy(),
            weight=weight,
            carried=np.empty((rows, ranks, slots, parts)),
            total=np.empty((rows, ranks, parts)),
            on=np.empty((rows, experts, ranks), dtype=bool),
        )
        state.refresh(np.arange(rows))
        return state

    def refresh(self, rows: Ints) -> None:
        """Recompute for ``rows`` what follows from counts and maps."""
        held = self.held[rows]
        self.weight[rows] = self.objective.weights(self.loads[rows], self.counts[rows])
        self.carried[rows] = self.weight[rows[:, None, None], held]
        self.total[rows] = self.carried[rows].sum(axis=2)
        self.on[rows] = False
        self.on[rows[:, None, None], held, np.arange(held.shape[1])[None, :, None]] = True

    def peak(self, rows: Ints) -> tuple[Ints, Floats]:
        """Busiest rank and its cost, [rows] each."""
        cost = self.objective.cost(self.total[rows])
        busy = cost.argmax(axis=1)
        return busy, cost[np.arange(len(rows)), busy]


def swap_best(state: Rows, rows: Ints) -> tuple[Ints, Floats]:
    """Swap on every row the pair that leaves the least maximum on the two ranks, where that helps the busiest rank.

    Returns the rows where no swap helps, and the cost of their busiest ranks.
    """
    busy, highest = state.peak(rows)
    after = _pair_costs(state, rows, busy)  # [rows, own slot, any slot]
    count, own, slots = after.shape
    choice = after.reshape(count, own * slots).argmin(axis=1)
    reached = after.reshape(count, own * slots)[np.arange(count), choice]
    helps = reached < highest * (1 - _GAIN)
    give, take = np.divmod(choice[helps], slots)
    _exchange(state, rows[helps], (busy[helps], give), np.divmod(take, own))
    return rows[~helps], highest[~helps]


def _pair_costs(state: Rows, rows: Ints, busy: Ints) -> Floats:
    """Greater cost of the two ranks after every swap with the busiest rank, infinite where an expert would double."""
    count, ranks, slots = len(rows), state.held.shape[1], state.held.shape[2]
    each = np.arange(count)
    rank_of = np.repeat(np.arange(ranks), slots)  # [slots of all ranks]
    carried, total = state.carried[rows], state.total[rows]
    shift = carried[each, busy][:, :, None] - carried.reshape(count, 1, ranks * slots, -1)
    cost = state.objective.cost
    after = np.maximum(cost(total[each, busy][:, None, None] - shift), cost(total[:, rank_of][:, None] + shift))
    mine = state.held[rows, busy]  # [rows, own slot]
    after[state.on[rows[:, None], mine][:, :, rank_of]] = np.inf
    theirs = state.held[rows].reshape(count, -1)
    after.transpose(0, 2, 1)[state.on[rows[:, None], theirs, busy[:, None]]] = np.inf
    return after


def _exchange(state: Rows, rows: Ints, here: tuple[Ints, Ints], there: tuple[Ints, Ints]) -> None:
    """Exchange the experts of two (rank, slot) places on every row."""
    first, second = state.held[rows, *here], state.held[rows, *there]
    for place, old, new in ((here, first, second), (there, second, first)):
        state.held[rows, *place] = new
        state.carried[rows, *place] = state.weight[rows, new]
        state.on[rows, old, place[0]] = False
    for place, new in ((here, second), (there, first)):
        state.on[rows, new, place[0]] = True
        state.total[rows, place[0]] = state.carried[rows, place[0]].sum(axis=1)


def trade_at_random(state: Rows, rows: Ints, rng: np.random.Generator, kick: Kick = MILD) -> None:
    """Turn a slot of a replicated expert into one more replica of another, once or a few times per row.

    Most often an expert of the busiest rank gains, drawn in proportion to its load there, from one whose replicas would
    be lightest afterwards. Sometimes any expert gains, or an expert of the busiest rank loses: where two hot experts
    must share ranks, fewer replicas of one of them can be better. Where nothing can be traded, two replicas change
    places.
    """
    count = len(rows)
    busy, _ = state.peak(rows)
    for extra in range(_MOST_TRADES):
        going = np.flatnonzero(rng.random(count) < (kick.again if extra else 1.0))
        if not len(going):
            break
        some, at = rows[going], busy[going]
        carried = state.carried[some, at, :, 0]  # [rows, own slot]
        share = carried / np.maximum(carried.max(axis=1, keepdims=True), np.finfo(float).tiny)
        waits = rng.exponential(size=share.shape) / np.maximum(share, _LEAST_SHARE)  # the first to arrive is drawn
        gains = np.where(
            rng.random(len(some)) < kick.relieve,
            np.asarray(state.held[some, at, waits.argmin(axis=1)]),
            rng.integers(state.loads.shape[1], size=len(some)),
        )
        # Expert whose replicas stay light with one fewer, [rows]; one with a single replica where there is none
        each, counts = np.arange(len(some)), state.counts[some]
        burden = np.where(counts > 1, state.loads[some] / np.maximum(counts - 1, 1), np.inf)
        burden[each, gains] = np.inf
        nearest = min(_CHEAPEST, burden.shape[1] - 1)
        cheap = np.argpartition(burden, nearest, axis=1)[:, :nearest]
        cheap = np.take_along_axis(cheap, np.take_along_axis(burden, cheap, axis=1).argsort(axis=1), axis=1)
        loses = np.asarray(cheap[each, (rng.random(len(some)) ** 2 * nearest).astype(np.int64)])
        shed = state.held[some, at, rng.integers(state.held.shape[2], size=len(some))]
        sheds = (rng.random(len(some)) < kick.shed) & (state.counts[some, shed] > 1)
        idle = _trade(state, some, gains, np.where(sheds, shed, loses), rng)
        if not extra:
            _shuffle(state, some[idle], at[idle], rng)
    state.refresh(rows)


def _shuffle(state: Rows, rows: Ints, busy: Ints, rng: np.random.Generator) -> None:
    """Exchange a random slot of the busiest rank with one elsewhere, where no expert doubles; maps only."""
    ranks, slots = state.held.shape[1:]
    mine, rank, theirs = (rng.integers(most, size=len(rows)) for most in (slots, ranks, slots))
    give, take = state.held[rows, busy, mine], state.held[rows, rank, theirs]
    free = ~state.on[rows, give, rank] & ~state.on[rows, take, busy]
    state.held[rows[free], busy[free], mine[free]] = take[free]
    state.held[rows[free], rank[free], theirs[free]] = give[free]


def _trade(state: Rows, rows: Ints, gains: Ints, loses: Ints, rng: np.random.Generator) -> Bools:
    """Turn a random slot of ``loses`` on a rank without ``gains`` over to ``gains``; counts and maps only.

    Returns whether a row had no such slot.
    """
    held = state.held[rows]
    has = (held == gains[:, None, None]).any(axis=2)  # [rows, ranks]
    open_slots = (held == loses[:, None, None]) & ~has[:, :, None]
    spare = (state.counts[rows, loses] > 1) & (gains != loses)
    lots = np.where(open_slots & spare[:, None, None], rng.random(held.shape), -1.0).reshape(len(rows), -1)
    chosen = lots.argmax(axis=1)
    found = lots[np.arange(len(rows)), chosen] >= 0
    rank, slot = np.divmod(chosen[found], held.shape[2])
    state.held[rows[found], rank, slot] = gains[found]
    state.counts[rows[found], gains[found]] += 1
    state.counts[rows[found], loses[found]] -= 1
    return np.asarray(~found)


def settle(loads: Floats, held: Ints, floor: Floats) -> Ints:
    """Swap replicas of the busiest rank, the best pair first, until no swap helps; counts stay.

    Every step lowers the busiest rank of its row strictly, so it ends.

    Args: ``loads``: [rows, experts], any unit; ``held``: [rows, ranks, slots] expert ids without duplicates on a rank;
    ``floor``: [rows] lower bounds on the busiest rank; rows within ``SETTLED`` of theirs are done.
    Returns [rows, ranks, slots]; the costs of ``held`` or less.
    """
    state = Rows.start(loads, held)
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

    Args: ``loads``: [rows, experts], any unit; ``held``: [rows, ranks, slots] expert ids without duplicates on a rank;
    ``floor``: [rows] lower bounds on the busiest rank; rows within ``SETTLED`` of theirs are done; ``steps``: steps of
    the search; every unfinished row makes one swap or one trade in each; ``seed``: of the random trades; equal
    arguments give equal maps; ``objective``: what a rank costs; ``kick``: how trades are drawn.
    Returns [rows, ranks, slots]; the costs of ``held`` or less.

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
