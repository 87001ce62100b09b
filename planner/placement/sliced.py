"""Placement for loads that change: the busiest rank of every time slice counts, not that of the mean.

One fixed map serves all slices; a layer takes sum over slices of max over ranks, for every slice waits for its own
busiest rank (xDeepServe section 4.5). The search exchanges and trades replicas while that sum falls, for all layers
side by side.
"""

from dataclasses import dataclass

import numpy as np

from ground.arrays import Bools, Floats, Ints
from planner.manifest.loads import rank_loads

_CANDIDATES = 48
_TRADE_EVERY = 4
_TRADES = 6
_GAIN = 1e-12

_MOST_SLICES = 64  # where there are more, neighbouring ones are added up: a step's moves are priced on every slice


def slice_imbalance(loads: Floats, slots: Ints, ranks: int) -> Floats:
    """Sum over slices of the busiest rank over the sum of the mean ranks, [layers].

    Args: ``loads``: [layers, experts, slices]; ``slots``: [layers, ranks * slots_per_rank]; ``ranks``: expert-parallel
    degree.

    Ref: xDeepServe (arXiv 2508.02520) section 4.5, its L(l) with ranks for experts.
    """
    peaks, means = np.zeros(len(loads)), np.zeros(len(loads))
    for slice_ in range(loads.shape[2]):
        carried = rank_loads(loads[:, :, slice_], slots, ranks)
        peaks += carried.max(axis=1)
        means += carried.mean(axis=1)
    return peaks / means


def fewer_slices(loads: Floats) -> Floats:
    """Return the loads with neighbouring slices added up, at most ``_MOST_SLICES`` of about equal length."""
    slices = loads.shape[2]
    if slices <= _MOST_SLICES:
        return loads
    starts = np.arange(_MOST_SLICES) * slices // _MOST_SLICES
    return np.asarray(np.add.reduceat(loads, starts, axis=2))


@dataclass(slots=True)
class _Slices:
    """Maps under improvement; the last two follow from the others."""

    loads: Floats  # [layers, experts, slices]
    counts: Ints  # [layers, experts]
    held: Ints  # [layers, ranks, slots]
    node_ranks: int  # moves stay within runs of so many ranks
    on: Bools  # [layers, experts, ranks]
    carried: Floats  # [layers, ranks, slices]

    def derive(self) -> None:
        """Recompute what follows from counts and maps."""
        layer = np.arange(len(self.held))[:, None, None]
        share = 1.0 / self.counts[layer, self.held]  # [layers, ranks, slots]
        self.carried = np.einsum("lgst,lgs->lgt", self.loads[layer, self.held], share)
        self.on = np.zeros((*self.counts.shape, self.held.shape[1]), dtype=bool)
        self.on[layer, self.held, np.arange(self.held.shape[1])[None, :, None]] = True

    @property
    def cost(self) -> Floats:
        """Sum over slices of the busiest rank, [layers]."""
        return np.asarray(self.carried.max(axis=1).sum(axis=1))


def search_slices(loads: Floats, held: Ints, *, steps: int, node_ranks: int | None = None) -> Ints:
    """Lower the sum over slices of the busiest rank by exchanges and trades, from ``held`` on.

    Args: ``loads``: [layers, experts, slices], any unit; ``held``: [layers, ranks, slots_per_rank] without duplicates
    on a rank; ``steps``: of the search; in each every layer takes the best of some random moves, if it helps;
    ``node_ranks``: experts stay on their node of so many ranks; None lets them go anywhere.
    Returns [layers, ranks, slots_per_rank].
    """
    rng = np.random.default_rng(0)
    layers, experts, _ = loads.shape
    scaled = loads / loads.mean(axis=(1, 2), keepdims=True)
    flat = held.reshape(layers, -1) + np.arange(layers)[:, None] * experts
    counts = np.bincount(flat.ravel(), minlength=layers * experts).reshape(layers, experts)
    nothing = np.zeros(0)
    within = node_ranks or held.shape[1]
    state = _Slices(scaled, counts, held.copy(), within, nothing.astype(bool), nothing)
    state.derive()
    for step in range(steps):
        if step % _TRADE_EVERY == 0:
            _trade(state, rng)
        else:
            _exchange(state, rng)
    return state.held


def _peak_ranks(state: _Slices, count: int, rng: np.random.Generator) -> Ints:
    """Busiest ranks of random slices, [layers, count]."""
    layers, _, slices = state.carried.shape
    busiest = state.carried.argmax(axis=1)  # [layers, slices]
    return np.take_along_axis(busiest, rng.integers(slices, size=(layers, count)), axis=1)


def _near(state: _Slices, here: Ints, rng: np.random.Generator) -> Ints:
    """Random ranks that experts of ``here`` may go to, of its shape."""
    return np.asarray(here - here % state.node_ranks + rng.integers(state.node_ranks, size=here.shape))


