"""Prompts at an aggregated instance of several DP ranks, while the requests in decode stay as many.

A prompt stands on one rank, which computes a part of it per step; all ranks leave a step together. So the state when a
step starts is (prompts that came during the last one, parts that older prompts lack), and a step lasts as its fullest
rank does. Prompts are dealt over the ranks in turn: two share a rank only where there are more of them than ranks.

Ref: bulk service with vacations as in ``planner.mixed_chain``; backward recursion for the time to absorption, J. G.
Kemeny and J. L. Snell, Finite Markov Chains, chapter 3. Derived here.
"""

import math
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from planner.arrival_counts import count_distribution
from planner.mixed_chain import PromptState, on_lattice
from planner.mixed_steps import StepTable
from planner.queueing import Array

_MOST_CAME, _MOST_LACKING, _MOST_STATES = 40, 100, 1200
_MOST_PARTS = 64
_LONGEST = 24
_CELLS = 14
_ROUNDS = 300
_NEGLIGIBLE = 2e-6
_SCORES = np.array([-1.732050808, 0.0, 1.732050808])
_CHANCES = np.array([1 / 6, 2 / 3, 1 / 6])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompts:
    """Prompts cut into parts at one number of running requests; arrays are [kinds]."""

    parts: Array
    first: Array
    """Tokens of the first part."""
    last: Array
    weights: Array
    room: float
    """Tokens that a rank takes in a step."""
    together: float
    """Prompts that a rank takes in a step."""

    @property
    def mean_parts(self) -> float:
        return float(self.parts @ self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """Steps by (came, lacking), in lumps of ``lump`` prompts or parts."""

    lump: float
    rate: float
    ranks: float
    """In lumps."""
    seconds: Array
    """[came, lacking]."""
    come: Array
    """Distribution of what comes during each step, [came · lacking, came]."""
    next: Array
    """Distribution of the parts that lack after each step, [lacking, came · lacking]."""
    older: Array
    """Prompts that lack so many parts, [lacking]."""

    def step(self, chances: Array) -> Array:
        """Return the distribution one step later, [came, lacking]."""
        return np.asarray((self.next @ (chances.reshape(-1, 1) * self.come)).T)

    def ahead(self, values: Array) -> Array:
        """Return the expectation one step later of ``values``; both [came, lacking]."""
        later = self.next.T @ values.T  # [came · lacking, came]
        return np.asarray((later * self.come).sum(axis=1).reshape(values.shape))


def ranks_state(table: StepTable, running: float, rate: float, dispersion: float) -> PromptState | None:
    """Return the chain's balance at one number of running requests; None where prompts come faster than they go."""
    prompts = _cut(table, running)
    idle = running < 0.5  # nothing runs and nothing waits: the instance stands still
    chain = _chain(table, running, rate, dispersion, prompts, idle)
    if chain is None:
        return None
    chances = _balance(chain)
    working = chances.copy()
    if idle:
        working[0, 0] = 0.0
    total = float(working.sum())
    return PromptState(
        mean_step_seconds=float((working * chain.seconds).sum()) / total,
        prompt_steps=1 - float(working[0, 0]) / total,
        sojourn=cache(partial(_sojourn, chain, chances, prompts, idle)),
    )


def _cut(table: StepTable, running: float) -> _Prompts:
    aggregate = table.aggregate
    new, weights = aggregate.new_tokens, aggregate.prompts.weights
    room = float(aggregate.room(np.array(running)))
    parts = np.minimum(np.maximum(np.ceil(new / room - 1e-9), 1.0), _MOST_PARTS)
    mean = float(np.minimum(new, room) @ weights)
    return _Prompts(
        parts=parts,
        first=np.minimum(new, room),
        last=np.clip(new - room * (parts - 1), 1.0, room),
        weights=weights,
        room=room,
        together=max(room / mean, 1.0),
    )


def _chain(
    table: StepTable, running: float, rate: float, dispersion: float, prompts: _Prompts, idle: bool
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
    older, lasts, all_last = _stages(prompts, old * lump, rate * longest)
    seconds, taken_new, taken_old = _steps(table, running, prompts, (new * lump, older, lasts, all_last))
    if idle:
        seconds[0, 0] = 1.0
    come = count_distribution(np.maximum(rate * seconds / lump, 1e-12), dispersion / lump, new.size)
    come[..., -1] += np.maximum(1 - come.sum(axis=-1), 0.0)
    if idle:
        come[0, 0] = np.eye(1, new.size, 1)[0]
    return _Chain(
        lump=float(lump),
        rate=rate,
        ranks=ranks * prompts.together / lump,
        seconds=seconds,
        come=come.reshape(-1, new.size),
        next=_moves(prompts, new, old, taken_new / lump, taken_old / lump),
        older=older / lump,
    )


def _longest_step(table: StepTable, running: float, rate: float, prompts: _Prompts, ranks: float) -> float:
    """Seconds of steps that hold as many prompts as come during such steps."""
    chunk = np.array([float(prompts.first.max())])
    seconds = float(table.seconds(running, chunk, chunk)[0])
    mean = float(prompts.first @ prompts.weights)
    for _ in range(6):
        held = min(max(rate * seconds * prompts.mean_parts, 1.0), ranks * prompts.together)
        busiest = np.minimum(chunk * max(held / ranks, 1.0), prompts.room)
        seconds = float(table.seconds(running, busiest, np.maximum(busiest, held * np.array([mean])))[0])
    return seconds


def _reach(came: float, dispersion: float, prompts: _Prompts, busy: float) -> tuple[float, float]:
    """Prompts that come during a step, and parts that older ones lack, that are all but never exceeded."""
    spread = max(dispersion, 0.3)
    most = came + 5 * math.sqrt(spread * came) + 4
    further = prompts.parts - 1
    mean = float(prompts.weights @ (further * (further + 1))) / 2
    square = float(prompts.weights @ (further * (further + 1) * (2 * further + 1))) / 6
    lacking = came * mean + 5 * math.sqrt(spread * came * max(square, 0.0)) + float(further.max())
    waiting = 8 * prompts.mean_parts * max(busy - 0.3, 0.0) / (1 - busy)
    return most, lacking + waiting + 2


def _stages(prompts: _Prompts, lacking: Array, came: float) -> tuple[Array, Array, Array]:
    """(prompts, those that lack one part only, chance that all do) given the parts that older ones lack.

    So many lack 1, 2, ... parts as independent Poisson numbers with rates a_s: E[N_s | j] = a_s P(j - s) / P(j).

    Ref: H. H. Panjer, ASTIN Bulletin 12:22, 1981: j P(j) = sum over s of s a_s P(j - s).
    """
    further = on_lattice(np.maximum(prompts.parts - 1, 0.0), prompts.weights)
    if further[1:].sum() <= 0:  # whole prompts, that wait
        return lacking, lacking, np.ones_like(lacking)
    rates = max(came, 1e-3) * np.cumsum(further[::-1])[::-1]
    rates = rates[: int(np.flatnonzero(rates > 0)[-1]) + 1]
    size = int(lacking[-1]) + 1
    logs = np.zeros(size)
    for j in range(1, size):
        reach = np.arange(1, min(j, rates.size - 1) + 1)
        logs[j] = math.log(float((reach * rates[reach]) @ np.exp(logs[j - reach] - logs[j - 1])) / j) + logs[j - 1]
    held, lasts = np.zeros(size), np.zeros(size)
    for s in range(1, min(rates.size, size)):
        given = rates[s] * np.exp(logs[:-s] - logs[s:])
        held[s:] += given
        if s == 1:
            lasts[1:] = given
    only = np.append(1.0, np.exp(np.minimum(np.cumsum(np.log(rates[1] / np.arange(1, size))) - logs[1:], 0.0)))
    place = lacking.astype(np.intp)
    return held[place], np.minimum(lasts, held)[place], only[place]


def _steps(
    table: StepTable, running: float, prompts: _Prompts, state: tuple[Array, Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """(seconds, prompts taken of those that came, parts taken of older ones), each [came, lacking]."""
    came, older, lasts, all_last = state
    ranks = float(table.aggregate.ranks)
    most = ranks * prompts.together
    old = np.broadcast_to(np.minimum(older, most)[None, :], (came.size, older.size))
    new = np.minimum(came[:, None], most - old)
    mean_first, mean_last = float(prompts.first @ prompts.weights), float(prompts.last @ prompts.weights)
    waits = float(prompts.parts.max()) == 1  # older ones are whole prompts that waited
    part_last = mean_first if waits else mean_last
    largest_last = _largest(prompts.first if waits else prompts.last, prompts.weights, np.maximum(older, 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(older > 0, lasts / np.maximum(older, 1e-12), 0.0)
    old_tokens = old * (share * part_last + (1 - share) * prompts.room)
    old_largest = np.where(older > 0, all_last * largest_last + (1 - all_last) * prompts.room, 0.0)
    new_largest = np.where(
        new > 0, _largest(prompts.first, prompts.weights, np.maximum(new, 1.0).ravel()).reshape(new.shape), 0.0
    )
    busiest = np.maximum(new_largest, old_largest[None, :])
    each = np.ceil((new + old) / ranks - 1e-9)  # prompts of the fullest rank
    busiest = np.minimum(busiest + np.maximum(each - 1, 0.0) * mean_first, prompts.room)
    total = np.maximum(new * mean_first + old_tokens, busiest)
    return table.seconds(running, busiest.ravel(), total.ravel()).reshape(new.shape), new, old


def _largest(sizes: Array, weights: Array, counts: Array) -> Array:
    """Expected largest of ``counts`` sizes drawn independently, [counts]."""
    order = np.argsort(sizes)
    below = np.minimum(np.cumsum(weights[order]), 1.0)
    return np.asarray(np.diff(below[None, :] ** counts[:, None], axis=1, prepend=0.0) @ sizes[order])


def _moves(prompts: _Prompts, new: Array, old: Array, taken_new: Array, taken_old: Array) -> Array:
    """Distribution of the parts that lack after a step, [lacking, came · lacking]."""
    size = old.size
    further = on_lattice(np.maximum(prompts.parts - 1, 0.0), prompts.weights)
    adds = np.zeros((new.size, size))  # parts that so many prompts lack after their first
    adds[0, 0] = 1.0
    for count in range(1, new.size):
        adds[count] = np.convolve(adds[count - 1], further)[:size]
        adds[count, -1] += max(1 - adds[count].sum(), 0.0)
    found = np.zeros((size, new.size, size))
    columns = np.arange(size)
    for count in range(new.size):
        left = old - taken_old[count] + (count - taken_new[count]) * prompts.mean_parts
        low = np.clip(np.floor(left + 1e-9), 0, size - 1).astype(np.intp)
        part = np.clip(left - low, 0.0, 1.0)
        start = np.zeros((size, size))
        np.add.at(start, (low, columns), 1 - part)
        np.add.at(start, (np.minimum(low + 1, size - 1), columns), part)
        # Those taken now add what they lack after it; between whole numbers of them mixed.
        whole = np.floor(taken_new[count] + 1e-9).astype(np.intp)
        rest = np.clip(taken_new[count] - whole, 0.0, 1.0)
        mixed = adds[whole] * (1 - rest)[:, None] + adds[np.minimum(whole + 1, new.size - 1)] * rest[:, None]
        found[:, count, :] = _convolved(start, mixed)
    return found.reshape(size, -1)


def _convolved(starts: Array, adds: Array) -> Array:
    """Columns of ``starts`` [size, columns] convolved with rows of ``adds`` [columns, size], cut at the end."""
    size = starts.shape[0]
    found = np.zeros_like(starts)
    for shift in np.flatnonzero(adds.max(axis=0) > 0):
        found[shift:] += starts[: size - shift] * adds[:, shift]
        found[-1] += starts[size - shift :].sum(axis=0) * adds[:, shift] if shift else 0.0
    return found


def _balance(chain: _Chain) -> Array:
    """Stationary distribution over (came, lacking) when steps start, by repeated steps."""
    chances = np.zeros_like(chain.seconds)
    chances[0, 0] = 1.0
    for _ in range(_ROUNDS):
        later = chain.step(chances)
        change = float(np.abs(later - chances).sum())
        chances = later
        if change < 1e-5:
            break
    return np.asarray(chances / chances.sum())


def _sojourn(chain: _Chain, chances: Array, prompts: _Prompts, idle: bool) -> tuple[Array, Array]:
    """Seconds from arrival to first token as point masses: rest of the step under way, then the own steps."""
    seen = chances * chain.seconds
    standing = 0.0
    if idle:
        seen[0, 0] = 0.0
        standing = float(chances[0, 0]) / chain.rate
    seen = seen / (float(seen.sum()) + standing)
    most = float(chain.seconds[seen > 1e-6].max(initial=1e-9))
    edges = np.linspace(0.0, most, _CELLS + 1)
    rest = (edges[1:] + edges[:-1]) / 2
    flat, seconds = seen.ravel(), chain.seconds.ravel()
    beside = np.roll(chain.come, 1, axis=1) if chain.lump == 1 else chain.come  # the own prompt comes, too
    if chain.lump == 1:
        beside[:, -1] += beside[:, 0]
        beside[:, 0] = 0.0
    overlap = np.clip((seconds[None, :] - edges[:-1, None]) / (edges[1] - edges[0]), 0.0, 1.0)
    share = overlap * (flat * (edges[1] - edges[0]) / seconds)[None, :]
    joint = np.stack([(chain.next @ (row[:, None] * beside)).T for row in share])  # [cells, came, lacking]
    if standing:
        rest = np.append(rest, 0.0)
        alone = np.zeros((1, *chances.shape))
        alone[0, min(1, chances.shape[0] - 1), 0] = 1 - float(seen.sum())
        joint = np.concatenate([joint, alone])
    return _own(chain, prompts, rest, joint)


def _own(chain: _Chain, prompts: _Prompts, rest: Array, joint: Array) -> tuple[Array, Array]:
    """Add the own steps: their mean and variance from any state by backward recursion, as three points."""
    parts = on_lattice(prompts.parts, prompts.weights)
    ahead = np.floor(
        (chain.older[None, :] + np.maximum(np.arange(chain.seconds.shape[0])[:, None] - 1, 0)) / chain.ranks
    )
    waits = np.rint(ahead * (prompts.mean_parts + 1) / 2).astype(np.intp)  # steps until the own rank is free
    counts = np.flatnonzero(parts > 0)
    most = int(min(counts[-1] + waits.max(), _LONGEST))
    means, squares = [np.zeros_like(chain.seconds)], [np.zeros_like(chain.seconds)]
    for _ in range(most):
        later = chain.ahead(means[-1])
        means.append(chain.seconds + later)
        squares.append(chain.seconds**2 + 2 * chain.seconds * later + chain.ahead(squares[-1]))
    mean, variance = np.stack(means), np.stack(squares)
    variance = np.maximum(variance - mean**2, 0.0)
    cell, came, lacking = np.nonzero(joint > _NEGLIGIBLE)
    masses, seconds, weights = joint[cell, came, lacking], [], []
    for count in counts:
        steps = np.minimum(count + waits[came, lacking], most)
        beyond = (count + waits[came, lacking]) / steps  # of prompts with more parts than are followed
        middle, spread = mean[steps, came, lacking] * beyond, np.sqrt(variance[steps, came, lacking]) * beyond
        for score, chance in zip(_SCORES, _CHANCES, strict=True):
            seconds.append(rest[cell] + np.maximum(middle + score * spread, 0.5 * middle))
            weights.append(masses * parts[count] * chance)
    own = np.concatenate(weights)
    return np.concatenate(seconds), own / own.sum()
