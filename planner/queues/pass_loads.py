"""How much the busiest DP group of a pass holds, in work of a mean unit: sums of unlike units, and how they are dealt.

Each unit goes to the group with least so far. Then all groups stand near one level: each holds units until it passes
that level, so what it holds is the level and the excess of a renewal process over it. The level is where the groups'
mean number of units, the renewal function, is what they got; the busiest has the greatest of as many excesses.

Ref: renewal function and excess (forward recurrence time), D. R. Cox, Renewal Theory, 1962, chapters 4 and 5; list
scheduling, R. L. Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17:416, 1969. That the groups
stand as independent renewal processes at one level is an approximation: against dealing drawn at random it is within
4 % in the mean and 10 % at p90 for log-normal units of CV up to 1, within 10 % and 20 % at CV 2 (tests).
"""

import math
from dataclasses import dataclass

import numpy as np

from ground.arrays import on_nodes
from planner.queues.queueing import Array

_CELLS = 2048
_ALIASED = 1e-8
"""What of a renewal density past the grid falls back onto it."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of units, arrays [kinds], on average 1, and how likely each is."""

    values: Array
    weights: Array

    @property
    def squared_cv(self) -> float:
        """Variance, the mean being 1."""
        return max(float((self.values - 1) ** 2 @ self.weights), 0.0)


def busiest_loads(work: Work, counts: Array, groups: int) -> tuple[Array, Array]:
    """Distribution of the busiest group's work with ``counts`` units on ``groups`` groups, more units than groups.

    Returns:
        The grid of work [cells] and the masses on it, [counts, cells].
    """
    each = float(counts.max()) / groups
    spread = work.squared_cv
    reach = each + 8 * math.sqrt(each * spread) + 1.5 * float(work.values.max()) + spread + 1
    grid = np.linspace(0.0, reach, _CELLS)
    single = on_nodes(work.values / grid[1], work.weights, _CELLS)
    if groups == 1:
        spectrum = np.fft.rfft(single, 2 * _CELLS)
        sums = np.fft.irfft(spectrum[None, :] ** counts[:, None], 2 * _CELLS, axis=1)[:, :_CELLS]
    else:
        deviations = np.sqrt(counts * spread) / groups
        sums = _smeared(_at_level(single, counts / groups, groups), deviations / grid[1])
    sums = np.maximum(sums, 0.0)
    return grid, sums / sums.sum(axis=1, keepdims=True)


def _at_level(single: Array, each: Array, groups: int) -> Array:
    """Greatest of the groups' works at the level at which they got ``each`` units on average, [counts, cells].

    With u the renewal density, 1 at 0, a group's work at level l exceeds y >= l with chance sum over s <= l of
    u(s) P(unit > y - s); the level is where the sum of u up to it is ``each``.
    """
    density = _renewal_density(single)
    levels = np.minimum(np.searchsorted(np.cumsum(density), each * (1 - 1e-9)), _CELLS - 1)
    cells = np.arange(_CELLS)
    until = np.where(cells[None, :] <= levels[:, None], density, 0.0)  # [counts, cells]
    longer = np.maximum(1 - np.cumsum(single), 0.0)
    beyond = np.fft.irfft(np.fft.rfft(until, 2 * _CELLS, axis=1) * np.fft.rfft(longer, 2 * _CELLS), 2 * _CELLS, axis=1)[
        :, :_CELLS
    ]
    beyond = np.where(cells[None, :] < levels[:, None], 1.0, np.clip(beyond, 0.0, 1.0))
    return np.diff((1 - beyond) ** groups, axis=1, prepend=0.0)


def _renewal_density(single: Array) -> Array:
    """Coefficients of 1 / (1 - p(z)), [cells]: on a circle inside the unit circle, so that late ones alias little."""
    length = 2 * _CELLS
    radius = math.exp(math.log(_ALIASED) / length)
    powers = radius ** np.arange(_CELLS)
    spectrum = np.fft.rfft(single * powers, length)
    return np.asarray(np.fft.irfft(1 / (1 - spectrum), length)[:_CELLS] / powers, dtype=np.float64)


def _smeared(masses: Array, deviations: Array) -> Array:
    """Add normal noise of ``deviations`` cells, [counts]: all units of a pass together are more or less than usual."""
    length = 2 * _CELLS
    frequencies = 2 * math.pi * np.arange(_CELLS + 1) / length
    noise = np.exp(-((deviations[:, None] * frequencies) ** 2) / 2)
    found = np.fft.irfft(np.fft.rfft(masses, length, axis=1) * noise, length, axis=1)
    found[:, 0] += found[:, length * 3 // 4 :].sum(axis=1)  # below nothing
    return np.asarray(found[:, :_CELLS], dtype=np.float64)


def means_between(levels: Array, below: Array, masses: Array, values: Array) -> Array:
    """Mean of ``values`` between ``levels`` of their distribution, [rows, levels - 1].

    Args:
        levels: rising from 0 to 1.
        below: [rows, kinds], the distribution function at each kind, rising values.
        masses: [rows, kinds].
        values: [rows, kinds].
    """
    total = np.cumsum(masses * values, axis=1)
    rows = [
        np.diff(np.interp(levels, np.append(0.0, own), np.append(0.0, held)))
        for own, held in zip(below, total, strict=True)
    ]
    return np.asarray(np.array(rows) / np.diff(levels), dtype=np.float64)
