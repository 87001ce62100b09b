"""Prompts at an aggregated instance while the requests in decode stay as many: a chain over the steps.

Prompt tokens that wait when a step starts are a Markov chain on a lattice: a step takes what its budget leaves and
lasts the longer the more it takes, and what arrives meanwhile waits for the next. Steps never pause, so a prompt that
comes waits for the end of the step under way even where none is computed.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954, with vacations as long
as a decode step; the distribution of the sojourn is derived here.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.mixed_steps import Aggregate, step_seconds
from planner.prefill_queue import count_distribution
from planner.queueing import Array

_RUNNING_NODES = 7
_WAITING_NODES = 18
_MOST_STATES = 224
_CELLS = 20
_MOST_STEPS = 96
_NEGLIGIBLE = 1e-7


@dataclass(frozen=True, slots=True)
class PromptSteps:
    """Steps at one number of running requests, by the units of prompt that wait; arrays are [states]."""

    seconds: Array
    takes: Array
    """Units that a step computes."""
    room: float
    """Units that one rank computes in a step at most."""


@dataclass(frozen=True)
class Lattice:
    """Waiting prompt tokens of all ranks in units, and the steps of an instance tabulated on it once for all rates."""

    aggregate: Aggregate

    @cached_property
    def per_prompt(self) -> float:
        """Units of a mean prompt."""
        mean, budget = self.aggregate.mean_new_tokens, self.aggregate.budget_tokens
        if self.aggregate.ranks == 1:
            fine = 12 * mean / budget
            return float(min(max(math.ceil(fine), 4 if self.varies else 1), 48))
        fine = min(max(math.ceil(2 * mean / budget), 3 if self.varies else 1), 8)
        most = self.aggregate.ranks * budget / mean * fine  # units that all ranks take
        return fine / max(math.ceil(most / 160), 1)

    @property
    def varies(self) -> bool:
        """Whether prompts differ in what there is to compute."""
        return bool(np.ptp(self.aggregate.new_tokens) > 0)

    @property
    def unit_tokens(self) -> float:
        """Prompt tokens of a unit."""
        return self.aggregate.mean_new_tokens / self.per_prompt

    @cached_property
    def own(self) -> Array:
        """Distribution of a prompt's units, [units]; on the lattice with the same mean."""
        units = np.maximum(self.aggregate.new_tokens / self.unit_tokens, 1.0 if self.per_prompt >= 1 else 0.0)
        low = np.floor(units + 1e-9).astype(np.intp)
        part = units - low
        found = np.bincount(low, self.aggregate.prompts.weights * (1 - part), minlength=int(low.max()) + 2)
        return np.asarray(found + np.bincount(low + 1, self.aggregate.prompts.weights * part, minlength=found.size))

    @cached_property
    def running(self) -> Array:
        """Numbers of running requests at which steps are tabulated, [nodes]."""
        most = self.aggregate.most
        return np.unique(np.append(0.0, np.geomspace(min(1.0, most / 2), most, _RUNNING_NODES - 1)))

    @cached_property
    def table(self) -> tuple[Array, Array]:
        """(seconds, units taken) at the nodes, [running, states]."""
        states = np.arange(float(_MOST_STATES))
        nodes = np.unique(np.round(np.append(0.0, np.geomspace(1.0, states[-1], _WAITING_NODES))))
        taken, busiest = (
            np.stack(rows) for rows in zip(*(self._dealt(states, float(n)) for n in self.running), strict=True)
        )
        chosen = nodes.astype(np.intp)
        seconds = step_seconds(
            self.aggregate,
            self.running[:, None],
            busiest[:, chosen] * self.unit_tokens,
            taken[:, chosen] * self.unit_tokens,
        )
        rows = [
            np.interp(busiest[row], *_rising(busiest[row, chosen], seconds[row]))
            if self.aggregate.ranks == 1
            else np.interp(states, nodes, seconds[row])
            for row in range(self.running.size)
        ]
        return np.maximum.accumulate(np.stack(rows), axis=1), taken

    def _dealt(self, states: Array, running: float) -> tuple[Array, Array]:
        """(units computed on all ranks, on the busiest) in steps with so many waiting, each [states]."""
        room = float(self.aggregate.room(np.array(running))) / self.unit_tokens
        if self.aggregate.ranks == 1:
            taken = np.minimum(states, room)
            return taken, taken
        return dealt_units(self.aggregate, self.unit_tokens, states, room)

    def at(self, running: float) -> PromptSteps:
        """Return the steps with so many running requests, interpolated."""
        seconds, taken = self.table
        place = float(np.interp(running, self.running, np.arange(self.running.size)))
        low = min(int(place), self.running.size - 2)
        part = place - low
        room = float(self.aggregate.room(np.array(running))) / self.unit_tokens
        return PromptSteps(
            seconds=seconds[low] * (1 - part) + seconds[low + 1] * part,
            takes=taken[low] * (1 - part) + taken[low + 1] * part,
            room=room,
        )


