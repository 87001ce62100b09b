"""`--job`: requests that are all there from the start, and for whose answers nobody waits; how long they take."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ground.errors import BadInput
from ground.units import (
    HOUR_SECONDS,
    JOULES_PER_KWH,
    MINUTE_SECONDS,
    counted,
    format_duration,
    parse_count,
    parse_duration,
)
from planner.checks.jobs import Job, job_seconds
from planner.plans.plan import Plan
from planner.question import Question
from planner.search.answer import Answer, Change
from planner.search.changes.nearest import size_change
from planner.search.changes.refusal import answered
from planner.search.changes.shortage import with_changes
from planner.search.search import search
from podplan.options import QuestionFlags

FLAG = "--job"
UTILISATION = "0.999"  # of saturation: what is there from the start keeps pools full, nothing is kept free for bursts
_LONGER = (1.0, 1.02, 1.1, 1.5, 2.0, 4.0)
"""Factors on the time that a job takes, of which the first that suffices is told: limits are parts of the time."""
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


def late(question: Question, job: Job, asked: Callable[[str], Question]) -> Answer:
    """Return a job's refusal: in which time these devices end it, and the fewest devices that end it in time.

    Each change is solved. Where these devices end the job in no time at all, the answer without a time tells why.

    Args: ``question``: the question, which has no plan; ``job``: the job, with its time; ``asked``: returns the
    question of another text of ``--job``.
    """
    untimed = answered(asked(str(job.requests)), beside=False)
    if untimed.best is None or job.seconds is None:
        return untimed
    took = job_seconds(untimed.best, job)
    more = size_change(question, untimed.best.requests_per_second, job.ends)
    changes, answer = (_in_time(took, job, asked), more), search(question, beside=False)
    told = f"{counted(question.devices, 'device')} end the job in {format_duration(took)}, not in "
    told = with_changes(f"{told}{format_duration(job.seconds)}", changes)
    limit = answer.binding_limit if more.question is not None else "job"  # a part of a job's time is no limit of a user
    return replace(answer, plans=(), binding_limit=limit, explanation=told, changes=changes)


def _in_time(took_seconds: float, job: Job, asked: Callable[[str], Question]) -> Change:
    """Return the change to the time in which a job ends that took so long without one."""
    for factor in _LONGER:
        seconds = took_seconds * factor
        minutes = math.ceil(seconds / MINUTE_SECONDS)
        time = f"{minutes}min" if seconds > 10 * MINUTE_SECONDS else f"{math.ceil(seconds)}s"
        text = f"{job.requests} requests in {time}"
        question, longer = asked(text), job._replace(seconds=parse_duration(time, FLAG))
        if longer.ends(question):
            return Change(
                direction="job", flag=FLAG, value=f'"{text}"', told=f"the job ends in {time}", question=question
            )
    return Change(direction="job", flag=FLAG, told="no longer time was found")
