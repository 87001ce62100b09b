"""`--job`: requests that are all there from the start, and for whose answers nobody waits; how long they take."""

import math
import re
from dataclasses import replace
from typing import Any

from ground.errors import BadInput
from ground.units import HOUR_SECONDS, JOULES_PER_KWH, MINUTE_SECONDS, parse_count, parse_duration
from planner.plans.plan import Plan
from planner.search.answer import Answer, Change
from planner.search.jobs import Job, job_seconds
from planner.search.search import search
from podplan.options import QuestionFlags

FLAG = "--job"
UTILISATION = "0.999"
"""Of saturation: what is there from the start keeps pools full, so nothing is kept free for bursts."""
_WORDS = re.compile(r"\s*([0-9.,]+\s*[kM]?)\s*(?:requests?)?\s*(?:\bin\s+(.+))?")


def read_job(flags: QuestionFlags) -> Job | None:
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


def longer(answer: Answer, job: Job) -> Answer:
    """Return a refusal whose nearest rate is told as the time in which the same devices end the job."""
    changes = tuple(_in_time(each, job) if each.direction == "rate" else each for each in answer.changes)
    told = answer.explanation
    for old, new in zip(answer.changes, changes, strict=True):
        told = told.replace(f"{old.flag} {old.value}", f"{new.flag} {new.value}")
    return replace(answer, changes=changes, explanation=told)


def _in_time(change: Change, job: Job) -> Change:
    plan = change.question and search(change.question, explain=False, beside=False).best
    if not plan:
        return change
    seconds = job_seconds(plan, job)
    minutes = seconds > 10 * MINUTE_SECONDS
    time = f"{math.ceil(seconds / MINUTE_SECONDS)}min" if minutes else f"{math.ceil(seconds)}s"
    return replace(change, flag=FLAG, value=f'"{job.requests} requests in {time}"', told=f"the job ends in {time}")