def _rising(places: Array, seconds: Array) -> tuple[Array, Array]:
    """Return the nodes once each."""
    kept, first = np.unique(places, return_index=True)
    return kept, seconds[first]


def dealt_units(aggregate: Aggregate, unit_tokens: float, states: Array, room: float) -> tuple[Array, Array]:
    """Units that a step computes on all ranks and on the busiest, [states] each, prompts dealt over ranks at random.

    A prompt that is being computed lacks on average what its kind lacks over its steps; the units that wait are so many
    prompts. Each stands on a rank of its own choice, and a rank computes what it has up to its room.
    """
    ranks = aggregate.ranks
    new = aggregate.new_tokens / unit_tokens
    weights = aggregate.prompts.weights
    parts = np.maximum(np.ceil(new / room - 1e-9), 1.0)
    lacking = new - room * (parts - 1) / 2  # of a prompt, averaged over its steps
    shares = weights * parts / float(weights @ parts)
    mean = float(lacking @ shares)
    prompts = np.maximum(states / mean, np.minimum(states, 1.0))
    each = np.where(prompts > 0, states / np.maximum(prompts, 1e-9), 0.0)
    counts = np.arange(0.0, 7.0)
    chances = _chances(prompts, 1 / ranks, counts)  # [states, counts]
    taken = ranks * (chances * np.minimum(counts * each[:, None], room)).sum(axis=1)
    taken = np.minimum(taken, states)
    # The busiest rank: the largest of so many parts, or of the ranks that hold several.
    last = new - room * (parts - 1)
    sizes = np.concatenate([np.full(new.size, room), last])
    likely = np.concatenate([shares * (1 - 1 / parts), shares / parts])
    order = np.argsort(sizes)
    sizes, likely = sizes[order], likely[order]
    values = np.minimum(counts[:, None] * sizes[None, :], room)  # [counts, parts]
    masses = chances[:, :, None] * likely  # [states, counts, parts]
    flat = np.argsort(values, axis=None, kind="stable")
    below = np.cumsum(masses.reshape(states.size, -1)[:, flat], axis=1) ** ranks
    largest = np.diff(below, axis=1, prepend=0.0)
    largest[:, : sizes.size] = 0.0  # no prompt at all
    busiest = (largest @ values.ravel()[flat]) / np.maximum(largest.sum(axis=1), 1e-12)
    busiest = np.where(states <= mean, np.minimum(states, room), np.minimum(busiest, np.minimum(states, room)))
    return taken, np.maximum.accumulate(busiest)


def _chances(prompts: Array, share: float, counts: Array) -> Array:
    """Binomial probabilities of ``counts`` of so many prompts on one rank, between whole numbers mixed; last: more."""
    low = np.floor(prompts)

    def whole(number: Array) -> Array:
        found = np.zeros((number.size, counts.size))
        found[:, 0] = (1 - share) ** number
        for k in range(1, counts.size):
            left = np.maximum(number - k + 1, 0.0)
            found[:, k] = found[:, k - 1] * left / k * share / (1 - share)
        found[:, -1] += np.maximum(1 - found.sum(axis=1), 0.0)
        return found

    part = (prompts - low)[:, None]
    return np.asarray(whole(low) * (1 - part) + whole(low + 1) * part)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptState:
    """Prompts at an instance in balance, at one number of running requests."""

    mean_step_seconds: float
    prompt_steps: float
    """Share of steps that compute prompts."""
    seconds: Array
    """[points] from arrival to the first token."""
    masses: Array


