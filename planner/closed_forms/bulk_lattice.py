"""What a queue of passes is counted on: how long passes take, what comes within a time, and the lattice of both.

The lattice has fractions of a prompt where arrivals are dealt in turn and the phase of the dealing counts, several
prompts where passes hold hundreds; it goes as far as what waits all but never goes, which is estimated from where
arrivals of a pass fill the next.

Arrivals are made of *events*: k of them make a prompt, as where a router deals Poisson arrivals to k instances in turn
(Erlang's method of phases), and their number within a time has a given mean and dispersion. A lattice coarser than the
events counts them rounded to either side at random, so that means stay exact whatever the lattice.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, distinct

PassSeconds = Callable[[Floats], Floats]

_NODES = 256


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Pass times of one instance, tabulated once for all rates."""

    prompts: Floats  # [nodes], rising, from one to the most that a pass holds
    seconds: Floats  # [nodes], not falling

    @classmethod
    def tabulated(cls, pass_seconds: PassSeconds, most_prompts: int) -> "Passes":
        """Tabulate durations up to a cap, in which they do not fall."""
        prompts = distinct(np.round(np.linspace(1, most_prompts, min(most_prompts, _NODES))))
        seconds = np.asarray(pass_seconds(prompts), dtype=np.float64) * np.ones_like(prompts)
        return cls(prompts=prompts, seconds=np.maximum.accumulate(seconds))

    @property
    def most(self) -> float:
        """Prompts of a full pass."""
        return float(self.prompts[-1])

    @property
    def full_seconds(self) -> float:
        """Duration of a full pass."""
        return float(self.seconds[-1])

    @cached_property
    def share_seconds(self) -> float:
        """What a prompt adds, on average from one to the most."""
        return float(self.seconds[-1] - self.seconds[0]) / max(self.most - 1, 1)

    @property
    def saturation_per_second(self) -> float:
        """Prompts per second of passes that are always full."""
        return self.most / self.full_seconds

    def at(self, prompts: Floats) -> Floats:
        """Return the durations of passes with so many prompts."""
        return np.asarray(np.interp(prompts, self.prompts, self.seconds), dtype=np.float64)


_MOST_EVENTS, _FEW_EVENTS = 1024, 60.0
"""Counted one by one, all of them or where few are expected; otherwise their number is taken as normal."""
_MOST_PHASES = 64
_NEVER = math.log(1e14)  # what is rarer than one in that does not happen


class Arrivals(NamedTuple):
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


_CELLS = 256  # cells of the lattice
_MOST_QUEUED = 256  # prompts that wait beyond a full pass
_USUAL, _LONGEST, _HORIZON = 40, 320, 4096
"""Cells of time of a usual pass, and at most of the longest one and of the longest sojourn."""
RARE = 1e-7  # masses that are left out


class Lattice(NamedTuple):
    """How waiting prompts are counted, and over which times."""

    fine: int  # cells of what takes one place in a pass
    prompts: Floats  # [sizes]: prompts of passes that took 1.. places
    least: int  # places of the smallest pass that is not all but never
    cells: int  # waiting is counted from 0 to ``cells`` - 1
    seconds: Floats  # [sizes + 1]: durations of passes that take all, by how many that is; last full ones
    width_seconds: float  # seconds of a cell

    @property
    def prompts_per_cell(self) -> float:
        """Of waiting."""
        return float(self.prompts[0]) / self.fine

    @property
    def sizes(self) -> int:
        """Places of the largest pass."""
        return int(self.prompts.size)

    @property
    def places(self) -> int:
        """Places in line that are told apart."""
        return (self.cells - 1) // self.fine


def most_waiting(passes: Passes, rate: float, squared_cv: float) -> float:
    """Return the prompts that a pass all but never exceeds, if it may hold as many: its cap says no more then."""
    return _reach(passes, rate, squared_cv, _settled(passes, rate, squared_cv))


