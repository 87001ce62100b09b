"""One DP rank of an aggregated instance as a line of one server, where prompts are cut over many steps.

Prompts are dealt over the ranks in turn, so a rank takes every r-th one and computes them one after the other. A part
lasts as long as its tokens and what is cached before them make it, but no shorter than steps with prompts are on
average, for all ranks leave a step together. So a prompt of twice the length takes more than twice as long, and the
wait of that line, GI/G/1, is known as a distribution (``queues.waiting_line``).

What the line leaves out is that a long prompt on one rank lengthens the steps of all others while it lasts: on several
ranks its times are up to a quarter short, on one up to a sixth long. It is what ``mixed.sampled`` starts from and is
controlled by, and what tells when that need not be asked.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.mixed.steps import Aggregate
from planner.queues.pass_surface import PassSurface
from planner.queues.prompts import Prompts
from planner.queues.queueing import Array
from planner.queues.waiting_line import Wait, stationary_wait
from planner.serving.latency import Latency

_MOST_LOAD = 0.97
_LEAST_CV = 1e-3
_LEVELS, _ROUNDS = 300, 6
_OTHERS = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0])
"""Levels between which the slowest part on other ranks is taken as one."""
Arrivals = tuple[float, float]
"""Rate, squared CV of the gaps."""


@dataclass(frozen=True, slots=True)
class RankLine:
    """A rank at one rate."""

    services: Array
    """Seconds of all parts of each kind of prompt, by the slowest part on other ranks; [slowest, kinds]."""
    chances: Array
    """Of the slowest, [slowest]."""
    weights: Array
    """Of the kinds, [kinds]."""
    delays: Array
    """Seconds by which a prompt of each kind makes steps longer than they are without it, [kinds]."""
    wait: Wait
    """Before the first part."""
    rest_seconds: float
    """Of the step under way when a prompt comes, on average."""
    step_variance: float
    """Of single steps, in squared seconds."""

    @property
    def usual(self) -> Array:
        """Seconds of each kind over all that others do, [kinds]."""
        return np.asarray(self.chances @ self.services)

    def delays_squared_cv(self, per_prompt: float, ranks: int) -> float:
        """Squared CV of the delays that prompts cause, over a mean of ``per_prompt`` with all that comes meanwhile.

        Of what comes while a long prompt delays the steps only each r-th stands behind it; the others are computed
        beside it, on ranks that wait for it anyway.
        """
        mean = float(self.delays @ self.weights)
        variance = max(float(self.delays**2 @ self.weights) - mean**2, 0.0)
        more = 1 + max(per_prompt / max(mean, 1e-12) - 1, 0.0) / ranks
        return variance * more**2 / max(per_prompt, mean) ** 2

    def ttft(self) -> Latency:
        """From arrival to first token: rest of a step, wait, own parts."""
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        seconds = (self.wait.at(levels)[:, None] + self.usual).ravel()
        masses = np.broadcast_to(self.weights, (_LEVELS, self.weights.size)).ravel()
        order = np.argsort(seconds)
        mean = self.wait.mean_seconds + float(self.usual @ self.weights) + self.rest_seconds
        return Latency.from_masses(seconds[order] + self.rest_seconds, masses[order], mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of an instance on average."""

    mean_seconds: float
    alone_seconds: float
    """Without prompts."""
    prompt_share: float
    """Of the steps, that compute prompts."""

    def second_moment(self, squared_cv: float, longest_seconds: float) -> float:
        """E[S²] where those with prompts vary so, and none is longer.

        Those are what the mean leaves: where hardly any has a prompt that is the difference of two numbers that are all
        but alike, over nearly nothing, hence the longest.
        """
        rest = (1 - self.prompt_share) * self.alone_seconds
        longer = min(max(self.mean_seconds - rest, 0.0) / max(self.prompt_share, 1e-9), longest_seconds)
        return self.prompt_share * longer**2 * (1 + squared_cv) + (1 - self.prompt_share) * self.alone_seconds**2


