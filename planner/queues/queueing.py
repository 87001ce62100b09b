"""Waiting times in closed form, and what every queue here answers with.

Nothing in this room knows models or hardware: it takes rates, service times and squared coefficients of variation.
``queues.prefill_queue`` and ``queues.decode_queue`` are what plans are made with; the closed forms are their oracles.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput

Array = NDArray[np.float64]

_AIM, _BEYOND = 0.995, 1.02
"""Of a limit, where root finding aims; of the largest rate asked for, where waits are taken to be endless."""
_LEVELS = np.concatenate([np.arange(1.0, 90.0), np.arange(90.0, 99.0, 0.5), np.arange(99.0, 99.95, 0.1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Distribution of a duration over requests: its mean and its quantiles."""

    mean: float
    """Seconds."""
    levels: tuple[float, ...]
    """Percentiles, rising, each within 0 and 100."""
    seconds: tuple[float, ...]
    """The duration at each of ``levels``."""

    @property
    def p50(self) -> float:
        """Median in seconds."""
        return self.at(50.0)

    @property
    def p90(self) -> float:
        """90th percentile in seconds."""
        return self.at(90.0)

    @property
    def p99(self) -> float:
        """99th percentile in seconds."""
        return self.at(99.0)

    def at(self, percentile: float) -> float:
        """Seconds that ``percentile`` per cent of the requests do not pass; beyond 99.9 the tail goes on exponentially.

        Raises:
            BadInput: a percentile not within 0 and 100.
        """
        if not 0.0 < percentile < 100.0:
            raise BadInput(f"--percentile {percentile:g} must lie between 0 and 100, both excluded.")
        if percentile <= self.levels[-1]:
            return float(np.interp(percentile, self.levels, self.seconds))
        last, before = self.levels[-1], self.levels[-11]
        slope = (self.seconds[-1] - self.seconds[-11]) / math.log((100 - before) / (100 - last))
        return self.seconds[-1] + slope * math.log((100 - last) / (100 - percentile))

    def scaled(self, factor: float) -> Self:
        """Return the distribution of the duration times ``factor``."""
        return type(self)(
            mean=self.mean * factor, levels=self.levels, seconds=tuple(value * factor for value in self.seconds)
        )

    @classmethod
    def from_samples(cls, seconds: Array) -> Self:
        """Build from durations that were seen, [requests]; those that are not a number do not count, and none is 0."""
        known = seconds[~np.isnan(seconds)]
        if not known.size:
            return cls(mean=0.0, levels=tuple(_LEVELS.tolist()), seconds=(0.0,) * _LEVELS.size)
        at = np.percentile(known, _LEVELS)
        return cls(mean=float(known.mean()), levels=tuple(_LEVELS.tolist()), seconds=tuple(at.tolist()))

    @classmethod
    def from_masses(cls, seconds: Array, masses: Array, mean: float | None = None) -> Self:
        """Build from probability masses at rising durations, each spread evenly down to the duration before it.

        Args:
            seconds: [cells], rising, the upper edge of each cell.
            masses: [cells], probability of each cell; scaled to sum 1.
            mean: the mean where it is known better than the cells tell.
        """
        below = np.cumsum(masses)
        below *= 100.0 / below[-1]
        quantiles = np.interp(_LEVELS, below, seconds)
        own_mean = float(np.dot(seconds, masses) / np.sum(masses)) if mean is None else mean
        return cls(mean=own_mean, levels=tuple(_LEVELS.tolist()), seconds=tuple(quantiles.tolist()))


def between(low: Latency, high: Latency, part: float) -> Latency:
    """Distribution so far from one rate to a higher one: 1/seconds goes straight, as it nearly does in the load."""

    def mixed(one: float, other: float) -> float:
        return one if one <= 0 or other <= 0 else 1 / ((1 - part) / one + part / max(one, other))

    seconds = tuple(mixed(*pair) for pair in zip(low.seconds, high.seconds, strict=True))
    return Latency(mean=mixed(low.mean, high.mean), levels=low.levels, seconds=seconds)


