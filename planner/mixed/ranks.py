"""Prompts at an aggregated instance of several DP ranks, while the requests in decode stay as many.

A prompt stands on one rank, which computes a part of it per step; all ranks leave a step together. So the state when a
step starts is (prompts that came during the last one, parts that older prompts lack), and a step lasts as its fullest
rank does. Prompts are dealt over the ranks in turn: two share a rank only where there are more of them than ranks.

Ref: bulk service with vacations as in ``mixed.chain``; backward recursion for the time to absorption, J. G.
Kemeny and J. L. Snell, Finite Markov Chains, chapter 3. Derived here.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import NDArray

from ground.arrays import on_nodes
from planner.mixed.chain import PromptState, on_lattice
from planner.mixed.even import with_mates
from planner.mixed.parts import CutPrompts, cut_prompts, kind_weights, stages, step_loads
from planner.mixed.steps import StepTable
from planner.mixed.waits import behind_long_ones
from planner.queues.arrival_counts import Arrivals
from planner.queues.paired_balance import paired_balance
from planner.queues.queueing import Array

_MOST_CAME, _MOST_LACKING, _MOST_STATES = 40, 72, 700
_LONGEST = 24
_CELLS = 14
_GRID, _LEAST = 1024, 1e-9
"""Times after the step under way that are told apart, and the least mass of a time that counts."""
_NEGLIGIBLE = 2e-6
_GROUPS = 5
"""Of prompts by size."""
_IDLE = 0.5
_CHANGE = 0.05
"""Of the rate, over which it is seen how prompts lengthen steps."""
_RARE = 1e-6
_Points = tuple[Array, Array]
_SCORES, _CHANCES = np.array([-1.0, 0.0, 1.0]) * math.sqrt(1.5), np.full(3, 1 / 3)
"""Three points with the variance of the own steps, near enough to be no longer than steps get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lattice:
    """States that are told apart."""

    longest_seconds: float
    """Of steps that hold as many prompts as come during such steps."""
    came: Array
    """Prompts that came during a step, [came]."""
    lacking: Array
    """Parts that older ones lack, [lacking]."""

    @property
    def lump(self) -> float:
        """Prompts between the numbers that came."""
        return float(self.came[1])

    @property
    def lump_parts(self) -> float:
        """Parts between the numbers that lack."""
        return float(self.lacking[1])


@dataclass(frozen=True, kw_only=True)
class _Chain:
    """Steps by (came, lacking)."""

    lattice: _Lattice
    rate: float
    dispersion: float
    together: float
    """Prompts that all ranks take in a step."""
    weights: Array
    """How likely steps of each kind are, by the size of their largest prompt; [kinds]."""
    durations: Array
    """[kinds, came, lacking], as are the two below."""
    busiest: Array
    """Prompt tokens of the fullest rank."""
    total: Array
    """Prompt tokens of all ranks."""
    come: Array
    """Distribution of what comes during each step, [kinds, came · lacking, came]."""
    next: Array
    """Distribution of the parts that lack after each step, [lacking, came · lacking]."""
    older: Array
    """Prompts that lack so many parts, [lacking]."""

    @cached_property
    def seconds(self) -> Array:
        """Mean duration, [came, lacking]."""
        return np.asarray(np.tensordot(self.weights, self.durations, 1))

    @cached_property
    def mean_come(self) -> Array:
        """Distribution of what comes during a step of any kind, [came · lacking, came]."""
        return np.asarray(np.tensordot(self.weights, self.come, 1))

    def ahead(self, values: Array) -> Array:
        """Return the expectation one step later of ``values``; both [..., came, lacking]."""
        size, count = values.shape[-2:]
        later = (values.reshape(-1, count) @ self.next).reshape(-1, size, size * count)
        return np.asarray((later * self.mean_come.T).sum(axis=1).reshape(values.shape))


def ranks_state(table: StepTable, running: float, rate: float, dispersion: float) -> PromptState | None:
    """Return the chain's balance at one number of running requests; None where prompts come faster than they go."""
    prompts = cut_prompts(table, running)
    lattice = _lattice(table, running, rate, dispersion, prompts)
    if lattice is None:
        return None
    chain = _chain(table, running, (rate, dispersion), prompts, lattice)
    chances = paired_balance(chain.mean_come, chain.next)
    seconds, prompt_steps = _mean_step(chain, chances, running)
    return PromptState(
        mean_step_seconds=seconds,
        step_variance=_step_variance(chain, chances, running),
        prompt_steps=prompt_steps,
        sojourn=cache(partial(_sojourn, table, running, chain, chances, prompts)),
        per_prompt=cache(partial(_per_prompt, table, running, chain, seconds, prompts)),
    )


