"""Aggregated instances, played: latencies at a rate, and the largest rate within the limits."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from ground.identity import Kept, Same
from planner.costs.latency import balanced_cost
from planner.costs.memory import granted_tokens, kv_capacity_tokens
from planner.instances.candidates import AggregatedCandidate, Count
from planner.loops.arrays import TableArrays
from planner.manifest.drafts import tokens_per_iteration
from planner.question import Question
from planner.serving.aggregated import AggregatedPool, play_aggregated
from planner.serving.capacity import Capacity, Limits, Outcome, Trial, Until
from planner.serving.latency import Latency
from planner.serving.played import FEW, MANY, Player
from planner.serving.rules import engine_rule
from planner.serving.streams import Stream
from planner.serving.tables import aggregated_times
from planner.workload import Workload

Alike = dict[Hashable, list[Trial]]
"""Trials of instances that differ only in token budget, batch slots and memory, by rate and stream."""
_LIKELY = 0.8  # share of saturation at which the search for a capacity begins
_REQUESTS, _REFILLS, _LONGEST = 40_000, 3, 400_000
"""Requests of a long stream, half as many through pipeline stages, where each takes four times as long to play; times
that a stream must fill an instance, which begins empty; most requests for that.
"""


class AggregatedState(NamedTuple):
    """Latencies and load of an aggregated instance at one arrival rate, over the played requests."""

    rate_per_second: float
    ttft: Latency  # from arrival to the first token
    tpot: Latency
    e2e: Latency  # from arrival to the last token
    mean_requests: float  # mean number of requests in decode, over time
    mean_step_seconds: float  # mean step time, weighted by the requests in decode
    prompt_steps: float  # share of steps that compute prompts
    utilisation: float  # rate over the saturation rate

    def scaled(self, times: float) -> "AggregatedState":
        """Return the instance on a clock that runs slower by a factor."""
        return self._replace(
            rate_per_second=self.rate_per_second / times,
            ttft=self.ttft.scaled(times),
            tpot=self.tpot.scaled(times),
            e2e=self.e2e.scaled(times),
            mean_step_seconds=self.mean_step_seconds * times,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PlayedAggregated(Player):
    """One of several aggregated instances that requests are dealt to in turn."""

    pool: AggregatedPool
    most_open: int  # most open requests of one instance
    alike: Alike = field(default_factory=dict, repr=False)
    count: Count = field(default_factory=Count)
    _states: dict[tuple[float, int, int], AggregatedState] = field(default_factory=dict, repr=False)

    def _shared(self, alike: Hashable, make: Callable[[], Trial]) -> Trial:
        """Return the trial of an instance whose limits mattered no more than they would here; else make one."""
        known = self.alike.setdefault(alike, [])
        found = next((each for each in known if each.outcome.needs and each.outcome.needs.met_by(self.pool)), None)
        if found is None:
            found = make()
            known.append(found)
        return found

    def stream(self, requests: int, instances: int = 1) -> Stream:
        """Return a stream of mean rate 1, as one of ``instances`` gets it, long enough for an instance to fill."""
        refills = _REFILLS if requests == FEW else 2 * _REFILLS
        longest = _REQUESTS if self.pool.times.layers.size == 1 else _REQUESTS // 2
        requests = min(requests, longest) * max(requests // MANY, 1)
        while requests < min(refills * self.most_open, _LONGEST):
            requests *= 2
        return super().stream(requests, instances)

    @cached_property
    def saturation_per_second(self) -> float:
        """Saturation: requests per second that leave a stream whose requests all arrive at 0.

        The stream fills the instance several times, with as many as are open without limits. A long stream that fills
        its batch slots several times suffices: what else is open was preempted.
        """
        stream, filled = super().stream(FEW), 2 * _REFILLS * self.pool.ranks * self.pool.slots
        longest = min(max(filled, _REQUESTS), _LONGEST)
        while True:
            played = play_aggregated(self.pool, replace(stream, arrival_seconds=np.zeros(len(stream))))
            self.count.turns += played.turns
            left, count = np.sort(played.left_seconds), len(stream)
            first, last = _pauses(left)
            open_ = np.sum(played.first_token_seconds <= left[first]) - np.sum(left < left[first])
            if 2 * _REFILLS * open_ <= count or count >= longest:
                break
            stream = super().stream(2 * count)  # with prompts first, open requests leave together
        span = left[last] - left[first]
        return float((last - first) / span if span > 0 else count / left[-1])

    def state(self, rate_per_second: float, instances: int = 1, requests: int | None = MANY) -> AggregatedState | None:
        """Return the state of one of ``instances`` at its rate; None beyond saturation."""
        if not 0 < rate_per_second <= self.saturation_per_second * (1 + 1e-9):
            return None
        key = self._key(rate_per_second, instances, requests)
        if key not in self._states:
            stream = self.plays(key[2], instances)[1]
            outcome = self.trial(rate_per_second, instances, requests).outcome
            self._states[key] = self.state_of(rate_per_second, outcome, stream.answer_tokens[stream.counting] - 1)
        return self._states[key]

    def state_of(self, rate_per_second: float, outcome: Outcome, later: Ints) -> AggregatedState:
        """Return the state of an instance, given latencies and the tokens after the first, ``later`` [requests]."""
        span = np.where(later > 0, outcome.tpot_seconds * later, 0.0)
        return AggregatedState(
            rate_per_second=rate_per_second,
            ttft=Latency.from_samples(outcome.ttft_seconds),
            tpot=Latency.from_samples(outcome.tpot_seconds),
            e2e=Latency.from_samples(outcome.ttft_seconds + span),
            mean_requests=rate_per_second * float(span.mean()),
            mean_step_seconds=float(span.sum() / max(later.sum(), 1))
            * tokens_per_iteration(self.pool.queries - 1, self.pool.acceptance),
            prompt_steps=outcome.prompt_steps,
            utilisation=rate_per_second / self.saturation_per_second,
        )


def _pauses(left_seconds: Floats) -> tuple[int, int]:
    """Return the requests after which nobody leaves for long: the first from 20 % of them on, the last up to 80 %.

    Requests of a batch leave together. Between two pauses there are whole batches, so their rate has no odd part.
    """
    marks = [len(left_seconds) * part // 10 for part in (2, 5, 8)]
    gaps = [np.diff(left_seconds[low : high + 1]) for low, high in pairwise(marks)]
    first, last = (np.flatnonzero(gap >= gap.max() / 2) for gap in gaps)
    return marks[0] + int(first[0]), marks[1] + int(last[-1])


def aggregated_outcome(
    pool: AggregatedPool, stream: Stream, until: Until | None = None, count: Count | None = None
) -> Outcome:
    """Return the latencies of a stream's requests, played until enough is known; the play is added to a ``count``."""
    enough = (lambda first, left: until(_outcome(first, left, stream))) if until else None
    played = play_aggregated(pool, stream, enough)
    if count is not None:
        count.turns += played.turns
    found = _outcome(played.first_token_seconds, played.left_seconds, stream)
    prompts = played.prompt_steps / max(played.steps, 1)
    return replace(found, ended=played.ended, prompt_steps=prompts, needs=played.needs)


