"""An aggregated instance as columns see it: what it carries within both limits."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from planner.costs.deployment import Deployment
from planner.costs.latency import balanced_cost, tokens_per_iteration
from planner.manifest.stacks import stacked
from planner.mixed.queue import MixedQueue, MixedState
from planner.mixed.steps import Aggregate
from planner.question import Question
from planner.queues.prefill_queue import thinned_squared_cv
from planner.serving.capacity import largest_rate

MOST_UTILISATION = 0.9
"""Of ``most_per_second``: nearer to it a few per cent more arrivals lengthen steps and fill places faster than the
queue tells. Against the runtime the mean TPOT of four plans is within 5 % up to here and of one 9 % high; qwen3-8b on
an H100, 512 + 128 tokens, is 5 % low at 0.95 (docs/queueing.md).
"""
_FAR = 1.1
_TIMELY, _LATE = 0.8, 1.1
"""Guessed TTFT over its limit below which it is in time on one rank, and above which it is late; on several the guess
is short by more, at p99 by up to a seventh on one, a quarter, a third and four ninths on two, four and eight.
"""


class Candidate(Protocol):
    """What a queue has to know of an aggregated instance: ``mixed.candidates`` has such."""

    @property
    def deployment(self) -> Deployment:
        """The instance in phase ``mixed``, in numbers."""
        ...

    @property
    def batch(self) -> int:
        """Requests of one DP rank at most."""
        ...

    @property
    def batched_tokens(self) -> int:
        """Tokens of a step and DP rank."""
        ...

    @property
    def microbatches(self) -> int:
        """Most microbatches of a step."""
        ...


@dataclass(frozen=True)
class MixedServer:
    """An aggregated instance as its queue sees it; satisfies ``offers.offer.Server``."""

    question: Question
    candidate: Candidate

    @property
    def independent(self) -> bool:
        """No: arrivals that are dealt out in turn are the more even the more instances take them."""
        return False

    @cached_property
    def queue(self) -> MixedQueue:
        """The instance, tabulated once for all rates and counts of instances."""
        question, candidate = self.question, self.candidate
        deployment = candidate.deployment
        return MixedQueue(
            Aggregate(
                cost=stacked(balanced_cost(deployment, question.balance)),
                workload=question.workload,
                ranks=int(deployment.strategy.attention_groups),
                budget_tokens=float(candidate.batched_tokens),
                most_requests=int(candidate.batch),
                microbatches=candidate.microbatches,
                accepted=tokens_per_iteration(int(deployment.drafts), question.acceptance),
            )
        )

    def forget(self) -> None:
        """Give back what the queue holds; it is found again where it is asked for."""
        self.__dict__.pop("queue", None)

    def state(self, rate_per_second: float, instances: int = 1) -> MixedState | None:
        """State of one of ``instances`` that requests go to in turn, at its rate; None where it cannot keep up."""
        return self.queue.state(rate_per_second, self._squared_cv(instances))

    def _squared_cv(self, instances: int) -> float:
        """Of the gaps between the arrivals at one of so many instances."""
        return thinned_squared_cv(self.question.workload.arrival_squared_cv, instances, "round_robin")

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of so many instances within both limits and 90 % of saturation; 0 where there is none."""
        rate = largest_rate(
            lambda each: self.excess(each, instances), 1.0, MOST_UTILISATION * self.queue.most_per_second
        )
        return 0.0 if rate is None else rate * instances

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether so many instances carry a rate within both limits and 90 % of saturation."""
        return self.excess(rate_per_second / instances, instances) <= 1

    @cached_property
    def _found(self) -> dict[tuple[float, int], float]:
        """What ``excess`` told, by rate and instances."""
        return {}

    def excess(self, rate_per_second: float, instances: int = 1) -> float:
        """The larger of TTFT and TPOT at the percentile, in units of its limit; infinite past 90 % of saturation."""
        key = rate_per_second, instances
        if key not in self._found:
            self._found[key] = self._excess(rate_per_second, instances)
        return self._found[key]

    def _excess(self, rate_per_second: float, instances: int) -> float:
        if rate_per_second > MOST_UTILISATION * self.queue.most_per_second * (1 + 1e-9):
            return math.inf
        question, queue = self.question, self.queue
        if question.workload.output_tokens.mean <= 1:  # no token after the first
            state = self.state(rate_per_second, instances)
            return state.ttft.at(question.percentile) / question.ttft_seconds if state else math.inf
        near = queue.near_step_seconds(rate_per_second, self._squared_cv(instances)) / queue.aggregate.accepted
        if near > _FAR * question.tpot_seconds:  # on average: no need to know how it varies
            return near / question.tpot_seconds
        state = self.state(rate_per_second, instances)
        if state is None:
            return math.inf
        tpot = state.tpot.at(question.percentile) / question.tpot_seconds
        return tpot if tpot > 1 else max(tpot, self._late(state))

    def _late(self, state: MixedState) -> float:
        """TTFT over its limit, as guessed where that is enough to know on which side it lies."""
        limit, percentile = self.question.ttft_seconds, self.question.percentile
        if state.find_guess is not None:
            guess = state.find_guess().at(percentile) / limit
            if not _TIMELY / (1 + math.log2(self.queue.aggregate.ranks) / 4) < guess < _LATE:
                return guess
        return state.ttft.at(percentile) / limit