def prompt_state(lattice: Lattice, running: float, rate: float, dispersion: float) -> PromptState | None:
    """Return the chain's balance; None where prompts come faster than full steps compute them.

    ``rate`` is of the instance; counts of arrivals have ``dispersion`` times their mean as variance.
    """
    steps = lattice.at(running)
    states = _states(lattice, steps, rate, dispersion)
    if states == 0:
        return None
    seconds, takes = steps.seconds[:states], steps.takes[:states]
    idle = running < 0.5  # nothing runs and nothing waits: the instance stands still
    chances = _balance(lattice, seconds, takes, rate, dispersion, idle)
    working = np.append(0.0 if idle else chances[0], chances[1:])
    total = float(working.sum())
    points, masses = _sojourn(lattice, steps, chances, rate, dispersion, idle)
    return PromptState(
        mean_step_seconds=float(working @ seconds) / total,
        prompt_steps=float(chances[1:].sum()) / total,
        seconds=points,
        masses=masses,
    )


def _states(lattice: Lattice, steps: PromptSteps, rate: float, dispersion: float) -> int:
    """States that are all but never exceeded, by heavy traffic's decay; 0 where unstable."""
    drift = steps.takes - rate * steps.seconds * lattice.per_prompt
    if drift[-1] <= 0:
        return 0
    units = np.arange(lattice.own.size)
    second = float(units**2 @ lattice.own) + (dispersion - 1) * lattice.per_prompt**2
    noise = rate * float(steps.seconds[-1]) * max(second, 0.1)
    settled = int(np.argmax((drift > 0) & (np.cumsum(drift[::-1] <= 0)[::-1] == 0)))
    reach = settled + math.log(1e6) * noise / (2 * float(drift[-1])) + 3 * float(np.flatnonzero(lattice.own)[-1])
    return int(min(max(reach, 16), _MOST_STATES))


def _arrivals(lattice: Lattice, means: Array, dispersion: float, length: int) -> Array:
    """Distribution of the units that arrive with so many prompts on average, [..., length]; the rest is cut off."""
    most = float(means.max(initial=0.0))
    counts = math.ceil(most + 6 * math.sqrt(max(dispersion, 1.0) * most) + 8)
    numbers = count_distribution(np.maximum(means, 1e-12), dispersion, counts)
    if np.count_nonzero(lattice.own) == 1:
        step = int(np.flatnonzero(lattice.own)[0])
        found = np.zeros((*means.shape, max(length, (counts - 1) * step + 1)))
        found[..., : (counts - 1) * step + 1 : step] = numbers
        return found[..., :length]
    size = 1 << (2 * length + lattice.own.size).bit_length()
    spectrum = np.fft.rfft(lattice.own, size)
    powers = spectrum[None, :] ** np.arange(counts)[:, None]
    return np.maximum(np.fft.irfft(numbers @ powers, size)[..., :length], 0.0)


def _balance(lattice: Lattice, seconds: Array, takes: Array, rate: float, dispersion: float, idle: bool) -> Array:
    """Stationary distribution of the units that wait when a step starts, [states]."""
    states = seconds.size
    come = _arrivals(lattice, rate * seconds, dispersion, states)
    if idle:
        come[0] = 0.0
        come[0, : min(lattice.own.size, states)] = lattice.own[:states]
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