def _outcome(first_seconds: Floats, left_seconds: Floats, stream: Stream) -> Outcome:
    come = first_seconds.size  # all of the stream, or its beginning
    # Seconds per token after the first, [requests]; NaN for an answer of one token
    span = left_seconds - first_seconds
    later = stream.answer_tokens[:come] - 1
    found: Floats = np.divide(span, later, out=np.full(span.shape, np.nan), where=later > 0)
    return Outcome(
        ttft_seconds=first_seconds - stream.arrival_seconds[:come],
        tpot_seconds=found,
    )


def player_of(
    pool: AggregatedPool,
    workload: Workload,
    limits: Limits,
    context_tokens: int,
    most_open: int | None = None,
    count: Count | None = None,
    alike: Alike | None = None,
) -> PlayedAggregated:
    """Return the player of one of several instances.

    Args: ``context_tokens``: context length of the model, at which requests end; ``most_open``: most open requests
        within the limits, where fewer than the slots; ``count``: plays are added to it; ``alike``: trials
        that are shared.
    """
    count = count or Count()
    pool, most = replace(pool, instances=1), pool.ranks * pool.slots
    return PlayedAggregated(
        play=partial(aggregated_outcome, pool, count=count),
        together=lambda instances: partial(aggregated_outcome, replace(pool, instances=instances), count=count),
        workload=workload,
        limits=limits,
        most_tokens=context_tokens,
        pool=pool,
        most_times=4,
        most_open=min(most_open or most, most),
        alike={} if alike is None else alike,
        count=count,
    )


