"""The largest rate that an instance carries within limits, found by playing it, and how sure that is.

Every rate is played on the same streams with their gaps scaled (common random numbers), so latency is a smooth function
of the rate, and two candidates differ only by their own properties. The first and the last tenth of a stream do not
count: a stream begins with an empty instance and ends with nobody behind, which a long run does not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ground.arrays import Floats, Ints, student
from planner.objective import LEAST_PART
from planner.serving.latency import Latency
from planner.serving.streams import PARTS, Stream

if TYPE_CHECKING:
    from planner.serving.aggregated import Needs

_AIM, _BEYOND = 0.995, 1.02
"""Part of the limit at which root finding aims; part of the upper rate at which latency is taken as infinite."""
_WIDEN, _WIDER, _FALL, _STEEP = 0.01, 3, 0.6, 0.05
"""Least relative change from one rate to the next, its growth factor, least factor of the first step down, and exponent
of that step: beyond the limit latency grows about as the 20th power of the rate.
"""
STEP, _ROUNDING = 9e-4, 1e-6
"""Relative distance of the rates on the grid of capacities; part of a step that counts as rounding."""
_SLOW = 4  # rates in a row that fail to halve the bracket, after which bisection finishes
_OVERLOAD = 2.0
"""Latency over its limit at which root finding cuts it off: beyond, latency depends mostly on the stream's length."""
BATCHES, _TINY = 10, 1e-12  # parts of a sample for batch means; a number that stands for zero
_LEAST_PART = 0.2  # least share of the counting requests from which a play may be judged early
LEVEL = 0.9  # confidence level of intervals of played values


class StatesLimits(Protocol):
    """What states latency limits: a question, or a manifest's service levels."""

    @property
    def percentile(self) -> float: ...  # noqa: D102
    @property
    def ttft_seconds(self) -> float | None: ...  # noqa: D102
    @property
    def tpot_seconds(self) -> float | None: ...  # noqa: D102