def _mean_step(chain: _Chain, chances: Array, running: float) -> tuple[float, float]:
    """(mean seconds of a step, share of steps with prompts) while the instance does not stand still."""
    working = _working(chances, running)
    return float((working * chain.seconds).sum()), 1 - float(working[0, 0])


def _step_variance(chain: _Chain, chances: Array, running: float) -> float:
    """Variance of a step, in squared seconds, while the instance does not stand still."""
    masses = chain.weights[:, None, None] * _working(chances, running)
    mean = float((masses * chain.durations).sum())
    return float((masses * (chain.durations - mean) ** 2).sum())


def _working(chances: Array, running: float) -> Array:
    """Chances of the states in which there are steps; they sum to 1."""
    working = chances.copy()
    if running < _IDLE:
        working[0, 0] = 0.0
    return np.asarray(working / working.sum())


def _per_prompt(table: StepTable, running: float, chain: _Chain, seconds: float, prompts: CutPrompts) -> float:
    """Seconds by which one more prompt delays steps: (d step / d rate) / step, in the same states at more prompts."""
    more = _chain(table, running, (chain.rate * (1 + _CHANGE), chain.dispersion), prompts, chain.lattice)
    longer, _ = _mean_step(more, paired_balance(more.mean_come, more.next), running)
    return max((longer - seconds) / (_CHANGE * chain.rate * seconds), 0.0)


def _lattice(table: StepTable, running: float, rate: float, dispersion: float, prompts: CutPrompts) -> _Lattice | None:
    """Return the states that tell what happens at a rate; None where prompts come faster than they go."""
    ranks = float(table.aggregate.ranks)
    longest = _longest_step(table, running, rate, prompts, ranks)
    busy = rate * longest * prompts.mean_parts / (ranks * prompts.together)
    if busy >= 0.999:
        return None
    came, lacking = _reach(rate * longest, dispersion, prompts, busy)
    lump = math.ceil(came / _MOST_CAME)
    new = lump * np.arange(math.ceil(came / lump) + 1.0)
    parts = math.ceil(lacking / min(_MOST_LACKING, _MOST_STATES / new.size))
    return _Lattice(longest_seconds=longest, came=new, lacking=parts * np.arange(math.ceil(lacking / parts) + 1.0))


def _chain(
    table: StepTable, running: float, arrivals: tuple[float, float], prompts: CutPrompts, lattice: _Lattice
) -> _Chain:
    """Return the chain over a lattice for arrivals with a rate and dispersion."""
    rate, dispersion = arrivals
    new = lattice.came
    older, lasts, all_last = stages(prompts, lattice.lacking, rate * lattice.longest_seconds)
    busiest, total, taken_new, taken_old = step_loads(table, prompts, (new, older, lasts, all_last))
    seconds = table.seconds(running, busiest, total)
    idle = running < _IDLE  # nothing runs and nothing waits: the instance stands still
    if idle:
        seconds[:, 0, 0] = 1.0
    come = Arrivals.of(rate, dispersion).counts(seconds.ravel(), lattice.lump, new.size)
    come = come.reshape(*seconds.shape, new.size)
    if idle:
        come[:, 0, 0] = np.eye(1, new.size, 1)[0]
    return _Chain(
        lattice=lattice,
        rate=rate,
        dispersion=dispersion,
        together=float(table.aggregate.ranks) * prompts.together,
        weights=kind_weights(prompts),
        durations=seconds,
        busiest=busiest,
        total=total,
        come=come.reshape(seconds.shape[0], -1, new.size),
        next=_moves(prompts, lattice, taken_new, taken_old),
        older=older,
    )


def _longest_step(table: StepTable, running: float, rate: float, prompts: CutPrompts, ranks: float) -> float:
    """Seconds of steps that hold as many prompts as come during such steps."""
    chunk = np.array([float(prompts.first.max())])
    seconds = float(table.seconds(running, chunk, chunk)[0])
    mean = float(prompts.first @ prompts.weights)
    for _ in range(4):
        held = min(max(rate * seconds * prompts.mean_parts, 1.0), ranks * prompts.together)
        busiest = np.minimum(chunk * max(held / ranks, 1.0), prompts.room)
        seconds = float(table.seconds(running, busiest, np.maximum(busiest, held * np.array([mean])))[0])
    return seconds


def _reach(came: float, dispersion: float, prompts: CutPrompts, busy: float) -> tuple[float, float]:
    """Prompts that come during a step, and parts that older ones lack, that are all but never exceeded."""
    spread = max(dispersion, 0.3)
    most = came + 5 * math.sqrt(spread * came) + 4
    further = prompts.parts - 1
    mean = float(prompts.weights @ (further * (further + 1))) / 2
    square = float(prompts.weights @ (further * (further + 1) * (2 * further + 1))) / 6
    lacking = came * mean + 5 * math.sqrt(spread * came * max(square, 0.0)) + float(further.max())
    waiting = 8 * prompts.mean_parts * max(busy - 0.3, 0.0) / (1 - busy)
    return most, lacking + waiting + 2


