"""One of several instances that requests are dealt to in turn, played on samples of their traffic.

Few requests first: a short stream waits less than a long one, so what is late on it, by more than its interval, counts
as late. What is left is played on many, whose percentiles are those that are told. A play that only asks whether limits
are kept ends as soon as that is certain, or sure of many.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

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
    at_percentile,
    capacity,
    percentile_interval,
    trial,
)
from planner.serving.prefill import Look, PrefillPool, play_prefill
from planner.serving.streams import Stream, stationary, traced
from planner.workload import Workload

FEW, MANY = 2_500, 60_000
"""Requests of a stream: few to tell candidates apart, many to tell their latencies.

At half to 0.9 of saturation and CV up to 1 the means on many are within 1 % of endless ones on average.
"""
_STEPS = 25
"""Full steps that even a short stream takes."""
SURE = 0.99
"""Who is late on few requests at that confidence counts as late."""
EVENLY = 1_000_000
"""Instances of so many get arrivals that are evenly spaced: none of fewer waits less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a plan's latencies were read off, and the interval that this leaves."""

    requests: int
    """Over which percentiles are told."""
    ttft_seconds: tuple[float, float]
    """TTFT at the question's percentile."""
    requests_per_second: tuple[float, float]
    """The rate that the plan may really carry, as far as the pool that was played bounds it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Player:
    """Plays an instance at rates of its own; every rate on the same streams, of which the gaps are scaled."""

    play: Play
    """One instance."""
    together: Callable[[int], Play]
    """So many, which are dealt requests in turn."""
    workload: Workload
    limits: Limits
    most_tokens: float
    """The model's context."""
    at_once: int = 1
    """Requests of a full step."""
    _trials: dict[tuple[float, int, int], Trial] = field(default_factory=dict, repr=False)
    _ended: dict[tuple[float, int, int], Trial] = field(default_factory=dict, repr=False)
    """Of plays that ended early."""
    _late: dict[tuple[int, int], Trial] = field(default_factory=dict, repr=False)
    """By instances and requests: at the smallest rate that is known to miss a limit, beyond which all do."""
    _capacities: dict[int, Capacity] = field(default_factory=dict, repr=False)
    _found: dict[tuple[float, int, float | None, int], Capacity | None] = field(default_factory=dict, repr=False)

    def stream(self, requests: int, instances: int = 1) -> Stream:
        """Return a stream of mean rate 1 that one of ``instances`` gets, of at least so many requests."""
        while requests < _STEPS * self.at_once:
            requests *= 2
        return stationary(self.workload, requests, every=instances, most_tokens=self.most_tokens)

    def plays(self, requests: int, instances: int = 1) -> tuple[Play, Stream]:
        """Return what plays one of ``instances`` and on what: a trace is dealt to all of them, whole."""
        trace = self.workload.trace
        if trace is None:
            return self.play, self.stream(requests, instances)
        instances = min(instances, np.size(trace.arrival_seconds))
        return self.together(instances), traced(trace, instances)

    def trial(self, rate_per_second: float, instances: int = 1, requests: int = MANY) -> Trial:
        """Play one of ``instances`` at its rate."""
        key = self._key(rate_per_second, instances, requests)
        if key not in self._trials:
            play, stream = self.plays(requests, instances)
            self._trials[key] = trial(play, stream, rate_per_second, self.limits)
        return self._trials[key]

    def _key(self, rate_per_second: float, instances: int, requests: int) -> tuple[float, int, int]:
        """Return what a trial is known by; rates that differ by rounding are one, and a trace is always whole."""
        return float(f"{rate_per_second:.12g}"), instances, requests if self.workload.trace is None else MANY

    def verdict(self, rate_per_second: float, instances: int = 1, requests: int = FEW) -> Trial:
        """Play one of ``instances`` at its rate until it is certain that limits are missed, or that few tell so."""
        key = self._key(rate_per_second, instances, requests)
        found = self._trials.get(key) or self._ended.get(key)
        late = self._late.get(key[1:])
        if found is None and late is not None and late.rate_per_second <= rate_per_second:
            return late  # the same gaps, closer together
        if found is None:
            play, stream = self.plays(requests, instances)
            until = (Until.sure if key[2] == MANY else Until.certain)(stream, self.limits, SURE)
            found = trial(play, stream, rate_per_second, self.limits, until)
            (self._ended if found.ended else self._trials)[key] = found
        return found

    def surely_late(self, rate_per_second: float, instances: int = 1, requests: int = FEW) -> bool:
        """Whether so few requests tell that one of ``instances`` misses a limit at its rate."""
        found = self.verdict(rate_per_second, instances, requests)
        return self._noted(found, instances, requests, late=found.surely_late(SURE))

    def _noted(self, found: Trial, instances: int, requests: int, *, late: bool) -> bool:
        """Keep a trial that is late at a smaller rate than those before; whether it is late."""
        _, *alike = self._key(found.rate_per_second, instances, requests)
        known = self._late.get((alike[0], alike[1]))
        if late and (known is None or found.rate_per_second < known.rate_per_second):
            self._late[alike[0], alike[1]] = found
        return late

    def keeps(self, rate_per_second: float, instances: int = 1) -> bool:
        """Whether one of ``instances`` keeps the limits at its rate."""
        if self.surely_late(rate_per_second, instances):
            return False
        found = self.verdict(rate_per_second, instances, MANY)
        return not self._noted(found, instances, MANY, late=found.ended or found.excess > 1)

    def told(self, rate_per_second: float, instances: int, most_per_second: float) -> Played:
        """Return what is known of ``instances`` at the rate of one; all of them are to carry no more than ``most``."""
        found = self.trial(rate_per_second, instances)
        low = high = rate = rate_per_second * instances
        if instances in self._capacities:
            capacity = self._capacities[instances]
            low, high = min(low, capacity.low * instances), max(high, capacity.high * instances)
        return Played(
            requests=found.outcome.ttft_seconds.size,
            ttft_seconds=self._ttft_interval(found),
            requests_per_second=(low, max(min(high, most_per_second), rate)),
        )

    def _ttft_interval(self, found: Trial) -> tuple[float, float]:
        seconds, level = found.outcome.ttft_seconds, self.limits.percentile
        if not found.whole:
            return percentile_interval(seconds, level)
        value = at_percentile(seconds, level)
        return value, value

    def capacity(
        self, upper: float, instances: int = 1, about: float | None = None, requests: int = MANY
    ) -> Capacity | None:
        """Return the largest rate up to ``upper`` of one of ``instances``; None where none keeps the limits."""
        key = (upper, instances, about, requests)
        if key not in self._found:
            _, *alike = self._key(upper, instances, requests)
            known = [each for (_, *same), each in self._trials.items() if same == alike]
            play, stream = self.plays(requests, instances)
            self._found[key] = capacity(play, stream, self.limits, upper, about, known)
        found = self._found[key]
        if found is not None:
            self._trials[self._key(found.rate_per_second, instances, requests)] = found.trial
            if requests == MANY:
                self._capacities[instances] = found
        return found


