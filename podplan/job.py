"""`--job`: requests that are all there from the start, and for whose answers nobody waits; how long they take."""

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ground.errors import BadInput
from ground.units import HOUR_SECONDS, JOULES_PER_KWH, YEAR_SECONDS, parse_count, parse_duration
from planner.plans.plan import Plan
from planner.search.search import search

if TYPE_CHECKING:
    from podplan.options import QuestionFlags
    from podplan.question import Asked

FLAG = "--job"
UTILISATION = "0.999"
"""Of saturation: what is there from the start keeps pools full, so nothing is kept free for bursts."""
_WORDS = re.compile(r"\s*([0-9.,]+\s*[kM]?)\s*(?:requests?)?\s*(?:\bin\s+(.+))?")
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


def read_job(flags: "QuestionFlags") -> Job | None:
    """Return the job of ``1M requests in 6h`` or ``1M requests``; None where none is given.

    Raises BadInput naming the flag.
    """
    if flags.job is None:
        return None
    for name in ("rate", "rate_profile", "growth", "trace", "sessions"):
        flags.check_apart(("job", name), "say when requests come")
    words = _WORDS.fullmatch(flags.job)
    if words is None:
        raise BadInput(f"{FLAG}: {flags.job[:40]!r} is not COUNT requests in TIME, such as 1M requests in 6h")
    count, time = words.groups()
    return Job(requests=parse_count(count.strip(), FLAG), seconds=None if time is None else parse_duration(time, FLAG))


def ending_in_time(asked: "Asked") -> "Asked":
    """Return the question of a job at the rate at which its last request ends in time; another question as it is.

    The last request begins when all others have, and takes its own time: how long that is the plan tells, so the rate
    is closed in on. A request takes half of the time at most, so twice the mean rate always ends.
    """
    job, question = asked.job, asked.question
    if job is None or job.seconds is None:
        return asked
    for _ in range(_ROUNDS):
        best = search(question, explain=False, beside=False).best
        if best is None or job_seconds(best, job) <= job.seconds:
            break
        question = replace(
            question, rate_per_second=job.requests / max(job.seconds - last_seconds(best), job.seconds / 2)
        )
    return replace(asked, question=question)


def job_seconds(plan: Plan, job: Job) -> float:
    """Return the seconds from the start of running instances to the last token: pools are full, then the last ends."""
    return job.requests / min(pool.capacity_per_second for _, pool in plan.pools()) + last_seconds(plan)


def last_seconds(plan: Plan) -> float:
    """Return what a request takes beside full batches, the longer of the answers."""
    workload, first = plan.question.workload, plan.pools()[0][1].prediction.ttft_seconds or 0.0
    longer = 1 + _TAIL_DEVIATIONS * math.sqrt(workload.output_tokens.squared_cv)
    return first + plan.transfer_seconds + plan.tpot.at(99.0) * workload.decoded_tokens * longer


def job_json(plan: Plan, job: Job) -> dict[str, Any]:
    """Return how long a job takes, and what its machines cost and draw meanwhile."""
    seconds, cost, watts = job_seconds(plan, job), plan.cost_per_hour, plan.power_watts
    return {
        "requests": job.requests,
        "limit_seconds": job.seconds,
        "seconds": seconds,
        "cost_usd": None if cost is None else cost * seconds / HOUR_SECONDS,
        "energy_kwh": None if watts is None else watts * seconds / JOULES_PER_KWH,
    }
