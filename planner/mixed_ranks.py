"""Prompts at an aggregated instance of several DP ranks, while the requests in decode stay as many.

A prompt stands on one rank, which computes a part of it per step; all ranks leave a step together. So the state when a
step starts is (prompts that came during the last one, parts that older prompts lack), and a step lasts as its fullest
rank does. Prompts are dealt over the ranks in turn: two share a rank only where there are more of them than ranks.

Ref: bulk service with vacations as in ``planner.mixed_chain``; backward recursion for the time to absorption, J. G.
Kemeny and J. L. Snell, Finite Markov Chains, chapter 3. Derived here.
"""

import math
from collections.abc import Iterator
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import NDArray

from planner.arrival_counts import Arrivals
from planner.mixed_chain import PromptState, on_lattice
from planner.mixed_even import with_mates
from planner.mixed_parts import CutPrompts, cut_prompts, kind_weights, stages, step_loads
from planner.mixed_steps import StepTable
from planner.paired_balance import paired_balance
from planner.queueing import Array
from podplan.records import dataclass

_MOST_CAME, _MOST_LACKING, _MOST_STATES = 40, 72, 700
_LONGEST = 24
_CELLS = 14
_NEGLIGIBLE = 2e-6
_GROUPS = 5
"""Of prompts by size."""
_IDLE = 0.5
_RARE = 1e-6
_Points = tuple[Array, Array]
_SCORES, _CHANCES = np.array([-1.0, 0.0, 1.0]) * math.sqrt(1.5), np.full(3, 1 / 3)
"""Three points with the variance of the own steps, near enough to be no longer than steps get."""


@dataclass(frozen=True, kw_only=True)
class _Chain:
    """Steps by (came, lacking), in lumps of ``lump`` prompts or parts."""

    lump: float
    rate: float
    dispersion: float
    ranks: float
    """In lumps."""
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
        """Return the expectation one step later of ``values``; both [came, lacking]."""
        later = self.next.T @ values.T  # [came · lacking, came]
        return np.asarray((later * self.mean_come).sum(axis=1).reshape(values.shape))


def ranks_state(table: StepTable, running: float, rate: float, dispersion: float) -> PromptState | None:
    """Return the chain's balance at one number of running requests; None where prompts come faster than they go."""
    prompts = cut_prompts(table, running)
    idle = running < _IDLE  # nothing runs and nothing waits: the instance stands still
    chain = _chain(table, running, rate, dispersion, prompts, idle)
    if chain is None:
        return None
    chances = paired_balance(chain.mean_come, chain.next)
    working = chances.copy()
    if idle:
        working[0, 0] = 0.0
    total = float(working.sum())
    return PromptState(
        mean_step_seconds=float((working * chain.seconds).sum()) / total,
        prompt_steps=1 - float(working[0, 0]) / total,
        sojourn=cache(partial(_sojourn, table, running, chain, chances, prompts)),
    )