_PLAYERS = Kept["PlayedPrefill"](most=4096)
"""Players by what decides their plays: what takes as long in another engine or question is not played again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlayedPrefill(Player):
    """A prefill instance that is played, or a whole pool under the policy by which it deals."""

    pool: PrefillPool

    @classmethod
    def of(cls, pool: PrefillPool, workload: Workload, limits: Limits, most_tokens: float) -> "PlayedPrefill":
        """Return the player of a pool: the one that is in use already where another pool takes as long."""
        key = (
            (pool.times.content, pool.ranks, pool.budget_tokens, pool.instances, pool.policy),
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
        """Prompts per second where all of few wait from the start."""
        stream = self.stream(FEW)
        found = play_prefill(self.pool, replace(stream, arrival_seconds=np.zeros(len(stream))))
        return self.pool.instances * len(stream) / found.busy_seconds


def prefill_outcome(pool: PrefillPool, stream: Stream, until: Until | None = None) -> Outcome:
    """Return TTFT of a stream, played until enough is known; prefill gives no TPOT."""
    look = None
    if until is not None and until.limits.ttft_seconds is not None:
        look = Look(until.limits.ttft_seconds, until.counting, BATCHES, until.late_prompts)
    played = play_prefill(pool, stream, look)
    ttft = played.first_token_seconds - stream.arrival_seconds
    return Outcome(ttft_seconds=ttft, tpot_seconds=np.zeros(0), ended=played.ended)
