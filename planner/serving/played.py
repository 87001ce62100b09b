"""One of several instances that requests are dealt to in turn, played on samples of its traffic.

A candidate is played on few requests first. A short stream waits less than a long one, so a candidate whose whole
interval is late on few requests counts as late. The others are played on many requests, whose percentiles are reported.
A play that only asks whether limits are kept ends once the answer is certain (few requests) or sure (many).
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from ground.identity import Kept, Same
from planner.serving.capacity import (
    BATCHES,
    Capacity,
    Limits,
    Outcome,
    Play,
    Trial,
    Until,
    capacity,
    on_grid_above,
    trial,
)
from planner.serving.prefill import Look, PrefillPool, play_prefill
from planner.serving.streams import Stream, stationary, traced
from planner.workload import Workload

FEW, MANY = 2_500, 60_000
"""Requests of a stream: few to prune candidates, many to compare them and, mostly, to report latencies.

At half to 0.9 of saturation and CV up to 1 the means over many are within 1 % of those of endless streams on average.
"""
_CLOSE = 0.08
"""Part of a percentile up to which its interval may reach on each side, before a plan is told over more than many."""
_RELAXATIONS = 100
"""Relaxation times that such a stream spans: the mean wait over n of them has a standard error of 1/sqrt(n) in M/M/1
(W. Whitt, Planning queueing simulations, Management Science 35:1341, 1989)."""
_STEPS = 25  # full steps that the shortest stream fills
SURE = 0.99  # confidence at which a candidate that is late on few requests counts as late
EVENLY = 1_000_000
"""A number of instances at which arrivals dealt in turn are evenly spaced: fewer instances never wait less."""


class Played(NamedTuple):
    """Sample behind a plan's latencies, and the confidence intervals that it leaves."""

    requests: int  # requests over which percentiles are taken
    ttft_seconds: tuple[float, float]  # interval of TTFT at the question's percentile
    requests_per_second: tuple[float, float]
    """Interval of the rate that the plan carries, as far as the played pool bounds it."""
    excess: float = 0.0  # latency at the percentile over its limit, the larger of TTFT and TPOT
    asked_requests: int = MANY  # requests for which the stream was asked, see ``Player.trial``


def told_closely(tried: Callable[[int], Trial], times: int, most_times: int) -> int:
    """Return the requests, a number of times ``MANY`` up to the most, over which a trial has close percentiles.

    Args: ``tried``: plays so many requests; ``times``: the fewest times.
    """
    while times < most_times and (wide := tried(times * MANY).half_width / _CLOSE) > 1:
        times = min(times << math.ceil(2 * math.log2(wide)), most_times)
    return times * MANY