def _moves(prompts: CutPrompts, lattice: _Lattice, taken_new: Array, taken_old: Array) -> Array:
    """Distribution of the parts that lack after a step, [lacking, came · lacking].

    What is left of the older parts, all parts of prompts that were not taken, and what those taken lack after their
    first part.
    """
    size, new = lattice.lacking.size, lattice.came
    left = (lattice.lacking - taken_old + (new[:, None] - taken_new) * prompts.mean_parts).ravel()
    if np.ptp(prompts.parts) <= 0:
        left = left + taken_new.ravel() * float(prompts.parts[0] - 1)
        adds = np.eye(1, size)[np.zeros(left.size, dtype=np.intp)]
    else:
        further = on_lattice(np.maximum(prompts.parts - 1, 0.0) / lattice.lump_parts, prompts.weights)
        each = _added(further, round(float(new[-1])) + 2, size)
        taken = taken_new.ravel()
        whole = np.minimum((taken + 1e-9).astype(np.intp), len(each) - 2)
        rest = np.clip(taken - whole, 0.0, 1.0)[:, None]
        adds = each[whole] * (1 - rest) + each[whole + 1] * rest  # [came · lacking, added]
    left = left / lattice.lump_parts
    low = np.clip((left + 1e-9).astype(np.intp), 0, size - 1)
    part = np.clip(left - low, 0.0, 1.0)
    ahead = np.concatenate([np.zeros((adds.shape[0], size)), adds], axis=1)
    shifted = ahead[np.arange(low.size), np.arange(-1, size - 1)[:, None] - low + size]  # none added below ``low``
    found = np.empty((size, low.size))
    found[:-1] = (1 - part) * shifted[1:] + part * shifted[:-1]
    found[-1] = np.maximum(1 - found[:-1].sum(axis=0), 0.0)
    return found


def _added(further: Array, counts: int, size: int) -> Array:
    """Distribution of the lumps of parts that 0, 1, ... prompts lack after their first, [counts, size]; the last: or
    more.
    """
    adds = np.zeros((counts, size))
    adds[0, 0] = 1.0
    for count in range(1, counts):
        adds[count] = np.convolve(adds[count - 1], further)[:size]
        adds[count, -1] += max(1 - float(adds[count].sum()), 0.0)
    return adds


def _sojourn(table: StepTable, running: float, chain: _Chain, chances: Array, prompts: CutPrompts) -> _Points:
    """Seconds from arrival to first token as point masses: rest of the step under way, then the own steps."""
    seen = chances * chain.durations * chain.weights[:, None, None]  # [kinds, came, lacking]
    standing = 0.0
    if running < _IDLE:
        seen[:, 0, 0] = 0.0
        standing = float(chances[0, 0]) / chain.rate
    seen = seen / (float(seen.sum()) + standing)
    edges = np.linspace(0.0, float(chain.durations[seen > _RARE].max(initial=1e-9)), _CELLS + 1)
    rest, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    size, count = chances.shape
    found = np.zeros((size * count, _CELLS, size))
    for own, seconds, come in zip(seen, chain.durations, chain.come, strict=True):
        flat = seconds.reshape(-1, 1)
        overlap = np.clip((flat - edges[:-1]) / width, 0.0, 1.0) * (own.reshape(-1, 1) * width / flat)
        mates = max(chain.dispersion - 1, 0.0) / chain.lattice.lump
        beside = with_mates(_one_more(come) if chain.lattice.lump == 1 else come, mates)  # the own prompt comes, too
        found += overlap[:, :, None] * beside[:, None]
    joint = (chain.next @ found.reshape(size * count, -1)).reshape(count, _CELLS, size).transpose(1, 2, 0)
    if standing:
        rest = np.append(rest, 0.0)
        alone = np.zeros((1, *chances.shape))
        alone[0, min(1, chances.shape[0] - 1), 0] = 1 - float(seen.sum())
        joint = np.concatenate([joint, alone])
    points = _own(table, running, chain, prompts, rest, joint)
    return _behind(table, running, chain, prompts, float((chances * chain.seconds).sum()), points)


def _one_more(come: Array) -> Array:
    """Shift counts by one, the last two added up."""
    found = np.roll(come, 1, axis=1)
    found[:, -1] += found[:, 0]
    found[:, 0] = 0.0
    return found