def lattice_of(passes: Passes, rate: float, squared_cv: float, phases: int) -> Lattice:
    """Return the lattice of a queue.

    Args: ``passes``: durations by what passes took; ``rate``: prompts per second; ``squared_cv``: of the gaps between
    arrivals; ``phases``: events that make a prompt.
    """
    settled = _settled(passes, rate, squared_cv)
    reach = _reach(passes, rate, squared_cv, settled)
    sizes = min(reach, passes.most)
    queued = _queued(passes, rate, squared_cv) if reach >= passes.most else 2.0
    lines = sizes + queued
    # Rounding to a lattice of 1/m prompt adds a variance of up to 1/(6 m²): a hundredth of what is there.
    fine = max(min(phases, math.ceil(4 / math.sqrt(max(settled.noise, 1e-6))), int(_CELLS / lines)), 1)
    count = max(math.ceil(sizes / max(lines / _CELLS, 1.0)), 1)
    step = max(sizes / count, 1.0)
    seconds = passes.at(np.append(np.arange(1.0, count + 1) * step, sizes))
    longest = float(seconds[[0, -2, -1]].max())
    horizon = 2 * longest + (math.ceil(queued / passes.most) + 1) * passes.full_seconds
    return Lattice(
        fine=fine,
        prompts=np.arange(1.0, count + 1) * step,
        least=min(max(int(_least(passes, rate, squared_cv, settled) / step), 1), count),
        cells=fine * (count + math.ceil(queued / step) + 1),
        seconds=seconds,
        width_seconds=max(settled.seconds / _USUAL, longest / _LONGEST, horizon / _HORIZON),
    )


class _Settled(NamedTuple):
    """The pass whose arrivals fill the next."""

    prompts: float
    seconds: float
    noise: float  # variance of these arrivals
    gain: float  # what one more prompt in it brings, below one


def _settled(passes: Passes, rate: float, squared_cv: float) -> _Settled:
    """Return the pass whose arrivals fill the next; continuous in the rate."""
    beyond = passes.prompts - rate * passes.seconds
    enough = np.flatnonzero(beyond >= 0)
    place = int(enough[0]) if enough.size else passes.prompts.size - 1
    size, seconds = float(passes.prompts[place]), float(passes.seconds[place])
    if place and enough.size:
        part = float(beyond[place] / (beyond[place] - beyond[place - 1]))
        size -= part * float(passes.prompts[place] - passes.prompts[place - 1])
        seconds -= part * float(passes.seconds[place] - passes.seconds[place - 1])
    noise = squared_cv * rate * seconds
    slope = float(passes.seconds[place + 1] - passes.seconds[place]) if place + 1 < passes.prompts.size else 0.0
    return _Settled(size, seconds, noise, min(rate * max(passes.share_seconds, slope), 0.99))


def _reach(passes: Passes, rate: float, squared_cv: float, settled: _Settled) -> float:
    """Prompts that a pass all but never exceeds: 8 standard deviations above where arrivals of a pass fill the next.

    Linearised there, with f the arrivals that one more prompt brings: variance = arrivals' variance / (1 - f²). Each
    prompt brings its own, as in a branching process with immigration, so where f is near one the tail is exponential
    and longer than the normal one: it decays by 2 (1 - f) / v a prompt, v the variance of what one brings. At least
    what arrives while the longest prompt is alone.
    """
    alone = rate * float(passes.seconds[0])
    usual = settled.prompts + 8 * math.sqrt(settled.noise / (1 - settled.gain**2)) + 3
    usual = max(usual, settled.prompts + math.log(1 / RARE) * squared_cv * settled.gain / (2 * (1 - settled.gain)))
    return float(math.ceil(max(usual, alone + 6 * math.sqrt(squared_cv * alone) + 3)))


def _least(passes: Passes, rate: float, squared_cv: float, settled: _Settled) -> float:
    """Prompts that a pass all but never falls short of.

    7.5 standard deviations below where arrivals of a pass fill the next, linearised there; or the most that brings as
    many again even 6.5 deviations below its mean, which holds where durations leap, too.
    """
    means = rate * passes.seconds
    kept = np.flatnonzero(means - 6.5 * np.sqrt(squared_cv * means) >= passes.prompts)
    again = float(passes.prompts[kept[-1]]) if kept.size else 1.0
    return max(settled.prompts - 7.5 * math.sqrt(settled.noise / (1 - settled.gain**2)), again)


def _queued(passes: Passes, rate: float, squared_cv: float) -> float:
    """Prompts beyond a full pass that all but never wait: heavy-traffic decay."""
    full = passes.full_seconds
    slack = max(passes.most - rate * full, 1e-9)
    return min(2 + math.log(1 / RARE) * squared_cv * rate * full / (2 * slack), float(_MOST_QUEUED))
