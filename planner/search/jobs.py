"""Offline jobs: requests that are all there from the start, and for whose answers nobody waits; how long they take."""

import math
from dataclasses import replace
from typing import NamedTuple

from ground.units import YEAR_SECONDS
from planner.plans.plan import Plan
from planner.question import Question
from planner.search.search import search

_SHARE = 0.25
"""Of the time, the most until a request's first token, and from there to its last."""
_ROUNDS = 5
_TAIL_DEVIATIONS = 2.33
"""Above the mean, the longest of the last answers: 99 % of a normal distribution."""


class Job(NamedTuple):
    """So many requests, and the seconds in which they must end; None where that is asked."""

    requests: int
    seconds: float | None

    @property
    def rate_per_second(self) -> float | None:
        """The rate at which all begin in time; None where none is asked."""
        return None if self.seconds is None else self.requests / self.seconds

    @property
    def limit_seconds(self) -> float:
        """What a request may take to its first token, and from there to its last, where no limit is given."""
        return _SHARE * (self.seconds or YEAR_SECONDS)

    def ending_in_time(self, question: Question) -> Question:
        """Return a question at the rate at which the job's last request ends in time; as it is where no time is given.

        The last request begins when all others have, and takes its own time: how long that is the plan tells, so the
        rate is closed in on. A request takes half of the time at most, so twice the mean rate always ends.
        """
        for _ in range(0 if self.seconds is None else _ROUNDS):
            assert self.seconds is not None, "without a time there is no round"
            best = search(question, explain=False, beside=False).best
            if best is None or job_seconds(best, self) <= self.seconds:
                break
            left = max(self.seconds - last_seconds(best), self.seconds / 2)
            question = replace(question, rate_per_second=self.requests / left)
        return question


def job_seconds(plan: Plan, job: Job) -> float:
    """Return the seconds from the start of running instances to the last token: pools are full, then the last ends."""
    return job.requests / min(pool.capacity_per_second for _, pool in plan.pools()) + last_seconds(plan)


def last_seconds(plan: Plan) -> float:
    """Return what a request takes beside full batches, the longer of the answers."""
    workload, first = plan.question.workload, plan.pools()[0][1].prediction.ttft_seconds or 0.0
    longer = 1 + _TAIL_DEVIATIONS * math.sqrt(workload.output_tokens.squared_cv)
    return first + plan.transfer_seconds + plan.tpot.at(99.0) * workload.decoded_tokens * longer
