"""The largest rate that an instance carries within limits, found by playing it, and how sure that is.

Every rate is played on the same streams with their gaps scaled (common random numbers), so what is found is a smooth
function of the rate and candidates differ by what they are. Latencies are those of requests between the first and the
last tenth of a stream: it begins empty and ends with nobody behind, which a long run does not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from planner.serving.latency import Latency
from planner.serving.streams import Floats, Stream

_AIM, _BEYOND = 0.995, 1.02
"""Of a limit, where root finding aims; of the largest rate asked for, where waits are taken to be endless."""
_EDGE = 0.1
_BATCHES, _TINY = 10, 1e-12
LEVEL = 0.9
"""Confidence level of the intervals of what is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Service levels; None where there is none. Each holds on its own at ``percentile``."""

    percentile: float
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """Latencies of the requests of one stream, [requests]; NaN where a request has none (TPOT of one token)."""

    ttft_seconds: Floats
    tpot_seconds: Floats

    def counted(self) -> "Outcome":
        """Return those between the first and the last tenth."""
        inner = counted(self.ttft_seconds.size)
        return Outcome(ttft_seconds=self.ttft_seconds[inner], tpot_seconds=self.tpot_seconds[inner])


def counted(requests: int) -> slice:
    """Return those of so many requests whose latencies count: from the first tenth to the last."""
    edge = int(requests * _EDGE)
    return slice(edge, requests - edge)


Play = Callable[[Stream], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One rate, played on several streams."""

    rate_per_second: float
    outcomes: tuple[Outcome, ...]
    """Of each stream, those that count."""
    excess: float
    """The larger of TTFT and TPOT at the percentile over its limit, over the requests of all streams."""
    limits: Limits

    @property
    def ttft(self) -> Latency:
        """TTFT over the requests of all streams."""
        return Latency.from_samples(np.concatenate([each.ttft_seconds for each in self.outcomes]))

    @property
    def tpot(self) -> Latency:
        """TPOT over the requests of all streams."""
        return Latency.from_samples(np.concatenate([each.tpot_seconds for each in self.outcomes]))

    @property
    def requests(self) -> int:
        """Requests that were counted."""
        return sum(each.ttft_seconds.size for each in self.outcomes)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the confidence interval of the excess."""
        limits = self.limits
        ttft, tpot = ([getattr(each, name) for each in self.outcomes] for name in ("ttft_seconds", "tpot_seconds"))
        found = [
            (low / limit, high / limit)
            for seconds, limit in ((ttft, limits.ttft_seconds), (tpot, limits.tpot_seconds))
            if limit
            for low, high in [percentile_interval(seconds, limits.percentile, level)]
        ]
        return max((low for low, _ in found), default=0.0), max((high for _, high in found), default=0.0)


def percentile_interval(samples: Sequence[Floats], percentile: float, level: float = LEVEL) -> tuple[float, float]:
    """Return the confidence interval of a percentile of durations that depend on those before them.

    Batch means: how much the share beyond the percentile differs between long parts of the samples tells the error of
    that share, and the percentiles at its ends are the interval's.

    Args: ``samples`` [streams] of [requests], NaN where there is none.

    Ref: A. M. Law, Simulation Modeling and Analysis, 5th ed., section 9.5.3; Student's t by Cornish and Fisher.
    """
    known = [each[~np.isnan(each)] for each in samples]
    every = np.concatenate(known)
    if not every.size:
        return 0.0, 0.0
    parts = [part for each in known for part in np.array_split(each, max(_BATCHES // len(known), 1)) if part.size]
    value = np.percentile(every, percentile)
    shares = np.array([float((part > value).mean()) for part in parts])
    z, freedom = NormalDist().inv_cdf((1 + level) / 2), max(shares.size - 1, 1)
    half = 100 * (z + (z**3 + z) / (4 * freedom)) * float(shares.std(ddof=1) if shares.size > 1 else 0.0)
    half /= math.sqrt(shares.size)
    low, high = np.percentile(every, [max(percentile - half, 0.0), min(percentile + half, 100.0)])
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Capacity:
    """The largest rate within the limits and the interval that the sample leaves of it."""

    rate_per_second: float
    low: float
    high: float
    """At the confidence ``LEVEL``; the bound itself where no limit binds below it."""
    trial: Trial
    """At that rate."""


def trial(play: Play, streams: Sequence[Stream], rate_per_second: float, limits: Limits) -> Trial:
    """Play streams of mean rate 1 at a rate."""
    outcomes = tuple(play(stream.at_rate(rate_per_second)).counted() for stream in streams)
    every = Outcome(
        ttft_seconds=np.concatenate([each.ttft_seconds for each in outcomes]),
        tpot_seconds=np.concatenate([each.tpot_seconds for each in outcomes]),
    )
    return Trial(rate_per_second=rate_per_second, outcomes=outcomes, excess=excess_of(every, limits), limits=limits)


def excess_of(outcome: Outcome, limits: Limits) -> float:
    """Return the larger of TTFT and TPOT at the percentile over its limit; 0 where no limit applies."""
    pairs = ((outcome.ttft_seconds, limits.ttft_seconds), (outcome.tpot_seconds, limits.tpot_seconds))
    return max((at_percentile(seconds, limits.percentile) / limit for seconds, limit in pairs if limit), default=0.0)


def at_percentile(seconds: Floats, percentile: float) -> float:
    """Return the percentile of those that are numbers; 0 where none is."""
    known = seconds[~np.isnan(seconds)]
    return float(np.percentile(known, percentile)) if known.size else 0.0


def capacity(
    play: Play, streams: Sequence[Stream], limits: Limits, upper: float, about: float | None = None
) -> Capacity | None:
    """Return the largest rate up to ``upper`` at which all streams together keep the limits; None where none does.

    The interval is that of the excess, through its slope over the rates tried.

    Args:
        play: serves a stream and tells its latencies.
        streams: of mean rate 1, as ``planner.serving.streams.stationary`` makes them.
        limits: what has to hold.
        upper: the rate that no run passes: saturation, or what is asked for.
        about: where the rate may lie.
    """
    trials: dict[float, Trial] = {}

    def excess(rate: float) -> float:
        trials[rate] = trial(play, streams, rate, limits)
        return trials[rate].excess

    rate = largest_rate(excess, 1.0, upper, about)
    if rate is None:
        return None
    found, slope = trials[rate], _slope(trials, rate)
    low, high = (rate * (max(end, _TINY) / max(found.excess, _TINY)) ** (-1 / slope) for end in found.interval()[::-1])
    # Where the limit does not bind below the bound, the rate is the bound as far as the interval keeps the limit.
    low = rate if rate == upper and found.interval()[1] <= 1 else low
    return Capacity(rate_per_second=rate, low=low, high=min(high, upper), trial=found)


def _slope(trials: dict[float, Trial], rate: float) -> float:
    """Relative change of the excess over the relative change of the rate, between the tried rates beside the answer."""
    rates = sorted(trials)
    place = rates.index(rate)
    beside = rates[place + 1] if place + 1 < len(rates) else rates[max(place - 1, 0)]
    low, high = sorted((rate, beside))
    first, second = trials[low].excess, trials[high].excess
    if high <= low * (1 + 1e-9) or first <= 0 or second <= first or not math.isfinite(second):
        return 1.0
    return max(math.log(second / first) / math.log(high / low), 1.0)


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