def _exchange(state: _Slices, rng: np.random.Generator) -> None:
    """Try random exchanges with busiest ranks; every layer takes its best one, if it helps."""
    layers, _, slots = state.held.shape
    layer = np.arange(layers)[:, None]
    here = _peak_ranks(state, _CANDIDATES, rng)
    there = _near(state, here, rng)
    mine, theirs = rng.integers(slots, size=here.shape), rng.integers(slots, size=here.shape)
    give, take = state.held[layer, here, mine], state.held[layer, there, theirs]
    allowed = ~state.on[layer, give, there] & ~state.on[layer, take, here]
    shift = (state.loads[layer, give] / state.counts[layer, give][..., None]) - (
        state.loads[layer, take] / state.counts[layer, take][..., None]
    )  # [layers, candidates, slices]
    first, second = state.carried[layer, here] - shift, state.carried[layer, there] + shift
    after = np.maximum(np.maximum(first, second), _others(state, here, there)).sum(axis=2)
    after[~allowed] = np.inf
    best = after.argmin(axis=1)
    each = np.arange(layers)
    good = after[each, best] < state.cost - _GAIN
    each, best = each[good], best[good]
    a, b, s, q = (array[each, best] for array in (here, there, mine, theirs))
    state.held[each, a, s], state.held[each, b, q] = take[each, best], give[each, best]
    state.carried[each, a] -= shift[each, best]
    state.carried[each, b] += shift[each, best]
    for rank, gone, come in ((a, give, take), (b, take, give)):
        state.on[each, gone[each, best], rank] = False
        state.on[each, come[each, best], rank] = True


def _others(state: _Slices, here: Ints, there: Ints) -> Floats:
    """Busiest of the ranks other than two, [layers, candidates, slices]: one of the three busiest is neither."""
    carried = state.carried
    most = min(3, carried.shape[1])
    top = np.argpartition(-carried, most - 1, axis=1)[:, :most]  # [layers, 3, slices]
    values = np.take_along_axis(carried, top, axis=1)
    result = np.full((*here.shape, carried.shape[2]), -np.inf)
    for place in range(most):
        rank = top[:, None, place]  # [layers, 1, slices]
        other = (rank != here[..., None]) & (rank != there[..., None])
        result = np.maximum(result, np.where(other, values[:, None, place], -np.inf))
    return result


def _trade(state: _Slices, rng: np.random.Generator) -> None:
    """Try to turn slots of replicated experts over to experts of busiest ranks; each layer takes its best, if any."""
    layers, _, slots = state.held.shape
    layer = np.arange(layers)[:, None]
    here = _peak_ranks(state, _TRADES, rng)
    gains = state.held[layer, here, rng.integers(slots, size=here.shape)]
    there, place = _near(state, here, rng), rng.integers(slots, size=here.shape)
    loses = state.held[layer, there, place]
    allowed = (state.counts[layer, loses] > 1) & ~state.on[layer, gains, there]
    more, fewer = state.counts[layer, gains], state.counts[layer, loses]
    after = np.empty(here.shape)
    for number in range(_TRADES):
        g, j, at = gains[:, number], loses[:, number], there[:, number]
        after[:, number] = _after_trade(state, g, j, at, more[:, number], np.maximum(fewer[:, number], 2))
    after[~allowed] = np.inf
    best = after.argmin(axis=1)
    each = np.arange(layers)
    good = after[each, best] < state.cost - _GAIN
    each, best = each[good], best[good]
    if not len(each):
        return
    state.held[each, there[each, best], place[each, best]] = gains[each, best]
    state.counts[each, gains[each, best]] += 1
    state.counts[each, loses[each, best]] -= 1
    state.derive()


def _after_trade(state: _Slices, gains: Ints, loses: Ints, at: Ints, more: Ints, fewer: Ints) -> Floats:
    """Cost of every layer with one more replica of ``gains`` in the place of one of ``loses`` on rank ``at``."""
    each = np.arange(len(gains))
    with_gain, with_loss = state.on[each, gains].astype(float), state.on[each, loses].astype(float)  # [layers, ranks]
    with_gain[each, at], with_loss[each, at] = 1.0, 0.0
    before_gain, before_loss = state.on[each, gains], state.on[each, loses]
    change_gain = with_gain / (more + 1)[:, None] - before_gain / more[:, None]
    change_loss = with_loss / (fewer - 1)[:, None] - before_loss / fewer[:, None]
    carried = (
        state.carried
        + change_gain[:, :, None] * state.loads[each, gains][:, None]
        + change_loss[:, :, None] * state.loads[each, loses][:, None]
    )
    return np.asarray(carried.max(axis=1).sum(axis=1))
