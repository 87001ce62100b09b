"""The wait in a line of one server, GI/G/1, as a distribution: exact but for a lattice of time.

Who comes finds (wait of the one before + its work - the gap)^+ before it, so the wait is the maximum of a random walk
with steps U = work - gap. 1 - E z^U factors into a part of positive and one of negative powers of z (Wiener and Hopf);
the wait's transform is the positive part at 1 over itself. The factors are those of its logarithm, read off the
cepstrum, the Fourier transform of the logarithm on the unit circle.

Ref: F. Spitzer, The Wiener-Hopf equation whose kernel is a probability density, Duke Math. J. 24:327, 1957; for
lattices W. K. Grassmann and J. L. Jain, Numerical solutions of the waiting time distribution and idle time
distribution of the arithmetic GI/G/1 queue, Oper. Res. 37:141, 1989.
"""

import math
from dataclasses import dataclass

import numpy as np

from ground.arrays import on_nodes
from planner.serving.latency import Array

_CELLS = 1 << 13
"""Of the lattice, half of them for what waits."""
_KNOTS = 2000
_LEAST_CV = 1e-3


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait as masses at multiples of a step."""

    masses: Array
    step_seconds: float

    @property
    def mean_seconds(self) -> float:
        """Mean."""
        return float(self.masses @ np.arange(self.masses.size)) * self.step_seconds

    def at(self, levels: Array) -> Array:
        """Quantiles at levels within 0 and 1."""
        steps = np.interp(levels, np.cumsum(self.masses), np.arange(self.masses.size))
        return np.asarray(steps * self.step_seconds, dtype=np.float64)


def waits_in_line(law: Wait, work_seconds: Array, gaps: Array, seed: int) -> Array:
    """Return the waits of prompts in lines of one server, each begun at a quantile of its law, even over the lines.

    Args:
        law: of the wait of the first in each line.
        work_seconds: of each prompt, [..., prompts].
        gaps: between each prompt and the one before it, [..., prompts]; the first of a line is not read.
        seed: of the order in which lines are given quantiles.
    """
    lines = math.prod(work_seconds.shape[:-1])
    levels = (np.random.default_rng(seed).permutation(lines) + 0.5) / lines
    begun = law.at(levels).reshape(*work_seconds.shape[:-1], 1)
    walk = np.zeros(work_seconds.shape)
    walk[..., 1:] = np.cumsum(work_seconds[..., :-1] - gaps[..., 1:], axis=-1)
    return np.asarray(walk + np.maximum(begun, -np.minimum.accumulate(walk, axis=-1)))


def stationary_wait(work_seconds: Array, weights: Array, rate_per_second: float, squared_cv: float) -> Wait:
    """Return the wait before service of one server below saturation.

    Args:
        work_seconds: [kinds] of service.
        weights: [kinds], summing to 1.
        rate_per_second: arrivals.
        squared_cv: of the gaps, which are gamma distributed; below 0.001 as 0.001.
    """
    load = rate_per_second * float(work_seconds @ weights)
    usual = rate_per_second * float(work_seconds**2 @ weights) / 2 + squared_cv / rate_per_second
    span = max(13 * usual / (1 - load), 3 * float(work_seconds.max()), 6 / rate_per_second)
    half = _CELLS // 2
    step = span / half
    work = on_nodes(work_seconds / step, weights, _CELLS)
    gaps = _gaps(rate_per_second * step, max(squared_cv, _LEAST_CV), half)
    transform = np.fft.fft(work) * np.conj(np.fft.fft(gaps, _CELLS))
    # 1 - E z^U and 1 - 1/z are both nothing at z = 1; their quotient is -E U there, and goes round 0 nowhere.
    quotient = np.empty(_CELLS, dtype=np.complex128)
    turned = 1 - np.exp(2j * np.pi * np.arange(1, _CELLS) / _CELLS)
    quotient[1:] = (1 - transform[1:]) / turned
    quotient[0] = gaps @ np.arange(half) - work @ np.arange(_CELLS)
    logarithm = np.log(np.abs(quotient)) + 1j * np.unwrap(np.angle(quotient))
    positive = np.fft.ifft(logarithm).real
    positive[0] = 0.0
    positive[half:] = 0.0
    masses = np.maximum(np.fft.ifft(np.exp(positive.sum() - np.fft.fft(positive))).real, 0.0)[:half]
    return Wait(masses / masses.sum(), step)


def _gaps(rate: float, squared_cv: float, cells: int) -> Array:
    """Gamma gaps of mean 1/rate rounded to a lattice, [cells]; moved by part of a cell so that the mean stays."""
    shape = 1 / squared_cv
    below = _gamma_below(shape, (np.arange(float(cells)) + 0.5) * (rate * shape))
    masses = np.diff(below, prepend=0.0)
    masses[-1] += 1 - below[-1]
    off = 1 / rate - float(masses @ np.arange(cells))
    moved = np.append(0.0, masses[:-1]) if off > 0 else np.append(masses[1:], 0.0)
    share = min(abs(off), 1.0)
    mixed = (1 - share) * masses + share * moved
    return np.asarray(mixed / mixed.sum(), dtype=np.float64)


def _gamma_below(shape: float, values: Array) -> Array:
    """Distribution function of the gamma distribution of scale 1, at rising values."""
    least, most = -20.0 / min(shape, 1.0), math.log(max(float(values[-1]), 1e-9)) + 0.01
    logs = np.linspace(least, max(most, least + 1), _KNOTS)
    with np.errstate(under="ignore"):
        densities = np.exp(shape * logs - np.exp(logs) - math.lgamma(shape))
    below = np.append(0.0, np.cumsum((densities[1:] + densities[:-1]) / 2 * np.diff(logs)))
    return np.asarray(np.interp(np.log(np.maximum(values, 1e-300)), logs, below, left=0.0), dtype=np.float64)
