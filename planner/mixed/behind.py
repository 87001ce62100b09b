"""Steps behind the one that ends a request's prompt: how much longer they are than steps on average.

A request begins to decode among the prompts that came behind its own, and shares its steps with them. On one DP rank,
while the requests in decode stay as many, that is told exactly by the chain of ``mixed.chain``: begun with the steps
that end prompts, weighted by how many, and followed for as many steps as the answer has. Where prompts are dealt over
instances in turn none is likely soon behind another; the chain then knows how much of the gap has gone by, as phases of
a Poisson process of which every c-th brings a prompt here.

Ref: expectations seen by requests, F. Baccelli and P. Bremaud, Elements of Queueing Theory, chapter 1 (Palm); method of
phases, A. K. Erlang, 1917. The use made of them is derived here and held against steps that are played.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.mixed.chain import PromptSteps, most_units, prompt_steps
from planner.mixed.even import phases_of
from planner.mixed.steps import StepTable
from planner.queues.arrival_counts import Arrivals, count_distribution
from planner.queues.queueing import Array

_UNITS_PER_STEP = (8, 4, 2)
_MOST_STATES, _MOST_PHASES, _ENOUGH_PHASES = 256, 8, 4
_FOLLOWED = 64
"""Steps that are followed one by one; what they have in common with the first falls off by one factor from there on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """States are (units that wait, phases since the last prompt), flat."""

    steps: PromptSteps
    phases: int
    seconds: Array
    """[waiting], as is the one below."""
    left: Array
    """Units that a step leaves."""
    moves: Array
    """[states, states]."""
    brings: Array
    """The same times the prompts that come."""

    @property
    def lasts(self) -> Array:
        """Seconds, [states]."""
        return np.repeat(self.seconds, self.phases)

    def balance(self) -> Array:
        """Chances of the states when a step starts, [states]."""
        equations = self.moves.T - np.eye(self.moves.shape[0])
        equations[-1] = 1.0
        found = np.maximum(np.linalg.solve(equations, np.eye(1, equations.shape[0], equations.shape[0] - 1)[0]), 0.0)
        return np.asarray(found / found.sum())

    def ended(self, chances: Array) -> Array:
        """Prompts that steps end times the chance of their state, [states].

        As many equal prompts wait as their units make, rounded up. Of others n(w) is found with the balance: of those
        that wait a step leaves the first, which is under way, and of those behind it as large a part as of the units.
        """
        waiting = np.arange(self.left.size)
        if np.count_nonzero(self.steps.own) == 1:
            present = np.ceil(waiting / self.steps.per_prompt - 1e-9)
            return chances * np.repeat(present - np.interp(self.left, waiting, present), self.phases)
        share = self.left / np.maximum(waiting, 1)
        stay, head = (np.repeat(each, self.phases) for each in (share, (self.left > 1e-9) * (1 - share)))
        come = (chances * head) @ self.moves + chances @ self.brings
        number = np.linalg.solve(np.eye(stay.size) - (stay[:, None] * self.moves).T, come)
        return np.maximum(number * (1 - stay) - chances * head, 0.0)


def seconds_behind(
    table: StepTable, running: float, arrivals: tuple[float, float], steps: float, per_prompt: float
) -> float:
    """Seconds by which so many steps behind a request's own prompt are longer than as many on average.

    Args:
        table: steps of an instance of one rank.
        running: requests in decode.
        arrivals: (rate, dispersion).
        steps: of an answer.
        per_prompt: seconds by which one more prompt delays steps.
    """
    rate, dispersion = arrivals
    chain = _chain(table, running, rate, dispersion)
    chances, lasts = chain.balance(), chain.lasts
    mean = float(chances @ lasts)
    ended = chain.ended(chances)
    state, total, before, now = ended / ended.sum(), 0.0, 0.0, 0.0
    for step in range(min(math.ceil(steps), _FOLLOWED)):
        state = state @ chain.moves
        before, now = now, float(state @ lasts) - mean
        total += now * min(steps - step, 1.0)
    if steps > _FOLLOWED and 0 < now < before:
        falls = now / before
        total += now * falls * (1 - falls ** (steps - _FOLLOWED)) / (1 - falls)
    told = min(1.0, 1 / chain.phases)  # bursts come in the step of the first, evener gaps are left out
    return total + (dispersion - told) / 2 * per_prompt


def _chain(table: StepTable, running: float, rate: float, dispersion: float) -> _Chain:
    """As fine as ``_MOST_STATES`` allow, then with fewer phases, then without the longest lines."""
    phases = min(phases_of(dispersion), _MOST_PHASES)
    for fine in _UNITS_PER_STEP:
        steps = prompt_steps(table, running, fine)
        states = most_units(steps, rate, dispersion)
        if states * phases <= _MOST_STATES:
            break
    while states * phases > _MOST_STATES and phases > _ENOUGH_PHASES:
        phases //= 2
    size = int(min(states, _MOST_STATES // phases, steps.seconds.size))
    seconds = steps.seconds[:size]
    left = np.maximum(np.arange(size) - steps.takes[:size], 0.0)
    numbers = _numbers(rate * seconds, dispersion, phases)
    units = _units(steps.own, numbers.shape[2], size)
    moves = _moved(numbers, units, left)
    moves[:, -1] += np.maximum(1 - moves.sum(axis=1), 0.0)
    varied = np.count_nonzero(steps.own) > 1
    counted = numbers * np.arange(numbers.shape[2])[:, None]
    return _Chain(
        steps=steps,
        phases=phases,
        seconds=seconds,
        left=left,
        moves=moves,
        brings=_moved(counted, units, left) if varied else moves,
    )


def _numbers(means: Array, dispersion: float, phases: int) -> Array:
    """Chances of so many prompts in a step and of the phases behind the last, [waiting, phases, prompts, phases]."""
    most = math.ceil(float(means.max()) + 6 * math.sqrt(float(means.max()) * max(dispersion, 1.0)) + 8)
    if phases == 1:
        return Arrivals.of(1.0, max(dispersion, 1.0)).counts(means, 1.0, most)[:, None, :, None]
    events = count_distribution(phases * means, 1.0, phases * most)
    found = np.zeros((means.size, phases, most + 1, phases))
    for since in range(phases):
        flat = np.pad(events, ((0, 0), (since, phases - since)))
        found[:, since] = flat.reshape(means.size, most + 1, phases)
    return found


def _units(own: Array, numbers: int, size: int) -> Array:
    """Distribution of the units of 0, 1, ... prompts, [numbers, size]; what is beyond is cut off."""
    found = np.zeros((numbers, size))
    found[0, 0] = 1.0
    for number in range(1, numbers):
        found[number] = np.convolve(found[number - 1], own)[:size]
    return found


def _moved(numbers: Array, units: Array, left: Array) -> Array:
    """From state to state [states, states]: what a step leaves, rounded to either side at random, and what comes."""
    size, phases = left.size, numbers.shape[1]
    come = (numbers.swapaxes(2, 3) @ units).swapaxes(2, 3)  # [waiting, phases, units, phases]
    found = np.zeros((size, phases, size, phases))
    low = np.floor(left + 1e-9).astype(np.intp)
    for waits, (whole, rest) in enumerate(zip(low, np.clip(left - low, 0.0, 1.0), strict=True)):
        found[waits, :, whole:] += (1 - rest) * come[waits, :, : size - whole]
        found[waits, :, whole + 1 :] += rest * come[waits, :, : size - whole - 1]
    return found.reshape(size * phases, size * phases)
