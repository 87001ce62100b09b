"""Prompts at an aggregated instance while the requests in decode stay as many: a chain over the steps.

Prompt tokens that wait when a step starts are a Markov chain on a lattice: a step takes what its budget leaves and
lasts the longer the more it takes, and what arrives meanwhile waits for the next. Steps never pause, so a prompt that
comes waits for the end of the step under way even where none is computed.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954, with vacations as long
as a decode step; the distribution of the sojourn is derived here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from ground.arrays import on_nodes
from planner.mixed.even import dealt, gap_beyond, phases_of, with_mates
from planner.mixed.steps import StepTable
from planner.queues.arrival_counts import Arrivals
from planner.queues.queueing import Array

_UNITS_PER_STEP = (8, 4, 2)
"""Coarser where many prompts wait."""
_MOST_STATES = 160
_CELLS = 28
_NEGLIGIBLE = 2e-6
_LEAST_LEFT = 0.01
"""Of the time, that prompts leave at least."""
_GROUPS, _TAIL = 8, 0.94


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSteps:
    """Steps at one number of running requests, by the units of prompt that wait; arrays are [states]."""

    seconds: Array
    takes: Array
    """Units that a step computes."""
    room: float
    """Units that one rank computes in a step at most."""
    own: Array
    """Distribution of a prompt's units, [units]."""

    @property
    def per_prompt(self) -> float:
        """Units of a prompt, on average."""
        return float(self.own @ np.arange(self.own.size))


def prompt_steps(table: StepTable, running: float, units_per_step: int = 8) -> PromptSteps:
    """One rank: units are tokens, some dozens to a step; a step takes parts of several prompts, up to its room."""
    aggregate = table.aggregate
    room = float(aggregate.room(np.array(running)))
    fine = math.ceil(units_per_step * aggregate.mean_new_tokens / aggregate.budget_tokens)
    per_prompt = min(max(fine, 4 if np.ptp(aggregate.new_tokens) > 0 else 1), 4 * units_per_step)
    unit = aggregate.mean_new_tokens / per_prompt
    taken = np.minimum(np.arange(float(_MOST_STATES)), room / unit)
    own = on_lattice(np.maximum(aggregate.new_tokens / unit, 1.0), aggregate.prompts.weights)
    return PromptSteps(
        seconds=table.seconds(running, taken * unit, taken * unit),
        takes=taken,
        room=room / unit,
        own=own,
    )


