"""How many prompts arrive within a time, on a lattice of fractions or multiples of a prompt.

Arrivals are made of *events*: k of them make a prompt, as where a router deals Poisson arrivals to k instances in turn
(Erlang's method of phases), and their number within a time has a given mean and dispersion. A lattice coarser than the
events counts them rounded to either side at random, so that means stay exact whatever the lattice.
"""

import math
from statistics import NormalDist

import numpy as np

from planner.queueing import Array
from podplan.records import dataclass

_MOST_EVENTS, _FEW_EVENTS = 512, 60.0
"""Counted one by one, all of them or where few are expected; otherwise their number is taken as normal."""
_MOST_PHASES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A stream of prompts: events per second, how many make a prompt, and variance over mean of their number."""

    events_per_second: float
    events_per_prompt: int
    dispersion: float

    @classmethod
    def of(cls, rate_per_second: float, squared_cv: float) -> "Arrivals":
        """Return the stream with a rate of prompts and gaps of that squared CV, c².

        Up to 1 its 1/c² phases are Poisson: exact for arrivals dealt in turn. Bursts have the dispersion c² of their
        counts over long times, so they are pessimistic where bursts are longer than a pass.
        """
        phases = min(math.ceil(1 / max(squared_cv, 1 / _MOST_PHASES) - 1e-9), _MOST_PHASES)
        return cls(
            events_per_second=rate_per_second * phases,
            events_per_prompt=phases,
            dispersion=max(squared_cv * phases, 1.0),
        )

    def counts(self, seconds: Array, prompts_per_cell: float, cells: int) -> Array:
        """Probabilities of 0, 1, ... cells of prompts within ``seconds``, [times, cells]; the last: so many or more."""
        events_per_cell = self.events_per_prompt * prompts_per_cell
        means = self.events_per_second * seconds
        events = math.ceil(cells * events_per_cell) + 1
        if events <= _MOST_EVENTS:
            return _with_tail(_by_event(means, self.dispersion, events, events_per_cell, cells))
        found = _normal_counts(means / events_per_cell, self.dispersion / events_per_cell, cells)
        few = np.flatnonzero(means < _FEW_EVENTS * self.dispersion)
        events = min(events, math.ceil((_FEW_EVENTS + 10 * math.sqrt(_FEW_EVENTS) + 20) * self.dispersion))
        found[few] = _by_event(means[few], self.dispersion, events, events_per_cell, cells)
        return _with_tail(found)


def _by_event(means: Array, dispersion: float, events: int, events_per_cell: float, cells: int) -> Array:
    """Counts event by event, rounded at random to the cells beside each, [times, cells]."""
    found = count_distribution(means, dispersion, events)
    if abs(events_per_cell - 1) < 1e-9:
        return found[:, :cells]
    places = np.arange(events) / events_per_cell
    low = np.minimum(places.astype(np.intp), cells - 1)
    part = np.minimum(places - low, 1.0)
    rounding = np.zeros((events, cells))
    np.add.at(rounding, (np.arange(events), low), 1 - part)
    np.add.at(rounding, (np.arange(events), np.minimum(low + 1, cells - 1)), part)
    return np.asarray(found @ rounding, dtype=np.float64)


def count_distribution(means: Array, dispersion: float, counts: int) -> Array:
    """Probabilities of 0..counts-1 events, [..., counts]: given mean, and variance ``dispersion`` times the mean.

    p(k)/p(k-1) = (d - 1)/d + (mean - d + 1)/(d k): Poisson for d = 1, negative binomial above, binomial below (cut at
    zero where its number of trials is not whole, so no longer of that mean where it is small). Scaled to sum 1.

    Ref: H. H. Panjer, Recursive Evaluation of a Family of Compound Distributions, ASTIN Bulletin 12:22, 1981.
    """
    k = np.arange(1, counts)
    ratios = (dispersion - 1) / dispersion + (means[..., None] - dispersion + 1) / (dispersion * k)
    logs = np.zeros((*means.shape, counts))
    np.cumsum(np.log(np.maximum(ratios, 1e-30)), axis=-1, out=logs[..., 1:])
    probabilities = np.exp(logs - logs.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    return np.asarray(probabilities, dtype=np.float64)


def _with_tail(found: Array) -> Array:
    """Put what is missing to 1 on the last count."""
    found[..., -1] += np.maximum(1 - found.sum(axis=-1), 0.0)
    return found


_SCORES = np.linspace(-9.0, 9.0, 3601)
_EXCESS = np.array(
    [NormalDist().pdf(score) - score * (1 - NormalDist().cdf(score)) for score in _SCORES.tolist()], dtype=np.float64
)
"""E[max(Z - score, 0)] of a standard normal Z."""


def _normal_counts(means: Array, dispersion: float, cells: int) -> Array:
    """Counts of a normal number with these means and variances ``dispersion`` times them, rounded to either side.

    Rounding at random so that the mean stays turns a number X into the whole k with E[max(1 - |X - k|, 0)], the second
    difference of E[max(X - k, 0)].
    """
    deviations = np.sqrt(np.maximum(dispersion * means, 1e-18))[..., None]
    above = (np.arange(-1.0, cells + 1) - means[..., None]) / deviations
    excess = deviations * np.where(above < _SCORES[0], -above, np.interp(above, _SCORES, _EXCESS))
    return np.maximum(np.diff(excess, 2, axis=-1), 0.0)