def _own(table: StepTable, running: float, chain: _Chain, prompts: CutPrompts, rest: Array, joint: Array) -> _Points:
    """Add the own steps to (rest of the step under way, state when the next one starts), [cells, came, lacking].

    What follows the rest does not depend on it: its distribution is found for each state on a grid of time.
    """
    kept = joint.sum(axis=0) > _NEGLIGIBLE
    waits, waited = _waits(chain, prompts)
    delay = np.take_along_axis(waited, waits[None], axis=0)[0][kept]
    after, weights = [], []
    for mean, variance, weight in _own_kinds(table, running, chain, prompts):
        middle, spread = mean[kept], np.sqrt(variance[kept])
        for score, chance in zip(_SCORES, _CHANCES, strict=True) if spread.any() else ((0.0, 1.0),):
            after.append(delay + np.maximum(middle + score * spread, 0.5 * middle))
            weights.append(weight * chance)
    chances, unit = _on_grid(np.stack(after, axis=1), np.array(weights))
    masses = joint[:, kept] @ chances  # [cells, grid]
    cell, place = np.nonzero(masses > _LEAST)
    own = masses[cell, place]
    return rest[cell] + unit * place, own / own.sum()


def _behind(
    table: StepTable, running: float, chain: _Chain, prompts: CutPrompts, mean_step: float, points: _Points
) -> _Points:
    """Add the wait behind longer prompts of the own rank."""
    if np.ptp(prompts.parts) <= 0:
        return points
    seconds, masses = points
    kept, unit = _on_grid(seconds[None], masses)
    room, every = np.full(1, prompts.room), float(table.aggregate.ranks)
    under_way = min(max(chain.rate * mean_step * prompts.mean_parts, 1.0), every)
    step = float(table.seconds(running, room, room * under_way)[0])
    waits, chances = behind_long_ones(prompts, step, chain.rate / every, chain.dispersion / every)
    times = unit * np.arange(kept.shape[1]) + waits[:, None]
    return times.ravel(), (kept * chances[:, None]).ravel()


def _on_grid(seconds: Array, weights: Array) -> tuple[Array, float]:
    """(distributions of times [states, points], whose masses are ``weights``, with the same means [states, grid]; the
    seconds between grid times).
    """
    unit = float(seconds.max()) / _GRID
    return on_nodes(seconds / unit, weights, _GRID + 1), unit


def _waits(chain: _Chain, prompts: CutPrompts) -> tuple[NDArray[np.intp], Array]:
    """(steps until the own rank is free, [came, lacking]; seconds of so many steps, [steps, came, lacking])."""
    others = chain.older[None, :] + np.maximum(chain.lattice.came[:, None] - chain.lattice.lump, 0.0)
    # Dealt in turn: the last one of the own rank came as many prompts ago as there are ranks.
    queued = np.floor(others / chain.together)
    left = np.maximum(queued - chain.together * queued**2 / (others + 1), 0.0)
    count = np.ceil(prompts.mean_parts * left - 1e-9)
    waits = np.minimum(count, _LONGEST).astype(np.intp)
    rows = [np.zeros_like(chain.seconds)]
    for _ in range(int(waits.max())):
        rows.append(chain.seconds + chain.ahead(rows[-1]))
    return waits, np.stack(rows)


def _own_kinds(
    table: StepTable, running: float, chain: _Chain, prompts: CutPrompts
) -> Iterator[tuple[Array, Array, float]]:
    """Yield (mean, variance, share) of the own steps' seconds by kinds of prompts, the first two [came, lacking].

    A step lasts at least as the own part makes it. Prompts of one part: by size; of several: full parts and then the
    last, by backward recursion.
    """

    def at_least(tokens: float, busiest: Array, total: Array) -> tuple[Array, Array]:
        seconds = table.seconds(running, np.maximum(busiest, tokens), np.maximum(total, tokens))
        return np.tensordot(chain.weights, seconds, 1), np.tensordot(chain.weights, seconds**2, 1)

    single = prompts.parts == 1
    if single.any():
        others = tuple(np.concatenate([pair[:, :1], pair[:, :-1]], axis=1) for pair in (chain.busiest, chain.total))
        sizes, shares = prompts.first[single], prompts.weights[single]
        for group in np.array_split(np.argsort(sizes, kind="stable"), min(sizes.size, _GROUPS)):
            share = float(shares[group].sum())
            size = float(sizes[group] @ shares[group]) / share
            mean, square = at_least(size, others[0], others[1] + size)
            yield mean, np.maximum(square - mean**2, 0.0), share
    if single.all():
        return
    several = prompts.weights * ~single
    mean, square = at_least(float(prompts.last @ several / several.sum()), chain.busiest, chain.total)
    full, full_square = at_least(prompts.room, chain.busiest, chain.total)
    parts = 1
    for count in np.unique(prompts.parts[~single]):
        while parts < min(count, _LONGEST):
            later, later_square = chain.ahead(np.stack([mean, square]))
            square = full_square + 2 * full * later + later_square
            mean, parts = full + later, parts + 1
        beyond = float(count) / parts  # of prompts with more parts than are followed
        yield mean * beyond, np.maximum(square - mean**2, 0.0), float(prompts.weights[prompts.parts == count].sum())