def independent_sum(one: Latency, other: Latency) -> Latency:
    """Distribution of the sum of two independent durations: every pair of their quantiles; the means add exactly."""
    edges = np.concatenate([[0.0], _LEVELS, [100.0]])
    middles, masses = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    first, second = (np.array([latency.at(float(level)) for level in middles]) for latency in (one, other))
    sums = (first[:, None] + second[None, :]).ravel()
    order = np.argsort(sums, kind="stable")
    return Latency.from_masses(sums[order], np.outer(masses, masses).ravel()[order], one.mean + other.mean)


def gamma_nodes(squared_cv: Array, count: int) -> tuple[Array, Array]:
    """Quantile nodes of gamma distributions with mean 1: values [..., count] and weights [count].

    x = (1 - c/9 + z sqrt(c)/3)^3 for normal scores z, then scaled to mean 1 and stretched to the squared CV c. Within
    2 % of the exact 99th percentile up to c = 2; beyond, the stretch keeps two moments and the tail is too light. Past
    c = 36 the shape is that of 36: the cube has no positive node left soon after.

    Ref: E. B. Wilson and M. M. Hilferty, The Distribution of Chi-Square, PNAS 17:684, 1931.
    """
    if count == 1:
        return np.ones((*np.shape(squared_cv), 1)), np.ones(1)
    normal = NormalDist()
    edges = np.linspace(-3.2, 3.2, count + 1)
    below = np.array([normal.cdf(z) for z in edges])
    weights = np.diff(below) / (below[-1] - below[0])
    scores = (edges[1:] + edges[:-1]) / 2
    c = np.asarray(squared_cv, dtype=np.float64)[..., None]
    shape = np.minimum(c, 36.0)
    values = np.maximum(1 - shape / 9 + scores * np.sqrt(shape) / 3, 0.0) ** 3
    values = values / (values @ weights)[..., None]
    spread = np.sqrt(((values - 1) ** 2 @ weights)[..., None])
    stretched = 1 + (values - 1) * np.sqrt(c) / np.maximum(spread, 1e-12)
    values = np.maximum(stretched, 1e-6)
    return values / (values @ weights)[..., None], weights


def gamma_quantiles(squared_cv: float, levels: Array) -> Array:
    """Quantiles of the gamma distribution with mean 1 and the squared CV, at levels within 0 and 1; same shape.

    Inverts the distribution function, summed over a grid of ln x; within 1 % from the 1 % quantile on for c <= 1.
    For where the short end matters, at which ``gamma_nodes`` is too coarse. A spread below the grid's step (CV 0.3 %)
    counts as none.
    """
    if squared_cv < 1e-5:
        return np.ones_like(levels)
    shape = 1 / squared_cv
    logs = np.linspace(-14.0 * max(1.0, squared_cv), math.log(1 + 8 * math.sqrt(squared_cv) + 40 * squared_cv), 4000)
    densities = np.exp(shape * (logs - np.exp(logs) + 1))  # of ln x, 1 at its peak
    below = np.cumsum(densities)
    return np.asarray(np.exp(np.interp(levels, below / below[-1], logs)), dtype=np.float64)


def pollaczek_khinchine_wait(rate_per_second: float, service_seconds: float, service_squared_cv: float) -> float:
    """Mean wait of M/G/1 in seconds: rho (1 + c^2) S / (2 (1 - rho)); infinite from rho = 1 on.

    With c = 0 it is M/D/1, the prefill queue of DistServe (OSDI 2024, section 3.1, Eq. (1) without its service time).

    Ref: F. Pollaczek 1930, A. Khinchine 1932; L. Kleinrock, Queueing Systems I, section 5.6.
    """
    return kingman_wait(rate_per_second, service_seconds, 1.0, service_squared_cv)


def kingman_wait(
    rate_per_second: float, service_seconds: float, arrival_squared_cv: float, service_squared_cv: float
) -> float:
    """Mean wait of G/G/1 in seconds: rho/(1 - rho) (ca^2 + cs^2)/2 S; exact for Poisson arrivals, else heavy traffic.

    Ref: J. F. C. Kingman, The single server queue in heavy traffic, Proc. Camb. Phil. Soc. 57:902, 1961.
    """
    utilisation = rate_per_second * service_seconds
    if utilisation >= 1:
        return math.inf
    return utilisation / (1 - utilisation) * (arrival_squared_cv + service_squared_cv) / 2 * service_seconds