def _chain(
    table: StepTable, running: float, rate: float, dispersion: float, prompts: CutPrompts, idle: bool
) -> _Chain | None:
    ranks = float(table.aggregate.ranks)
    longest = _longest_step(table, running, rate, prompts, ranks)
    busy = rate * longest * prompts.mean_parts / (ranks * prompts.together)
    if busy >= 0.999:
        return None
    came, lacking = _reach(rate * longest, dispersion, prompts, busy)
    lump = max(math.ceil(came / _MOST_CAME), math.ceil(lacking / _MOST_LACKING))
    lump = max(lump, math.ceil(math.sqrt(came * lacking / _MOST_STATES)), 1)
    new, old = np.arange(math.ceil(came / lump) + 1.0), np.arange(math.ceil(lacking / lump) + 1.0)
    older, lasts, all_last = stages(prompts, old * lump, rate * longest)
    busiest, total, taken_new, taken_old = step_loads(table, prompts, (new * lump, older, lasts, all_last))
    seconds = table.seconds(running, busiest, total)
    if idle:
        seconds[:, 0, 0] = 1.0
    come = Arrivals.of(rate, dispersion).counts(seconds.ravel(), lump, new.size).reshape(*seconds.shape, new.size)
    if idle:
        come[:, 0, 0] = np.eye(1, new.size, 1)[0]
    return _Chain(
        lump=float(lump),
        rate=rate,
        dispersion=dispersion,
        ranks=ranks * prompts.together / lump,
        weights=kind_weights(prompts),
        durations=seconds,
        busiest=busiest,
        total=total,
        come=come.reshape(seconds.shape[0], -1, new.size),
        next=_moves(prompts, new, old, taken_new / lump, taken_old / lump),
        older=older / lump,
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


def _moves(prompts: CutPrompts, new: Array, old: Array, taken_new: Array, taken_old: Array) -> Array:
    """Distribution of the parts that lack after a step, [lacking, came · lacking].

    What is left of the older parts, all parts of prompts that were not taken, and what those taken lack after their
    first part.
    """
    size = old.size
    left = (old - taken_old + (new[:, None] - taken_new) * prompts.mean_parts).ravel()  # [came · lacking]
    if np.ptp(prompts.parts) <= 0:
        left = left + taken_new.ravel() * float(prompts.parts[0] - 1)
        adds = np.eye(1, size)[np.zeros(left.size, dtype=np.intp)]
    else:
        further = on_lattice(np.maximum(prompts.parts - 1, 0.0), prompts.weights)
        each = _added(further, new.size + 1, size)
        taken = taken_new.ravel()
        whole = np.minimum((taken + 1e-9).astype(np.intp), new.size - 1)
        rest = np.clip(taken - whole, 0.0, 1.0)[:, None]
        adds = each[whole] * (1 - rest) + each[whole + 1] * rest  # [came · lacking, added]
    low = np.clip((left + 1e-9).astype(np.intp), 0, size - 1)
    part = np.clip(left - low, 0.0, 1.0)
    ahead = np.concatenate([np.zeros((adds.shape[0], size)), adds], axis=1)
    shifted = ahead[np.arange(low.size), np.arange(-1, size - 1)[:, None] - low + size]  # none added below ``low``
    found = np.empty((size, low.size))
    found[:-1] = (1 - part) * shifted[1:] + part * shifted[:-1]
    found[-1] = np.maximum(1 - found[:-1].sum(axis=0), 0.0)
    return found


def _added(further: Array, counts: int, size: int) -> Array:
    """Distribution of the parts that 0, 1, ... prompts lack after their first, [counts, size]; the last: or more."""
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
    joint = np.zeros((_CELLS, *chances.shape))
    for own, seconds, come in zip(seen, chain.durations, chain.come, strict=True):
        flat = seconds.ravel()
        overlap = np.clip((flat[None, :] - edges[:-1, None]) / width, 0.0, 1.0) * (own.ravel() * width / flat)
        mates = max(chain.dispersion - 1, 0.0) / chain.lump
        beside = with_mates(_one_more(come) if chain.lump == 1 else come, mates)  # the own prompt comes, too
        joint += np.stack([(chain.next @ (row[:, None] * beside)).T for row in overlap])
    if standing:
        rest = np.append(rest, 0.0)
        alone = np.zeros((1, *chances.shape))
        alone[0, min(1, chances.shape[0] - 1), 0] = 1 - float(seen.sum())
        joint = np.concatenate([joint, alone])
    return _own(table, running, chain, prompts, rest, joint)


def _one_more(come: Array) -> Array:
    """Shift counts by one, the last two added up."""
    found = np.roll(come, 1, axis=1)
    found[:, -1] += found[:, 0]
    found[:, 0] = 0.0
    return found


def _own(table: StepTable, running: float, chain: _Chain, prompts: CutPrompts, rest: Array, joint: Array) -> _Points:
    """Add the own steps to (rest of the step under way, state when the next one starts)."""
    cell, came, lacking = np.nonzero(joint > _NEGLIGIBLE)
    masses, before = joint[cell, came, lacking], rest[cell]
    waits, waited = _waits(chain, prompts)
    delay = before + waited[waits[came, lacking], came, lacking]
    found, weights = [], []
    for mean, variance, weight in _own_kinds(table, running, chain, prompts):
        middle, spread = mean[came, lacking], np.sqrt(variance[came, lacking])
        for score, chance in zip(_SCORES, _CHANCES, strict=True) if spread.any() else ((0.0, 1.0),):
            found.append(delay + np.maximum(middle + score * spread, 0.5 * middle))
            weights.append(masses * weight * chance)
    own = np.concatenate(weights)
    return np.concatenate(found), own / own.sum()


def _waits(chain: _Chain, prompts: CutPrompts) -> tuple[NDArray[np.intp], Array]:
    """(steps until the own rank is free, [came, lacking]; seconds of so many steps, [steps, came, lacking])."""
    others = chain.older[None, :] + np.maximum(np.arange(chain.seconds.shape[0])[:, None] - 1, 0)
    # Dealt in turn: the last one of the own rank came as many prompts ago as there are ranks.
    queued = np.floor(others / chain.ranks)
    left = np.maximum(queued - chain.ranks * queued**2 / (others + 1 / chain.lump), 0.0)
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
            later = chain.ahead(mean)
            square = full_square + 2 * full * later + chain.ahead(square)
            mean, parts = full + later, parts + 1
        beyond = float(count) / parts  # of prompts with more parts than are followed
        yield mean * beyond, np.maximum(square - mean**2, 0.0), float(prompts.weights[prompts.parts == count].sum())
