"""Requests that run at an aggregated instance: how many, when a step takes as long as they and their prompts make it.

Ref: birth-death processes with state-dependent rates, L. Kleinrock, Queueing Systems I, chapter 3.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.mixed.chain import PromptState
from planner.queues.queueing import Array

_LEAST = 0.2
"""Of the step at the lowest node: steps with fewer running requests are no shorter."""


def crossing(places: Array, values: Array) -> float:
    """Where rising ``values`` reach 0, linear between places; the last place where they do not."""
    above = np.flatnonzero(values >= 0)
    if not above.size:
        return float(places[-1])
    last = int(above[0])
    if last == 0:
        return float(places[0])
    return float(np.interp(0.0, values[last - 1 : last + 1], places[last - 1 : last + 1]))


def least_step(seconds: Array, taken: Array, tokens_per_second: float) -> float:
    """Least mean step time of steps that take so many tokens per second on average; infinite where none do.

    Steps of any mix lie above the lower convex hull of (taken, seconds), so their mean does; the hull's crossing with
    the line of the rate is the least mean. Both arguments are [states], not falling.
    """
    if tokens_per_second <= 0:
        return float(seconds[0])
    if taken[-1] < tokens_per_second * seconds[-1]:
        return math.inf
    # Of the line from (0, seconds[0]) to any state, the least step at this rate: seconds0 / (1 - rate · slope).
    slopes = np.diff(seconds, prepend=seconds[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.where(taken > 0, (seconds - seconds[0]) / taken, np.inf)
        steps = np.where(tokens_per_second * slopes < 1, seconds[0] / (1 - tokens_per_second * slopes), np.inf)
    reached = taken >= tokens_per_second * steps * (1 - 1e-9)
    return float(np.min(np.where(reached, steps, np.inf))) if reached.any() else float(seconds[-1])


@dataclass(frozen=True, slots=True)
class Running:
    """Running requests, and the chains around their mean."""

    nodes: Array
    states: list[PromptState]
    steps: Array
    """Mean seconds, [nodes]."""
    mean: float
    variance: float
    empty: float
    """Share of time in which nothing runs."""
    waiting: float
    full_share: float
    """Rate over what an instance with all places taken finishes."""

    @property
    def slope(self) -> float:
        """How much longer a step gets with one more running request; nodes may coincide where few run."""
        if self.nodes[-1] <= self.nodes[0]:
            return 0.0
        return max(float(self.steps[-1] - self.steps[0]) / float(self.nodes[-1] - self.nodes[0]), 0.0)

    @property
    def nearest(self) -> tuple[float, PromptState]:
        """(running requests, chain) of the node that is nearest to their mean."""
        place = int(np.argmin(np.abs(self.nodes - self.mean)))
        return float(self.nodes[place]), self.states[place]

    @property
    def weights(self) -> Array:
        """Of the nodes, [nodes]: with the mean and, as far as they reach, the variance of the running requests."""
        powers = np.stack([((self.nodes - self.mean) / max(math.sqrt(self.variance), 1e-9)) ** k for k in range(3)])
        wanted = np.array([1.0, 0.0, 1.0])
        size = self.nodes.size
        found = np.linalg.lstsq(powers[:size], wanted[:size], rcond=None)[0]
        found = np.maximum(found, 0.0)
        return np.asarray(found / found.sum())


def occupancy(
    steps_per_second: float, nodes: Array, states: list[PromptState], most: float, company: float
) -> Running | None:
    """Return the running requests, at most ``most``; None where an instance with all places taken does not keep up.

        pi(n) / pi(n-1) = rate · I · step(n) / n

    the step straight between the chains at ``nodes`` and beyond them. Past the most that run, requests wait in line.
    ``company``: how many more requests run beside one than at any time; below 0 where arrivals are even.
    """
    count = max(math.floor(most), 1)
    steps = np.array([state.mean_step_seconds for state in states])
    centre = float(nodes[nodes.size // 2])
    width = 12 * math.sqrt(max(centre, 1.0)) + 30
    numbers = np.arange(max(math.floor(centre - width), 0) + 1.0, min(centre + 3 * width, count) + 1)
    if not numbers.size:  # far more want to run than have a place
        return None
    gradient = max(float(steps[-1] - steps[0]) / float(nodes[-1] - nodes[0]), 0.0) if nodes[-1] > nodes[0] else 0.0
    seen = np.maximum(numbers + company, 1.0)
    beyond = np.maximum(seen - nodes[-1], 0.0) + np.minimum(seen - nodes[0], 0.0)
    seconds = np.maximum(np.interp(seen, nodes, steps) + gradient * beyond, steps[0] * _LEAST)
    ratios = steps_per_second * seconds / numbers
    full = steps_per_second * (float(seconds[-1]) + gradient * (count - float(numbers[-1]))) / count
    if numbers[-1] >= count and ratios[-1] >= 1:
        return None
    logs = np.append(0.0, np.cumsum(np.log(np.maximum(ratios, 1e-300))))
    masses = np.exp(logs - logs.max())
    numbers = np.append(numbers[0] - 1, numbers)
    waiting = 0.0
    if numbers[-1] >= count:
        waiting = masses[-1] = float(masses[-1]) / (1 - float(ratios[-1]))
    total = float(masses.sum())
    mean = float(masses @ numbers) / total
    return Running(
        nodes=nodes,
        states=states,
        steps=steps,
        mean=mean,
        variance=float(masses @ (numbers - mean) ** 2) / total,
        empty=float(masses[0]) / total if numbers[0] == 0 else 0.0,
        waiting=waiting / total,
        full_share=full,
    )