def erlang_c(servers: int, offered: float) -> float:
    """Probability that a request waits in M/M/c, for ``offered`` = rate times service < ``servers``; else 1.

    Through Erlang B, B_0 = 1, B_k = a B_(k-1) / (k + a B_(k-1)): C = B / (1 - (a/c)(1 - B)).

    Ref: A. K. Erlang 1917; Kleinrock, Queueing Systems I, section 3.5.
    """
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def allen_cunneen_wait(
    servers: int,
    rate_per_second: float,
    service_seconds: float,
    arrival_squared_cv: float,
    service_squared_cv: float,
) -> float:
    """Mean wait of G/G/c behind one queue in seconds: Erlang C wait times (ca^2 + cs^2)/2; infinite when unstable.

    Ref: A. O. Allen, Probability, Statistics and Queueing Theory, 2nd ed., section 5.3.6.
    """
    offered = rate_per_second * service_seconds
    if offered >= servers:
        return math.inf
    memoryless = erlang_c(servers, offered) * service_seconds / (servers - offered)
    return memoryless * (arrival_squared_cv + service_squared_cv) / 2


def largest_rate(
    seconds: Callable[[float], float], limit_seconds: float, upper: float, about: float | None = None
) -> float | None:
    """Largest rate up to ``upper`` whose ``seconds``, rising in the rate, keep the limit; None where none does.

    ``upper`` is tried first: no more is asked for, and where it keeps the limit that was all. Else the answer is closed
    in on until within 1 % under the limit or 0.2 % of the rate: some 5 calls, from a rate ``about`` where it may lie.
    Every rate answered with was evaluated and keeps the limit; rates below a thousandth of ``upper`` are not told
    apart.
    """
    late = seconds(upper)
    if late <= limit_seconds:
        return upper
    least = upper / 1000
    high, rate = (upper, late), least if about is None else min(about, 0.95 * upper)
    while (value := seconds(rate)) > limit_seconds:
        if rate <= least:
            return None
        further = _further_down(high, (rate, value), limit_seconds)
        high, rate = (rate, value), max(further, least)
    return _between(seconds, limit_seconds, (rate, value), high, _BEYOND * upper)


def _further_down(last: tuple[float, float], now: tuple[float, float], limit_seconds: float) -> float:
    """Return where a straight 1/seconds through two rates that are late meets the limit, at most 95 % of the lower."""
    (above, later), (rate, late) = last, now
    slope = (1 / late - 1 / later) / (above - rate)
    return min(rate - (1 / (_AIM * limit_seconds) - 1 / late) / slope, 0.95 * rate) if slope > 0 else 0.0


def _between(
    seconds: Callable[[float], float],
    limit_seconds: float,
    kept: tuple[float, float],
    missed: tuple[float, float],
    full: float,
) -> float:
    """Close in on the largest rate from one that keeps the limit and one that does not, each with its seconds.

    Latency is a fixed part and a wait that goes up as 1/(full - rate), so over that it is all but straight: false
    position there, 5 % off the ends, with the end that stays the second time made the nearer by what the other told.
    After some that did not halve what is left, as where latency jumps, the middle is taken.

    Ref: N. Anderson, A. Bjorck, A new high order method of regula falsi type, BIT 13:253, 1973.
    """
    (low, value), (high, late) = kept, missed
    aim = _AIM * limit_seconds
    below, above, moved, slow = max(aim - value, 0.0), late - aim, "", 0
    while value < 0.99 * limit_seconds and high - low >= 0.002 * high:
        width = high - low
        rate = (low + high) / 2
        if slow < 3 and math.isfinite(above):
            part = below / (below + above)
            straight = full - 1 / ((1 - part) / (full - low) + part / (full - high))
            rate = min(max(straight, low + 0.05 * width), high - 0.05 * width)
        found = seconds(rate)
        if found <= limit_seconds:
            above *= _nearer(aim - found, below) if moved == "low" else 1.0
            low, value, below, moved = rate, found, max(aim - found, 0.0), "low"
        else:
            below *= _nearer(found - aim, above) if moved == "high" else 1.0
            high, above, moved = rate, found - aim, "high"
        slow += high - low > width / 2
    return low


def _nearer(now: float, before: float) -> float:
    """By what an end that stayed twice counts less, given how far the other one is from the aim and was."""
    return 1 - now / before if 0 < now < before else 0.5
