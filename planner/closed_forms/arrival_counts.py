"""How many prompts arrive within a time, on a lattice of fractions or multiples of a prompt.

Arrivals are made of *events*: k of them make a prompt, as where a router deals Poisson arrivals to k instances in turn
(Erlang's method of phases), and their number within a time has a given mean and dispersion. A lattice coarser than the
events counts them rounded to either side at random, so that means stay exact whatever the lattice.
"""

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from ground.arrays import Floats

_MOST_EVENTS, _FEW_EVENTS = 1024, 60.0
"""Counted one by one, all of them or where few are expected; otherwise their number is taken as normal."""
_MOST_PHASES = 64
_NEVER = math.log(1e14)
"""What is rarer than one in that does not happen."""


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

    def counts(self, seconds: Floats, prompts_per_cell: float, cells: int) -> Floats:
        """Probabilities of 0, 1, ... cells of prompts within ``seconds``, [times, cells]; the last: so many or more."""
        reached = self.reached(seconds, prompts_per_cell, cells)
        found = np.zeros((reached.shape[0], cells))
        most = min(reached.shape[1], cells)
        found[:, :most] = reached[:, :most]
        found[:, : most - 1] -= reached[:, 1:most]
        return np.maximum(found, 0.0, out=found)  # but for rounding

    def reached(self, seconds: Floats, prompts_per_cell: float, cells: int) -> Floats:
        """Chances of 0, 1, ... cells of prompts or more within ``seconds``, [times, counts].

        As far as any is reached, up to ``cells``: a mean of m is passed by sqrt(2 m x) + x / 3 with a chance below
        exp(-x) (S. Bernstein's inequality, of Poisson counts).
        """
        events_per_cell = self.events_per_prompt * prompts_per_cell
        means = self.events_per_second * seconds
        mean = float(means.max(initial=0.0))
        most = mean + math.sqrt(2 * _NEVER * self.dispersion * mean) + _NEVER * (self.dispersion - 2 / 3)
        cells = min(math.ceil(most / events_per_cell) + 1, cells)
        if cells * events_per_cell < _MOST_EVENTS:
            return _by_event(means, self.dispersion, events_per_cell, cells)
        found = _as_normal(means / events_per_cell, self.dispersion / events_per_cell, cells)
        few = np.flatnonzero(means < _FEW_EVENTS * self.dispersion)
        known = _by_event(means[few], self.dispersion, events_per_cell, cells)
        found[few] = known
        return found


def _by_event(means: Floats, dispersion: float, events_per_cell: float, cells: int) -> Floats:
    """Count event by event, rounded at random to the cells beside each, [times, cells + 1].

    With e events to a cell, fewer than c cells have the chance (f(c e) - f((c - 1) e)) / e, f(x) = E[max(x - N, 0)]. As
    k p(k) is told by p(k - 1), f(x) = (x - m) P(N <= k) + (m + (d - 1) k) p(k), k the whole events in x, m the mean.
    """
    places = np.arange(cells + 1.0) * events_per_cell
    whole = places.astype(np.intp)
    chances = count_distribution(means, dispersion, int(whole[-1]) + 1)
    found = np.ones((means.size, cells + 1))
    if events_per_cell == 1:
        found[:, 1:] -= np.cumsum(chances, axis=1, out=chances)[:, :-1]
        return np.maximum(found, 0.0, out=found)
    mean = means[:, None]
    short = (mean + (dispersion - 1) * whole) * chances[:, whole]
    short += (places - mean) * np.cumsum(chances, axis=1, out=chances)[:, whole]
    found[:, 1:] -= (short[:, 1:] - short[:, :-1]) / events_per_cell
    return np.maximum(found, 0.0, out=found)


def count_distribution(means: Floats, dispersion: float, counts: int) -> Floats:
    """Probabilities of 0..counts-1 events, [..., counts]: given mean, and variance ``dispersion`` times the mean.

    Poisson for a dispersion of 1, above it negative binomial: p(k)/p(k-1) = (d - 1)/d + (mean - d + 1)/(d k).

    Ref: H. H. Panjer, Recursive Evaluation of a Family of Compound Distributions, ASTIN Bulletin 12:22, 1981.
    """
    k = np.arange(float(counts))
    means = np.asarray(means, dtype=np.float64)[..., None]
    if dispersion == 1:
        parts = np.concatenate([np.log(np.maximum(means, 1e-300)), means, np.ones_like(means)], axis=-1)
        logs = parts @ np.stack([k, -np.ones_like(k), -np.cumsum(np.log(np.maximum(k, 1.0)))])
        np.maximum(logs, -700.0, out=logs)  # what is not quite nothing takes twice as long
        return np.asarray(np.exp(logs, out=logs), dtype=np.float64)
    ratios = ((dispersion - 1) * (k[1:] - 1) + means) / (dispersion * k[1:])
    logs = np.zeros((*means.shape[:-1], counts))
    np.cumsum(np.log(np.maximum(ratios, 1e-300)), axis=-1, out=logs[..., 1:])
    return np.asarray(np.exp(logs - means * (math.log(dispersion) / (dispersion - 1))), dtype=np.float64)


_SCORES = np.linspace(-9.0, 9.0, 3601)


@cache
def _excesses() -> Floats:
    """E[max(Z - score, 0)] of a standard normal Z at ``_SCORES``; few questions need it."""
    normal = NormalDist()
    return np.array([normal.pdf(score) - score * (1 - normal.cdf(score)) for score in _SCORES.tolist()])


def _as_normal(means: Floats, dispersion: float, cells: int) -> Floats:
    """Chances of 0, 1, ... cells or more, [times, cells + 1], of a normal number, rounded to either side.

    It has these means, and variances ``dispersion`` times them. Rounding at random so that the mean stays turns a
    number X into k or more with E[max(X - k + 1, 0)] - E[max(X - k, 0)].
    """
    deviations = np.sqrt(np.maximum(dispersion * means, 1e-18))[..., None]
    above = (np.arange(-1.0, cells + 1) - means[..., None]) / deviations
    excess = deviations * np.where(above < _SCORES[0], -above, np.interp(above, _SCORES, _excesses()))
    found = np.maximum(-np.diff(excess, axis=-1), 0.0)
    found[:, 0] = 1.0
    return found