def on_lattice(units: Array, weights: Array) -> Array:
    """Distribution over whole units of values between them, with the same mean; [units]."""
    whole = np.floor(units + 1e-9)  # what is short of it by rounding
    return on_nodes(np.maximum(units, whole), weights, int(whole.max()) + 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptState:
    """Prompts at an instance in balance, at one number of running requests."""

    mean_step_seconds: float
    step_variance: float
    """Of single steps, in squared seconds."""
    prompt_steps: float
    """Share of steps that compute prompts."""
    sojourn: Callable[[], tuple[Array, Array]]
    """Finds seconds from arrival to first token as point masses, which sum to 1."""
    per_prompt: Callable[[], float]
    """Finds seconds by which one more prompt delays steps, over all steps that it delays."""

    @property
    def mean_sojourn_seconds(self) -> float:
        """Mean time from arrival to first token."""
        seconds, masses = self.sojourn()
        return float(seconds @ masses)


def rank_state(table: StepTable, running: float, rate: float, dispersion: float) -> PromptState | None:
    """Return the chain's balance; None where prompts come faster than full steps compute them.

    ``rate`` is of the instance; counts of arrivals have ``dispersion`` times their mean as variance.
    """
    for fine in _UNITS_PER_STEP:
        steps = prompt_steps(table, running, fine)
        reach = most_units(steps, rate, dispersion)
        if reach <= _MOST_STATES:
            break
    if not math.isfinite(reach):
        return None
    states = int(min(reach, _MOST_STATES))
    seconds = steps.seconds[:states]
    idle = running < 0.5  # nothing runs and nothing waits: the instance stands still
    chances = _balance(steps, states, rate, dispersion, idle)
    working = np.append(0.0 if idle else chances[0], chances[1:])
    total = float(working.sum())
    mean = float(working @ seconds) / total
    return PromptState(
        mean_step_seconds=mean,
        step_variance=float(working @ (seconds - mean) ** 2) / total,
        prompt_steps=float(chances[1:].sum()) / total,
        sojourn=cache(partial(_sojourn, steps, chances, rate, dispersion, idle)),
        per_prompt=cache(partial(_per_prompt, steps, chances, rate)),
    )


def _per_prompt(steps: PromptSteps, chances: Array, rate: float) -> float:
    """Seconds by which one more prompt delays steps: those that it adds to what is computed, and what comes meanwhile.

    Beside others it adds less than they do on average, for experts are read once. What finds no room in the next step
    is counted as a part of full steps.
    """
    units = np.arange(float(chances.size))
    places, seconds = np.arange(float(steps.seconds.size)), steps.seconds
    more = np.minimum(units + steps.per_prompt, steps.room)
    now = np.minimum(units, steps.room)
    full = float(seconds[-1] - seconds[0]) / steps.room
    adds = np.interp(more, places, seconds) - np.interp(now, places, seconds)
    adds += (steps.per_prompt - (more - now)) * full
    each = float(chances @ np.maximum(adds, 0.0))
    return each / max(1 - rate * each, _LEAST_LEFT)


def most_units(steps: PromptSteps, rate: float, dispersion: float) -> float:
    """Units that all but never wait, by heavy traffic's decay; infinite where prompts come faster than they go."""
    drift = steps.takes - rate * steps.seconds * steps.per_prompt
    if drift[-1] <= 0:
        return math.inf
    units = np.arange(steps.own.size)
    second = float(units**2 @ steps.own) + (dispersion - 1) * steps.per_prompt**2
    noise = rate * float(steps.seconds[-1]) * max(second, 0.1)
    settled = int(np.argmax((drift > 0) & (np.cumsum(drift[::-1] <= 0)[::-1] == 0)))
    reach = settled + math.log(1e6) * noise / (2 * float(drift[-1])) + 3 * float(np.flatnonzero(steps.own)[-1])
    return max(reach, 16.0)


def _arrivals(steps: PromptSteps, means: Array, dispersion: float, length: int, mates: float = 0.0) -> Array:
    """Distribution of the units that arrive with so many prompts on average, [..., length]; the rest is cut off."""
    most = float(means.max(initial=0.0))
    counts = math.ceil(most + 6 * math.sqrt(max(dispersion, 1.0) * most) + 8 + 6 * mates)
    numbers = with_mates(Arrivals.of(1.0, dispersion).counts(np.maximum(means, 1e-12), 1.0, counts), mates)
    if np.count_nonzero(steps.own) == 1:
        step = int(np.flatnonzero(steps.own)[0])
        found = np.zeros((*means.shape, max(length, (counts - 1) * step + 1)))
        found[..., : (counts - 1) * step + 1 : step] = numbers
        return found[..., :length]
    size = 1 << (2 * length + steps.own.size).bit_length()
    spectrum = np.fft.rfft(steps.own, size)
    powers = spectrum[None, :] ** np.arange(counts)[:, None]
    return np.maximum(np.fft.irfft(numbers @ powers, size)[..., :length], 0.0)


def _balance(steps: PromptSteps, states: int, rate: float, dispersion: float, idle: bool) -> Array:
    """Stationary distribution of the units that wait when a step starts, [states]."""
    seconds, takes = steps.seconds[:states], steps.takes[:states]
    come = _arrivals(steps, rate * seconds, dispersion, states)
    if idle:
        come[0] = 0.0
        come[0, : min(steps.own.size, states)] = steps.own[:states]
    left = np.arange(states) - takes
    low = np.floor(left + 1e-9).astype(np.intp)
    part = np.clip(left - low, 0.0, 1.0)[:, None]
    column = np.arange(states)
    moves = np.zeros((states, states))
    rows = column[:, None]
    for shift, weight in ((low, 1 - part), (low + 1, part)):
        index = column[None, :] - shift[:, None]
        moves += weight * np.where(index >= 0, come[rows, np.maximum(index, 0)], 0.0)
    moves[:, -1] += np.maximum(1 - moves.sum(axis=1), 0.0)
    balance = moves.T - np.eye(states)
    balance[-1] = 1.0
    right = np.zeros(states)
    right[-1] = 1.0
    solved = np.maximum(np.linalg.solve(balance, right), 0.0)
    return np.asarray(solved / solved.sum(), dtype=np.float64)


def _sojourn(steps: PromptSteps, chances: Array, rate: float, dispersion: float, idle: bool) -> tuple[Array, Array]:
    """Seconds from arrival to first token as point masses: rest of the step under way, then the steps up to the own
    last one.
    """
    states = chances.size
    seconds = steps.seconds[:states]
    seen = chances * seconds
    if idle:
        seen[0] = 0.0
    busy = float(seen.sum())
    standing = float(chances[0]) / rate if idle else 0.0  # mean seconds until a prompt comes
    edges = np.linspace(0.0, float(seconds[seen > _NEGLIGIBLE * busy].max(initial=seconds[0])), _CELLS + 1)
    rest = (edges[1:] + edges[:-1]) / 2
    seen = seen / (busy + standing)
    phases = phases_of(dispersion)
    nobody = np.eye(1, states)[0]
    found = []
    for those, come in ((seen * nobody, False), (seen * nobody, True), (seen * (1 - nobody), None)):
        ahead = _ahead(steps, those, rate, dispersion, edges, come)
        cell, waiting = np.nonzero(ahead > _NEGLIGIBLE)
        points = (rest[cell], waiting.astype(np.float64), ahead[cell, waiting])
        found.append(_own_steps(steps, points, rate, phases))
    if standing:
        start = np.zeros(1)
        found.append(_own_steps(steps, (start, start, np.array([standing / (busy + standing)])), rate, phases))
    alone = _joined([found[0], *found[3:]])
    units = np.arange(steps.own.size)
    spread = float(units**2 @ steps.own) / steps.per_prompt**2 - 1
    seconds, masses = dealt(alone, _joined(found[1:3]), rate, phases, max(spread, 0.0))
    return seconds, masses / masses.sum()


def _joined(points: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return np.concatenate([seconds for seconds, _ in points]), np.concatenate([masses for _, masses in points])


def _ahead(steps: PromptSteps, seen: Array, rate: float, dispersion: float, edges: Array, others: bool | None) -> Array:
    """Joint distribution of the rest of the step under way (cells) and of the units ahead then, [cells, states].

    ``others``: only where others came before in the same step, or only where not; None: in either case.
    """
    states, cells = seen.size, edges.size - 1
    width = edges[1]
    mates = max(dispersion - 1, 0.0) / 2
    elapsed_seconds = (edges[1:] + edges[:-1]) / 2
    come = _arrivals(steps, rate * elapsed_seconds, dispersion, states, mates)  # [cells, units]
    if others is not None:
        come[:, 0] *= not others
        come[:, 1:] *= others
    found = np.zeros((cells, 2 * states))
    left = np.rint(np.maximum(np.arange(states) - steps.takes[:states], 0.0)).astype(np.intp)
    kept = np.flatnonzero(seen > _NEGLIGIBLE)
    lasts = steps.seconds[kept, None]
    share = np.clip((lasts - edges[:-1]) / width, 0.0, 1.0) * (width / lasts * seen[kept, None])  # [kept, cells]
    elapsed = np.clip((lasts - edges[:-1]) / width - 0.5, 0, cells - 1).astype(np.intp)
    for state, shares, since in zip(kept, share, elapsed, strict=True):
        found[:, left[state] : left[state] + states] += shares[:, None] * come[since]
    found[:, states - 1] += found[:, states:].sum(axis=1)
    return found[:, :states]


def _own_steps(steps: PromptSteps, points: tuple[Array, Array, Array], rate: float, phases: int) -> tuple[Array, Array]:
    """Add the steps up to the own last one to (rest, units ahead, mass) of arrivals.

    All but the last are full; that takes what is left of the own prompt, and what came behind it if anything did.
    """
    rest, ahead, masses = points
    states, full = np.arange(float(steps.seconds.size)), float(steps.seconds[-1])
    found, weights = [], []
    for size, share in _sizes(steps.own):
        before = np.maximum(np.ceil((ahead + size) / steps.room - 1e-6) - 1, 0.0)
        left, waited = ahead + size - before * steps.room, rest + before * full
        came = rate * waited
        alone = gap_beyond(came, phases)
        behind = np.maximum(came / np.maximum(1 - alone, 1e-12), 1.0) * steps.per_prompt
        found += [waited + np.interp(left + more, states, steps.seconds) for more in (0.0, behind)]
        weights += [masses * share * alone, masses * share * (1 - alone)]
    return np.concatenate(found), np.concatenate(weights)


def _sizes(own: Array) -> list[tuple[float, float]]:
    """Return (units, share) of groups of prompts with about as many units."""
    units = np.flatnonzero(own > 0).astype(np.float64)
    shares = own[own > 0]
    group = np.minimum((np.cumsum(shares) - shares / 2) * _GROUPS, _GROUPS - 1).astype(np.intp)
    # The longest alone: they are the tail.
    group = np.where(np.cumsum(shares) > _TAIL, group + np.arange(group.size), group)
    found = []
    for number in np.unique(group):
        here = group == number
        share = float(shares[here].sum())
        found.append((float(units[here] @ shares[here]) / share, share))
    return found