@dataclass(frozen=True, kw_only=True, eq=False)
class Player:
    """Plays an instance at given rates, all on the same streams with their gaps scaled. Results are kept."""

    play: Play  # plays one instance
    together: Callable[[int], Play]  # plays so many instances, which are dealt requests in turn
    workload: Workload
    limits: Limits
    most_tokens: float  # context length of the model
    at_once: int = 1  # requests of a full step
    most_times: int = 8
    """Most times many that a stream is long, a power of two: a play of so many takes a twentieth of a search."""
    _trials: dict[tuple[float, int, int], Trial] = field(default_factory=dict, repr=False)
    _ended: dict[tuple[float, int, int], Trial] = field(default_factory=dict, repr=False)  # trials that ended early
    _lasting: dict[tuple[float, int, int], int] = field(default_factory=dict, repr=False)
    _late: dict[tuple[int, int], Trial] = field(default_factory=dict, repr=False)
    """By instances and requests: the trial at the smallest rate known to miss a limit; every higher rate misses it."""
    _capacities: dict[int, Capacity] = field(default_factory=dict, repr=False)
    _found: dict[tuple[float, int, float | None, int], Capacity | None] = field(default_factory=dict, repr=False)

    def stream(self, requests: int, instances: int = 1) -> Stream:
        """Return a stream of mean rate 1, of at least so many requests, as one of ``instances`` gets it."""
        while requests < _STEPS * self.at_once:
            requests *= 2
        return stationary(self.workload, requests, every=instances, most_tokens=self.most_tokens)

    @property
    def saturation_per_second(self) -> float:
        """Requests per second that the instance serves at most."""
        raise NotImplementedError

    def lasting(self, rate_per_second: float, instances: int = 1) -> int:
        """Return the requests of a stream that tells percentiles of one of ``instances`` at a rate closely.

        Near saturation a queue forgets its past within 2 (Ca^2 + Cs^2) / (1 - rho)^2 gaps between arrivals (relaxation
        time of the diffusion; L. Kleinrock, Queueing Systems, vol. 2, section 2.9), and over few of them waits and
        intervals are too short. Where answers hold their places for minutes, an interval tells more: it is as wide as
        requests are late in a row, and narrows with the square root of the stream's length.
        """
        key = self._key(rate_per_second, instances, MANY)
        if key not in self._lasting:
            idle, workload, times = 1 - rate_per_second / self.saturation_per_second, self.workload, 1
            lengths = max(workload.input_tokens.squared_cv, workload.output_tokens.squared_cv)
            slow = 2 * _RELAXATIONS * (workload.arrival_squared_cv / instances + lengths)
            while times < self.most_times and times * MANY * max(idle, 0.0) ** 2 < slow:
                times *= 2
            tried = partial(self.trial, rate_per_second, instances)
            self._lasting[key] = told_closely(tried, times, self.most_times)
        return self._lasting[key]

    def plays(self, requests: int, instances: int = 1) -> tuple[Play, Stream]:
        """Return the play of one of ``instances`` and its stream; a trace is played whole, dealt to all instances."""
        trace = self.workload.trace
        if trace is None:
            return self.play, self.stream(requests, instances)
        instances = min(instances, np.size(trace.arrival_seconds))
        return self.together(instances), traced(trace, instances)

    def trial(self, rate_per_second: float, instances: int = 1, requests: int | None = MANY) -> Trial:
        """Play one of ``instances`` at its rate; None: over as many requests as ``lasting`` tells."""
        key = self._key(rate_per_second, instances, requests)
        if key not in self._trials:
            self._trials[key] = self._tried(rate_per_second, instances, key[2])
        return self._trials[key]

    def _tried(
        self, rate_per_second: float, instances: int, requests: int, until: Callable[..., Until] | None = None
    ) -> Trial:
        """Play a rate, to the end or until enough is known."""
        play, stream = self.plays(requests, instances)
        enough = until and until(stream, self.limits, SURE)
        alike = rate_per_second, instances, len(stream), until
        return self._shared(alike, lambda: trial(play, stream, rate_per_second, self.limits, enough))

    def _shared(self, alike: Hashable, make: Callable[[], Trial]) -> Trial:
        """Return a trial, made now unless another player's goes as this one's would; ``alike``: rate and stream."""
        return make()

    def _key(self, rate_per_second: float, instances: int, requests: int | None) -> tuple[float, int, int]:
        """Return the key of a trial: rates that differ by rounding are equal, and a trace is always played whole."""
        rate = float(f"{rate_per_second:.12g}")
        if self.workload.trace is not None:
            return rate, instances, MANY
        return rate, instances, requests or self.lasting(rate, instances)

    def verdict(self, rate_per_second: float, instances: int = 1, requests: int = FEW) -> Trial:
        """Play one of ``instances`` at its rate, ending early once a limit is certainly missed."""
        key = self._key(rate_per_second, instances, requests)
        found = self._trials.get(key) or self._ended.get(key)
        late = self._late.get(key[1:])
        if found is None and late is not None and late.rate_per_second <= rate_per_second:
            return late  # a higher rate is the same stream with shorter gaps
        if found is None:
            found = self._tried(rate_per_second, instances, requests, Until.sure if key[2] == MANY else Until.certain)
            (self._ended if found.ended else self._trials)[key] = found
        return found

    def surely_late(self, rate_per_second: float, instances: int = 1) -> bool:
        """Whether few requests show, with confidence ``SURE``, that one of ``instances`` misses a limit."""
        found = self.verdict(rate_per_second, instances)
        return self._noted(found, instances, FEW, late=found.surely_late(SURE))

    def _noted(self, found: Trial, instances: int, requests: int, *, late: bool) -> bool:
        """Keep a late trial if its rate is the smallest late one so far; return ``late``."""
        _, *alike = self._key(found.rate_per_second, instances, requests)
        known = self._late.get((alike[0], alike[1]))
        if late and (known is None or found.rate_per_second < known.rate_per_second):
            self._late[alike[0], alike[1]] = found
        return late

    def keeps(self, rate_per_second: float, instances: int = 1, *, few: bool = True) -> bool:
        """Whether one of ``instances`` keeps the limits at its rate.

        Args: ``few``: whether few requests are played first; needless where they were, at about that rate.
        """
        if few and self.surely_late(rate_per_second, instances):
            return False
        found = self.verdict(rate_per_second, instances, MANY)
        return not self._noted(found, instances, MANY, late=found.ended or found.excess > 1)

    def reaches(self, rate_per_second: float, instances: int, most: Callable[[], float]) -> bool:
        """Whether the capacity of one of ``instances`` is at least a rate that few requests do not show to be late.

        Args: ``most`` returns the largest rate that is planned with; a capacity is that or a rate on the grid.
        """
        above = on_grid_above(rate_per_second)
        if self.keeps(above, instances, few=False):
            return rate_per_second <= most() * (1 + 1e-9)
        if self.verdict(above, instances, MANY).ended or not rate_per_second <= most() < above:
            return False
        return self.keeps(most(), instances, few=False)

    def told(
        self,
        rate_per_second: float,
        instances: int,
        carried: tuple[float, float],
        requests: int | None = MANY,
    ) -> Played:
        """Return sample and intervals for ``instances``, given the rate of one.

        Args: ``carried``: the rate that one of them carries, and the most that all may carry.
        """
        found, (each, most_per_second) = self.trial(rate_per_second, instances, requests), carried
        same = (one for one in self._capacities.values() if math.isclose(one.rate_per_second, each))
        ends = next(((one.low, one.high) for one in same), (each, each))  # of spares it is known for those that remain
        low, high = (min(end * instances, most_per_second) for end in ends)
        high = max(high, rate_per_second * instances)
        return Played(
            requests=found.outcome.ttft_seconds.size,
            ttft_seconds=found.ttft_interval(),
            requests_per_second=(low, high),
            excess=found.excess,
            asked_requests=requests or self.lasting(rate_per_second, instances),
        )

    def capacity(
        self, upper: float, instances: int = 1, about: float | None = None, requests: int = MANY
    ) -> Capacity | None:
        """Return the largest rate up to ``upper`` of one of ``instances``; None where none keeps the limits."""
        key = (upper, instances, about, requests)
        if key not in self._found:
            _, *alike = self._key(upper, instances, requests)
            known = [each for (_, *same), each in self._trials.items() if same == alike]
            tried = partial(self._tried, instances=instances, requests=requests)
            self._found[key] = capacity(tried, upper, about, known)
        found = self._found[key]
        if found is not None:
            self._trials[self._key(found.rate_per_second, instances, requests)] = found.trial
            if requests == MANY:
                self._capacities[instances] = found
        return found