_PLANNED = Kept[PlayedAggregated](most=16)
"""Players of planned instances by all that decides their results, so that who asks a plan again plays nothing twice."""


@dataclass(frozen=True)
class AggregatedServer:
    """An aggregated instance with its token budget; satisfies ``offers.offer.Server``."""

    question: Question
    candidate: AggregatedCandidate
    like: "AggregatedServer | None" = None  # an equal instance with another budget, whose step table is shared
    count: Count | None = None  # plays are added to it

    independent = False  # arrivals dealt in turn are more even the more instances there are

    @cached_property
    def times(self) -> TableArrays:
        """Step times: one table for all slots and all token budgets up to the largest listed."""
        if self.like:
            return self.like.times
        question, candidate = self.question, self.candidate
        cost, context = balanced_cost(candidate.deployment, question.balance), question.model.max_position
        return aggregated_times(cost, question.workload, candidate.batched_tokens, context, candidate.microbatches)

    @cached_property
    def alike(self) -> Alike:
        """Trials of all these instances."""
        return self.like.alike if self.like else {}

    @cached_property
    def pool(self) -> AggregatedPool:
        """One instance in the form that is played."""
        question, candidate, deployment = self.question, self.candidate, self.candidate.deployment
        return AggregatedPool(
            times=self.times,
            ranks=int(deployment.strategy.attention_groups),
            budget_tokens=candidate.batched_tokens,
            slots=candidate.batch,
            capacity_tokens=float(kv_capacity_tokens(deployment, candidate.memory(question.workload))),
            charged=partial(granted_tokens, deployment),
            rule=engine_rule(question.engine),
            queries=1 + int(deployment.drafts),
            acceptance=question.acceptance,
        )

    @cached_property
    def player(self) -> PlayedAggregated:
        """The player of one of several such instances; a search makes its own, so that it counts what it plays."""
        return self._made() if self.count else _PLANNED.of(self._decisive, self._made)

    def _made(self) -> PlayedAggregated:
        question = self.question
        limits, context = Limits.of(question), question.model.max_position
        most_open = self.candidate.most_open
        return player_of(self.pool, question.workload, limits, context, most_open, self.count, self.alike)

    @property
    def _decisive(self) -> tuple[object, ...]:
        """What decides the results of the player."""
        question = self.question
        objects = self.candidate, question.model, question.workload, question.balance
        return (*map(Same, objects), Limits.of(question), question.acceptance, question.engine)

    def planned(self) -> None:
        """Keep the player for those who ask about a plan of such instances."""
        self.alike.clear()
        _PLANNED.of(self._decisive, lambda: self.player)

    @property
    def most_per_second(self) -> float:
        """Largest rate at which one instance may be planned, by the utilisation limit."""
        return self.question.most_utilisation * self.player.saturation_per_second

    @cached_property
    def _capacities(self) -> dict[tuple[int, int], Capacity | None]:
        """Capacities found so far, by instances and requests."""
        return {}

    def capacity(self, instances: int, requests: int = MANY) -> Capacity | None:
        """Return the largest rate of one of ``instances`` within both limits; None where there is none."""
        key = instances, requests
        if key not in self._capacities:
            few, most = self.capacity(instances, FEW) if requests > FEW else None, self.most_per_second
            about = _LIKELY * most if few is None else few.rate_per_second
            self._capacities[key] = self.player.capacity(most, instances, about, requests)
        return self._capacities[key]

    def pool_capacity(self, instances: int, requests: int = MANY) -> float:
        """Largest rate of a pool of so many instances within both limits; 0 where there is none."""
        found = self.capacity(instances, requests)
        return found.rate_per_second * instances if found is not None else 0.0

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether a pool of so many instances carries a rate within both limits."""
        each = rate_per_second / instances
        return self.player.keeps(each, instances) and each <= self.most_per_second * (1 + 1e-9)

    def pool_reaches(self, instances: int, rate_per_second: float) -> bool:
        """Whether ``pool_capacity`` is at least a rate that few requests do not show to be late."""
        return self.player.reaches(rate_per_second / instances, instances, lambda: self.most_per_second)

    def state(self, rate_per_second: float, instances: int = 1, requests: int | None = MANY) -> AggregatedState | None:
        """State of one of ``instances`` that requests are dealt to in turn, at its rate; None beyond saturation."""
        return self.player.state(rate_per_second, instances, requests)