def _sojourn(
    lattice: Lattice, steps: PromptSteps, chances: Array, rate: float, dispersion: float, idle: bool
) -> tuple[Array, Array]:
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
    ahead = _ahead(lattice, steps, seen / (busy + standing), rate, dispersion, edges)  # [cells, states]
    if standing:
        ahead[0, 0] += standing / (busy + standing)
    rest = (edges[1:] + edges[:-1]) / 2
    if standing:
        rest[0] = 0.0
    paths = _paths(lattice, steps, rate)
    cell, waiting = np.nonzero(ahead > _NEGLIGIBLE)
    masses = ahead[cell, waiting]
    return _own_steps(lattice, steps, paths, (rest[cell], waiting.astype(np.float64), masses), rate)


def _ahead(lattice: Lattice, steps: PromptSteps, seen: Array, rate: float, dispersion: float, edges: Array) -> Array:
    """Joint distribution of the rest of the step under way (cells) and of the units ahead then, [cells, states]."""
    states, cells = seen.size, edges.size - 1
    width = edges[1]
    come = _arrivals(lattice, rate * (edges[1:] + edges[:-1]) / 2, dispersion, states)  # [cells, units] by elapsed
    found = np.zeros((cells, 2 * states))
    left = np.rint(np.maximum(np.arange(states) - steps.takes[:states], 0.0)).astype(np.intp)
    for state in np.flatnonzero(seen > _NEGLIGIBLE):
        whole = min(max(round(float(steps.seconds[state]) / width), 1), cells)
        share = seen[state] / whole
        found[:whole, left[state] : left[state] + states] += share * come[whole - 1 :: -1]
    found[:, states - 1] += found[:, states:].sum(axis=1)
    return found[:, :states]


def _paths(lattice: Lattice, steps: PromptSteps, rate: float) -> Array:
    """Seconds of 0, 1, ... steps from a state on, as it develops on average, [steps, states]."""
    grid = np.arange(float(steps.seconds.size))
    place, total = grid, np.zeros_like(grid)
    rows = [total]
    for _ in range(_MOST_STEPS):
        seconds = np.interp(place, grid, steps.seconds)
        total = total + seconds
        rows.append(total)
        left = np.maximum(place - np.interp(place, grid, steps.takes), 0.0)
        place = np.minimum(left + rate * seconds * lattice.per_prompt, grid[-1])
    return np.stack(rows)


def _own_steps(
    lattice: Lattice, steps: PromptSteps, paths: Array, points: tuple[Array, Array, Array], rate: float
) -> tuple[Array, Array]:
    """Add the steps up to the own last one to (rest, units ahead, mass) of arrivals."""
    rest, ahead, masses = points
    sizes = np.flatnonzero(lattice.own > 0)
    found, weights = [], []
    for size in sizes:
        start = ahead + size + rate * rest * lattice.per_prompt
        for before, chance in _before(lattice, steps, ahead):
            count = np.ceil((before + size) / steps.room - 1e-6)
            found.append(rest + _along(paths, np.clip(count, 1, _MOST_STEPS), start))
            weights.append(masses * chance * lattice.own[size])
    return np.concatenate(found), np.concatenate(weights)


def _before(lattice: Lattice, steps: PromptSteps, ahead: Array) -> list[tuple[Array, Array]]:
    """Units ahead on the own rank and how likely: all of them on one rank, those of its prompts on several."""
    ranks = lattice.aggregate.ranks
    if ranks == 1:
        return [(ahead, np.ones_like(ahead))]
    mean = min(lattice.per_prompt, float(lattice.own @ np.arange(lattice.own.size)))
    counts = np.arange(0.0, 4.0)
    chances = _chances(ahead / mean, 1 / ranks, counts)
    return [(number * mean * np.ones_like(ahead), chances[:, place]) for place, number in enumerate(counts)]


def _along(paths: Array, count: Array, start: Array) -> Array:
    """Seconds of ``count`` steps from ``start`` on, between states interpolated."""
    place = np.minimum(start, paths.shape[1] - 1.000001)
    low = place.astype(np.intp)
    part = place - low
    number = count.astype(np.intp)
    return np.asarray(paths[number, low] * (1 - part) + paths[number, low + 1] * part)
