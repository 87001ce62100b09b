"""The distribution of a duration over requests: what every queue and every play answers with."""

import math
from typing import NamedTuple, Self

import numpy as np

from ground.arrays import Floats

_LEVELS = np.concatenate([np.arange(1.0, 90.0), np.arange(90.0, 99.0, 0.5), np.arange(99.0, 99.95, 0.1)])


class Latency(NamedTuple):
    """Distribution of a duration over requests: its mean and its quantiles."""

    mean: float  # seconds
    levels: tuple[float, ...]  # percentiles, rising, each within 0 and 100
    seconds: tuple[float, ...]  # the duration at each of ``levels``

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
        """Seconds that ``percentile`` per cent of the requests do not pass; beyond 99.9 the tail is exponential."""
        if percentile <= self.levels[-1]:
            return float(np.interp(percentile, self.levels, self.seconds))
        last, before = self.levels[-1], self.levels[-11]
        slope = (self.seconds[-1] - self.seconds[-11]) / math.log((100 - before) / (100 - last))
        return self.seconds[-1] + slope * math.log((100 - last) / (100 - percentile))

    def later(self, seconds: float) -> Self:
        """Return the distribution of the duration and so many seconds more."""
        return type(self)(
            mean=self.mean + seconds, levels=self.levels, seconds=tuple(value + seconds for value in self.seconds)
        )

    def scaled(self, factor: float) -> Self:
        """Return the distribution of the duration times ``factor``."""
        return type(self)(
            mean=self.mean * factor, levels=self.levels, seconds=tuple(value * factor for value in self.seconds)
        )

    @classmethod
    def from_samples(cls, seconds: Floats) -> Self:
        """Build from durations that were seen, [requests]; those that are not a number do not count, and none is 0."""
        known = seconds[~np.isnan(seconds)]
        if not known.size:
            return cls(mean=0.0, levels=tuple(_LEVELS.tolist()), seconds=(0.0,) * _LEVELS.size)
        at = np.percentile(known, _LEVELS)
        return cls(mean=float(known.mean()), levels=tuple(_LEVELS.tolist()), seconds=tuple(at.tolist()))

    @classmethod
    def from_masses(cls, seconds: Floats, masses: Floats, mean: float | None = None) -> Self:
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


def cells() -> tuple[Floats, Floats]:
    """Return levels that stand for all requests between those that a ``Latency`` tells, and the share of each in %."""
    edges = np.concatenate([[0.0], _LEVELS, [100.0]])
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


def independent_sum(one: Latency, other: Latency) -> Latency:
    """Distribution of the sum of two independent durations: every pair of their quantiles; the means add exactly."""
    middles, masses = cells()
    first, second = (np.array([latency.at(float(level)) for level in middles]) for latency in (one, other))
    sums = (first[:, None] + second[None, :]).ravel()
    order = np.argsort(sums, kind="stable")
    return Latency.from_masses(sums[order], np.outer(masses, masses).ravel()[order], one.mean + other.mean)


def one_or_other(one: Latency, other: Latency, share: float) -> Latency:
    """Distribution of a duration that is ``one`` for a share of the requests and ``other`` for the rest."""
    middles, masses = cells()
    seconds = np.array([latency.at(float(level)) for latency in (one, other) for level in middles])
    order = np.argsort(seconds, kind="stable")
    weights = np.concatenate([share * masses, (1 - share) * masses])
    return Latency.from_masses(seconds[order], weights[order], share * one.mean + (1 - share) * other.mean)
