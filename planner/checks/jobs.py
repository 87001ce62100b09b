"""Offline jobs: all requests wait from the start, and no request has a latency limit; how long a job takes."""

import math
from dataclasses import replace
from typing import NamedTuple

from ground.units import YEAR_SECONDS
from planner.plans.plan import Plan
from planner.plans.servers import PREDICTED, confidence_with, deviation_of, times_with
from planner.question import Question
from planner.search.search import search
from planner.search.sure import times_of

_SHARE = 0.25  # share of a job's time that a request may take to its first token, and again from its first to its last
_ROUNDS = 5
_TAIL_DEVIATIONS = 2.33
"""Standard deviations above the mean of the longest answer of the last batch: 99 % of a normal distribution."""


class Job(NamedTuple):
    """The number of requests of a job, and the seconds in which all must end; None where these are asked for."""

    requests: int
    seconds: float | None

    @property
    def rate_per_second(self) -> float | None:
        """The rate at which all requests begin within the time; None without a time."""
        return None if self.seconds is None else self.requests / self.seconds

    @property
    def limit_seconds(self) -> float:
        """Seconds that a request may take to its first token, and from its first to its last, without given limits."""
        return _SHARE * (self.seconds or YEAR_SECONDS)

    def ending_in_time(self, question: Question) -> Question:
        """Return a question at the rate at which the job's last request ends in time; unchanged without a time."""
        return question if self.seconds is None else self._ending_in(self.seconds, question)[0]

    def _ending_in(self, seconds: float, question: Question) -> tuple[Question, Plan | None]:
        """Return the question at that rate, and its plan.

        The last request begins after all others and then takes its own time, which depends on the plan, so the rate is
        iterated. A request takes at most half of the time, so twice the mean rate suffices.
        """
        left = seconds
        for _ in range(_ROUNDS + 1):
            question = replace(question, rate_per_second=self.requests / left)
            best = search(question, beside=False).best
            if best is None or job_seconds(best, self) <= seconds:
                break
            left = max(seconds - last_seconds(best), seconds / 2)
        return question, best

    def ends(self, question: Question) -> bool:
        """Whether a question has a plan that ends the job in time."""
        if self.seconds is None:
            return search(question, beside=False).feasible
        best = self._ending_in(self.seconds, question)[1]
        return best is not None and job_seconds(best, self) <= self.seconds


def job_seconds(plan: Plan, job: Job) -> float:
    """Return the seconds from the start to the last token: full pools, then the time of the last request."""
    return job.requests / min(pool.capacity_per_second for _, pool in plan.pools()) + last_seconds(plan)


def seconds_with(plan: Plan, job: Job, confidence: float) -> float:
    """Return the seconds that a job does not exceed with a confidence: each pool's clock slows by its own factor."""
    level = max(confidence, PREDICTED)
    return max(seconds * times_with(level, deviation) for seconds, deviation in _as_predicted(plan, job))


def confidence_in_time(plan: Plan, job: Job) -> float | None:
    """Return the confidence with which a job ends in its time; None without a time."""
    limit = job.seconds
    if limit is None:
        return None
    return min(confidence_with(limit / seconds, deviation) for seconds, deviation in _as_predicted(plan, job))


def _as_predicted(plan: Plan, job: Job) -> list[tuple[float, float]]:
    """Return the seconds that each pool takes for a job as predicted, and the deviation of its service times."""
    told, last = times_of(plan, plan.question.confidence), last_seconds(plan)
    return [
        ((job.requests / pool.capacity_per_second + last) / told[role], deviation_of(pool))
        for role, pool in plan.pools()
    ]


def last_seconds(plan: Plan) -> float:
    """Return the seconds of a request with a long answer in full batches."""
    workload, first = plan.question.workload, plan.pools()[0][1].prediction.ttft_seconds or 0.0
    longer = 1 + _TAIL_DEVIATIONS * math.sqrt(workload.output_tokens.squared_cv)
    return first + plan.transfer_seconds + plan.tpot.at(99.0) * workload.decoded_tokens * longer