_PLAYERS = Kept["PlayedPrefill"](most=4096)
"""Players by all that decides their results, so that equal instances of another question are not played again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlayedPrefill(Player):
    """The player of a prefill instance, or of a whole prefill pool under its routing policy."""

    pool: PrefillPool

    @classmethod
    def of(cls, pool: PrefillPool, workload: Workload, limits: Limits, most_tokens: float) -> "PlayedPrefill":
        """Return the player of a pool; pools with equal pass times share one."""
        key = (
            (pool.times.content, pool.ranks, pool.budget_tokens, pool.instances, pool.policy, pool.beside),
            (Same(workload), limits, most_tokens),
        )
        return _PLAYERS.of(key, lambda: cls._new(pool, workload, limits, most_tokens))

    @classmethod
    def _new(cls, pool: PrefillPool, workload: Workload, limits: Limits, most_tokens: float) -> "PlayedPrefill":
        prompts = pool.ranks * pool.budget_tokens / workload.input_tokens.mean
        return cls(
            play=partial(prefill_outcome, pool),
            together=lambda instances: partial(prefill_outcome, replace(pool, instances=instances * pool.instances)),
            workload=workload,
            limits=limits,
            most_tokens=most_tokens,
            at_once=pool.instances * max(int(prompts), 1),
            pool=pool,
        )

    @cached_property
    def saturation_per_second(self) -> float:
        """Prompts per second of a stream whose prompts all arrive at 0."""
        stream = self.stream(FEW)
        found = play_prefill(replace(self.pool, beside=None), replace(stream, arrival_seconds=np.zeros(len(stream))))
        return self.pool.instances * len(stream) / found.busy_seconds


def prefill_outcome(pool: PrefillPool, stream: Stream, until: Until | None = None) -> Outcome:
    """Return the TTFT of a stream's requests, played until enough is known; prefill has no TPOT."""
    look = None
    if until is not None and until.limits.ttft_seconds is not None:
        look = Look(until.limits.ttft_seconds, until.counting, BATCHES, until.late_prompts)
    played = play_prefill(pool, stream, look)
    ttft = played.first_token_seconds - stream.arrival_seconds
    return Outcome(ttft_seconds=ttft, tpot_seconds=np.zeros(0), ended=played.ended)