class Limits(NamedTuple):
    """Latency limits, None where there is none. TTFT and TPOT each keep their limit at ``percentile``."""

    percentile: float
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None

    @classmethod
    def of(cls, stated: StatesLimits) -> "Limits":
        """Return the limits of a question, or of a manifest's service levels."""
        return cls(stated.percentile, stated.ttft_seconds, stated.tpot_seconds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """Latencies of the requests of a stream, [requests]; NaN where a request has none (TPOT of one token), or empty."""

    ttft_seconds: Floats
    tpot_seconds: Floats
    ended: bool = False  # whether the play ended early: latencies are then lower bounds
    prompt_steps: float = 0.0  # share of an aggregated instance's steps that compute prompts
    needs: "Needs | None" = None  # limits with which an aggregated instance would have played the same

    def limited(self, limits: Limits) -> tuple[tuple[Floats, float], tuple[Floats, float]]:
        """Return TTFT and TPOT, each with its limit; without any where no limit applies."""
        ttft, tpot = limits.ttft_seconds, limits.tpot_seconds
        return (self.ttft_seconds if ttft else _NONE, ttft or 1.0), (self.tpot_seconds if tpot else _NONE, tpot or 1.0)

    def excesses(self, limits: Limits) -> tuple[float, float]:
        """Return TTFT and TPOT at the percentile over their limits; 0 where no limit applies."""
        ttft, tpot = (at_percentile(own, limits.percentile) / limit for own, limit in self.limited(limits))
        return ttft, tpot

    def counted(self, inner: slice) -> "Outcome":
        """Return the latencies of the requests in a slice."""
        return replace(self, ttft_seconds=self.ttft_seconds[inner], tpot_seconds=self.tpot_seconds[inner])


_NONE = np.zeros(0)
_NOTHING = Outcome(ttft_seconds=_NONE, tpot_seconds=_NONE)

Play = Callable[[Stream, "Until | None"], Outcome]
"""Plays a stream to its end, or until ``Until`` says that enough is known."""


class Until(NamedTuple):
    """Ends a play once so many of the requests that count are late that its verdict is certain."""

    limits: Limits
    counting: slice
    most_late: tuple[int, int]  # late requests up to which the verdict stays open: of TTFT, of TPOT
    level: float | None = None  # confidence at which the part played so far may end the play; None: only certainty does

    @classmethod
    def certain(cls, stream: Stream, limits: Limits, level: float | None = None) -> "Until":
        """Stop once a stream certainly misses a limit; with a ``level``, once its whole interval certainly does.

        If k latencies pass a limit, so does the k-th longest, and a percentile is no shorter than the latency at its
        rank rounded down. An interval is widest where all of the share q beyond the percentile is in one of the b
        parts, or where each part is beyond it as a whole or not at all: the variance of their shares is b q^2 or
        b q (1 - q) / (b - 1) at most.
        """
        share = 1 - limits.percentile / 100
        if level is not None:
            share += student((1 + level) / 2, BATCHES - 1) * min(share, math.sqrt(share * (1 - share) / (BATCHES - 1)))
        inner = stream.answer_tokens[stream.counting]
        answered = (inner > 1).sum() if limits.tpot_seconds else 0
        most = [math.ceil((known - 1) * share) if known else len(stream) for known in (inner.size, answered)]
        return cls(limits=limits, counting=stream.counting, most_late=(most[0], most[1]))

    @classmethod
    def sure(cls, stream: Stream, limits: Limits, level: float) -> "Until":
        """Stop once a stream certainly misses a limit, or once its played part shows that with confidence ``level``.

        Each of the ``PARTS`` looks has an equal part of the error (Bonferroni's inequality), so a limit that an endless
        stream keeps is rejected with probability 1 - ``level`` at most. A trace is the whole population, without error.
        """
        certain = cls.certain(stream, limits)
        return certain if stream.whole else certain._replace(level=1 - (1 - level) / PARTS)

    def __call__(self, outcome: Outcome) -> bool:
        """Whether enough is known, given lower bounds of the latencies of the requests that have arrived."""
        limits = self.limits
        pairs = ((outcome.ttft_seconds, limits.ttft_seconds), (outcome.tpot_seconds, limits.tpot_seconds))
        return any(
            limit is not None and self._enough(seconds[self.counting], limit, most)
            for (seconds, limit), most in zip(pairs, self.most_late, strict=True)
        )

    def _enough(self, seconds: Floats, limit: float, most: int) -> bool:
        late = int(np.count_nonzero(seconds > limit))
        if late > most or not self._telling(late, seconds.size):
            return late > most
        known = seconds[~np.isnan(seconds)]
        return bool(late - self._share * known.size > known.size * _half(known, limit, self.level or 0.0))

    def late_prompts(self, late: Ints, there: Ints) -> bool:
        """Whether enough is known, given late prompts and arrived prompts per tenth of the stream, each [tenths]."""
        missing, known, some = int(late.sum()), int(there.sum()), there > 0
        if missing > self.most_late[0] or not self._telling(missing, known):
            return missing > self.most_late[0]
        shares = late[some] / there[some]
        return missing - self._share * known > known * _half_of(shares, self.level or 0.0)

    @property
    def _share(self) -> float:
        """Share of requests that may be late."""
        return 1 - self.limits.percentile / 100

    def _telling(self, late: int, known: int) -> bool:
        """Whether ``late`` of ``known`` requests are enough to judge the stream by its played part."""
        part = _LEAST_PART * (self.counting.stop - self.counting.start)
        return self.level is not None and known >= part and late > self._share * known


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """A stream played at one rate."""

    rate_per_second: float
    outcome: Outcome  # latencies of the requests that count; empty where the play ended early
    excesses: tuple[float, float]  # TTFT and TPOT at the percentile over their limits
    limits: Limits
    ended: bool = False  # whether the play ended early because a limit is missed: excesses are then lower bounds
    whole: bool = False
    """Whether the stream is the whole population, as a trace is: its percentiles have no sampling error."""

    @property
    def excess(self) -> float:
        """Latency at the percentile over its limit, the larger of TTFT and TPOT."""
        return max(self.excesses)

    @property
    def ttft(self) -> Latency:
        """Mean and percentiles of TTFT."""
        return Latency.from_samples(self.outcome.ttft_seconds)

    def ttft_interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the confidence interval of TTFT at the percentile."""
        seconds, percentile = self.outcome.ttft_seconds, self.limits.percentile
        if self.whole:
            value = at_percentile(seconds, percentile)
            return value, value
        return percentile_interval(seconds, percentile, level)

    @property
    def half_width(self) -> float:
        """Half the confidence interval of a percentile over its value, the larger of TTFT and TPOT."""
        both = () if self.whole else (self.outcome.ttft_seconds, self.outcome.tpot_seconds)
        ends = [percentile_interval(seconds, self.limits.percentile) for seconds in both if seconds.size]
        return max(((high - low) / (high + low) for low, high in ends if high), default=0.0)

    def surely_late(self, level: float) -> bool:
        """Whether the whole confidence interval of a percentile lies beyond its limit."""
        return self.ended or (self.excess > 1 and self.interval(level)[0] > 1)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the confidence interval of the excess."""
        low, high = zip(*self.intervals(level), strict=True)
        return max(low), max(high)

    def intervals(self, level: float = LEVEL) -> list[tuple[float, float]]:
        """Return the confidence intervals of TTFT and TPOT at the percentile over their limits."""
        if self.whole:
            return [(each, each) for each in self.excesses]
        found = [
            (percentile_interval(own, self.limits.percentile, level), limit)
            for own, limit in self.outcome.limited(self.limits)
        ]
        return [(low / limit, high / limit) for (low, high), limit in found]


def percentile_interval(seconds: Floats, percentile: float, level: float = LEVEL) -> tuple[float, float]:
    """Return the confidence interval of a percentile of autocorrelated durations, by batch means.

    The share beyond the percentile has a standard error, estimated from its variance between long parts of the sample.
    The percentiles at the ends of that share's interval are the ends of the result.

    Args: ``seconds`` [requests], NaN where a request has none.

    Ref: A. M. Law, Simulation Modeling and Analysis, 5th ed., section 9.5.3; Student's t by Cornish and Fisher.
    """
    known = seconds[~np.isnan(seconds)]
    half = 100 * _half(known, _percentile(known, percentile), level)
    return _percentile(known, max(percentile - half, 0.0)), _percentile(known, min(percentile + half, 100.0))


def _half(known: Floats, value: float, level: float) -> float:
    """Half width of the confidence interval of the share beyond a value."""
    parts = np.array_split(known, BATCHES)
    return _half_of(np.array([np.count_nonzero(part > value) / part.size for part in parts if part.size]), level)


def _half_of(shares: Floats, level: float) -> float:
    """Half width of the confidence interval of a share, from the shares of its parts; 0 for fewer than two parts."""
    if shares.size < 2:
        return 0.0
    return student((1 + level) / 2, shares.size - 1) * float(shares.std(ddof=1)) / math.sqrt(shares.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Capacity:
    """The largest rate within the limits, with its confidence interval."""

    rate_per_second: float
    low: float
    high: float  # end of the interval at confidence ``LEVEL``; the upper bound where no limit binds below it
    trial: Trial  # the stream played at that rate


def trial(play: Play, stream: Stream, rate_per_second: float, limits: Limits, until: Until | None = None) -> Trial:
    """Play a stream of mean rate 1 at a rate."""
    outcome = play(stream.at_rate(rate_per_second), until).counted(stream.counting)
    return Trial(
        rate_per_second=rate_per_second,
        outcome=replace(_NOTHING, needs=outcome.needs) if outcome.ended else outcome,
        excesses=outcome.excesses(limits),
        limits=limits,
        ended=outcome.ended,
        whole=stream.whole,
    )


def at_percentile(seconds: Floats, percentile: float) -> float:
    """Return a percentile of the values that are not NaN; 0 where there is none."""
    return _percentile(seconds[~np.isnan(seconds)], percentile)


def _percentile(known: Floats, percentile: float) -> float:
    """Return ``np.percentile`` of numbers, in a third of its time where they are few; 0 of an empty array."""
    if not known.size:
        return 0.0
    place, part = divmod((known.size - 1) * (percentile / 100), 1)
    ends = int(place), min(int(place) + 1, known.size - 1)
    ordered = np.partition(known, ends)
    low, high = float(ordered[ends[0]]), float(ordered[ends[1]])
    return low if low == high else low + (high - low) * part


def capacity(
    tried: Callable[[float], Trial],
    upper: float,
    about: float | None = None,
    known: Sequence[Trial] = (),
) -> Capacity | None:
    """Return the largest rate up to ``upper`` at which a stream keeps the limits; None where none does.

    The interval of the rate follows from those of TTFT and TPOT over their limits and the slope of each over the rate:
    where TPOT binds, which hardly rises, a queue that is not known well takes little of the rate.

    Args:
        tried: plays the stream at a rate.
        upper: upper bound on the rate: saturation, or the rate that is asked for.
        about: first guess of the rate.
        known: earlier trials of the same stream.
    """
    trials = {each.rate_per_second: each for each in known}
    kept = max((rate for rate, each in trials.items() if each.excess <= 1 and rate <= upper), default=0.0)

    def excess(rate: float) -> float:
        if rate not in trials:
            trials[rate] = tried(rate)
        return trials[rate].excess

    about = max(kept, about or 0.0) or None
    rate = largest_rate(excess, 1.0, upper, about, kept)
    if rate is None:
        return None
    found, slopes = trials[rate], (_slope(trials, rate, of) for of in (0, 1))
    most = max(found.excess, _TINY)
    moved = [
        ((max(above, most) / most) ** (-1 / slope), (max(below, _TINY) / most) ** (-1 / slope))
        for (below, above), slope in zip(found.intervals(), slopes, strict=True)
    ]
    low, high = (rate * min(each) for each in zip(*moved, strict=True))
    # Where no limit binds below ``upper`` and the whole interval keeps the limit, the rate is ``upper`` for certain.
    low = rate if rate == upper and found.interval()[1] <= 1 else low
    return Capacity(rate_per_second=rate, low=low, high=min(high, upper), trial=found)


def _slope(trials: dict[float, Trial], rate: float, of: int) -> float:
    """Elasticity of a latency in the rate: the least from the answer to a higher rate, else that from the one below.

    Excess is convex in the rate, so the nearest should have least. But a tail of few requests may rise by 7 % from one
    rate of the grid to the next and fall again, and a steep slope would make the interval of the rate too narrow.
    """
    found = trials[rate].excesses[of]
    others = {other: each.excesses[of] for other, each in trials.items() if 0 < each.excesses[of] < math.inf}
    above = [other for other in others if other > rate * (1 + _ROUNDING * STEP)]
    below = max((other for other in others if other < rate * (1 - _ROUNDING * STEP)), default=None)
    if found <= 0 or not (above or below):
        return 1.0
    slopes = [math.log(others[other] / found) / math.log(other / rate) for other in above or [below or rate]]
    return max(min(slopes), 1.0)


def largest_rate(
    seconds: Callable[[float], float],
    limit_seconds: float,
    upper: float,
    about: float | None = None,
    known: float = 0.0,
) -> float | None:
    """Return the largest rate up to ``upper`` whose ``seconds``, rising in the rate, keep the limit; None: none does.

    The answer is ``upper`` or a rate on the grid (``on_grid``). Where seconds do rise, it does not depend on where the
    search begins, so a looser limit never has a smaller answer. The search tries ``about`` (else ``upper``), brackets
    the answer between a rate that keeps the limit, such as ``known``, and one that misses it, and closes the bracket:
    about 6 calls. The answer was tried and keeps the limit. Rates below ``LEAST_PART`` of ``upper`` count as none.
    """
    least, full, aim = on_grid(upper * LEAST_PART), _BEYOND * upper, _AIM * limit_seconds
    kept = (below, value) if known and (value := seconds(below := on_grid(known))) <= limit_seconds else None
    missed: tuple[float, float] | None = None
    rate, step = upper if about is None or about >= upper else max(on_grid(about), least), _WIDEN
    while kept is None or missed is None:
        value = seconds(rate)
        if value <= limit_seconds:
            if rate >= upper:
                return rate
            kept = rate, value
            further = max(full - (full - rate) * value / aim, (1 + step) * rate)
            rate = upper if further >= upper else on_grid(further)
        else:
            if rate <= least:
                return None
            further = _further_down(missed or (full, math.inf), (rate, value), limit_seconds)
            if missed is None and about is not None:
                steep = min((value / limit_seconds) ** -_STEEP, 1 - 3 * _WIDEN)
                further = max(further, rate * max(steep, _FALL))
            missed = rate, value
            rate = max(on_grid(further) if about is not None or rate < upper else least, least)
        step *= _WIDER
    return _between(seconds, limit_seconds, kept, missed)


def on_grid(rate: float, steps: int = 0) -> float:
    """Return the largest rate on the grid up to a rate, or the rate so many steps above it; the grid's ratio is e^STEP.

    >>> on_grid(1.0), on_grid(1.0, 1) == on_grid(1.001), on_grid(on_grid(7.7)) == on_grid(7.7)
    (1.0, True, True)
    """
    return math.exp(STEP * (math.floor(math.log(rate) / STEP + _ROUNDING) + steps)) if rate > 0 else 0.0


def on_grid_above(rate: float) -> float:
    """Return the smallest rate on the grid that is not below a rate, but for rounding.

    >>> on_grid_above(on_grid(7.7)) == on_grid(7.7), on_grid_above(7.7) == on_grid(7.7, 1)
    (True, True)
    """
    below = on_grid(rate)
    return below if below >= rate * (1 - _ROUNDING * STEP) else on_grid(rate, 1)


def _further_down(last: tuple[float, float], now: tuple[float, float], limit_seconds: float) -> float:
    """Extrapolate 1/seconds linearly from two rates that miss the limit to the limit; return a rate below both."""
    (above, later), (rate, late) = last, now
    slope = (1 / late - 1 / later) / (above - rate)
    return min(rate - (1 / (_AIM * limit_seconds) - 1 / late) / slope, (1 - _WIDEN) * rate) if slope > 0 else 0.0


def _between(
    seconds: Callable[[float], float], limit_seconds: float, kept: tuple[float, float], missed: tuple[float, float]
) -> float:
    """Close a bracket, given a rate that keeps the limit and one that misses it, each with its seconds.

    Latency rises by orders of magnitude within a few per cent of the rate, and its logarithm about linearly. So the
    logarithm is interpolated (false position, at least 5 % off both ends; an end that stays twice is weighted less, as
    Anderson and Bjorck do). After ``_SLOW`` rates that fail to halve the bracket, as where latency jumps, bisection
    finishes.

    Ref: N. Anderson, A. Bjorck, A new high order method of regula falsi type, BIT 13:253, 1973.
    """

    def over(found: float) -> float:
        return math.log(min(max(found / limit_seconds, _TINY), _OVERLOAD)) if math.isfinite(found) else math.inf

    (low, value), (high, late) = kept, missed
    below, above, moved, slow = -over(value), over(late), "", 0
    while (least := on_grid(low, 1)) <= (most := on_grid(high * (1 - 3 * _ROUNDING * STEP))):
        width = high - low
        part = below / (below + above) if slow < _SLOW and math.isfinite(above) else 0.5
        rate = min(max(on_grid(low + min(max(part, 0.05), 0.95) * width), least), most)
        found = over(seconds(rate))
        if found <= 0:
            above *= _nearer(-found, below) if moved == "low" else 1.0
            low, below, moved = rate, -found, "low"
        else:
            below *= _nearer(found, above) if moved == "high" else 1.0
            high, above, moved = rate, found, "high"
        slow = slow + 1 if high - low > width / 2 else slow * (slow >= _SLOW)
    return low


def _nearer(now: float, before: float) -> float:
    """Weight of an end that stayed twice, given the distance of the other end from the limit now and before."""
    return 1 - now / before if 0 < now < before else 0.5