def rank_line(
    aggregate: Aggregate, room: float, surface: PassSurface, prompts: Prompts, steps: Steps, arrivals: Arrivals
) -> RankLine:
    """Return the line of one rank, at most 97 % busy.

    Args:
        aggregate: the instance.
        room: prompt tokens of a step on a rank.
        surface: seconds of parts.
        prompts: kinds.
        steps: on average.
        arrivals: (rate of the instance, squared CV of its gaps).
    """
    rate, ranks = arrivals[0] / aggregate.ranks, aggregate.ranks
    kind, tokens, context = _parts(prompts, room)
    each = prompts.weights[kind]
    load = (tokens, context, tokens * context + tokens * (tokens + 1) / 2, np.zeros(kind.size))
    usual, others = float(tokens @ each / each.sum()), ranks - 1
    alone = surface.seconds(load, tokens / ranks)
    busy = min(rate * float(each @ alone), 1.0)
    for _ in range(_ROUNDS):
        beside = others * busy / max(1 - (1 - busy) ** others, 1e-12)  # other ranks with prompts where any has one
        company = surface.seconds(load, (tokens + beside * usual) / ranks) if others else alone
        slowest, chances = _slowest_of_others(company, each, busy, others)
        together = np.where(slowest[:, None] > 0, np.maximum(company, slowest[:, None]), alone)  # [slowest, parts]
        # A last part that does not fill its step shares it with what waits behind it.
        together *= 1 - busy + busy * tokens / room
        busy = min(rate * float(chances @ together @ each), 1.0)
    without = np.where(slowest > 0, slowest, steps.alone_seconds)[:, None]
    delays = np.bincount(kind, chances @ np.maximum(together - without, 0.0)).astype(np.float64)
    services = np.stack([np.bincount(kind, own) for own in together]).astype(np.float64)
    services *= min(_MOST_LOAD / max(rate * float(chances @ services @ prompts.weights), 1e-12), 1.0)
    joint = np.outer(chances, prompts.weights).ravel()
    wait = stationary_wait(services.ravel(), joint, rate, max(arrivals[1] / ranks, _LEAST_CV))
    squared_cv = _squared_cv(*_slowest_of_others(company, each, busy, ranks))
    second = steps.second_moment(squared_cv, float(company.max()))
    rest, variance = second / (2 * steps.mean_seconds), max(second - steps.mean_seconds**2, 0.0)
    return RankLine(services, chances, prompts.weights, delays, wait, rest, variance)


def _squared_cv(values: Array, weights: Array) -> float:
    """Of those that are not 0."""
    weights = weights * (values > 0)
    mean = float(values @ weights) / max(float(weights.sum()), 1e-12)
    return float(values**2 @ weights) / max(float(weights.sum()), 1e-12) / mean**2 - 1 if mean > 0 else 0.0


def _parts(prompts: Prompts, room: float) -> tuple[NDArray[np.int64], Array, Array]:
    """(kind, tokens, cached tokens before it) of each part of each kind, [parts]."""
    new = np.maximum(prompts.tokens - prompts.reused, 1.0)
    parts = np.maximum(np.ceil(new / room - 1e-9), 1.0).astype(np.int64)
    kind = np.repeat(np.arange(new.size), parts)
    before = (np.arange(kind.size) - np.repeat(np.cumsum(parts) - parts, parts)) * room
    return kind, np.minimum(new[kind] - before, room), prompts.reused[kind] + before


def _slowest_of_others(seconds: Array, weights: Array, busy: float, others: int) -> tuple[Array, Array]:
    """(seconds, chances) of the slowest part on other ranks, each of which has one so often; [levels] each."""
    order = np.argsort(seconds)
    below = (1 - busy + busy * np.cumsum(weights[order]) / weights.sum()) ** others
    if not others:
        return np.zeros(1), np.ones(1)
    levels = (_OTHERS[1:] + _OTHERS[:-1]) / 2
    places = np.searchsorted(below, levels)
    found = np.where(levels < (1 - busy) ** others, 0.0, seconds[order][np.minimum(places, order.size - 1)])
    return found, np.diff(_OTHERS)
