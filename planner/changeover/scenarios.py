"""Scenarios solved alone: the plan with the fewest chips for each, under the nearest limits that a plan keeps."""

from dataclasses import replace
from functools import partial

from ground.units import format_duration, rounded_up
from planner.changeover.robust import Scenario
from planner.checks.traced import search_on_trace
from planner.question import Question
from planner.search.answer import Answer
from planner.search.changes.missing import asked_limit, with_limit
from planner.search.changes.nearest import limit_change
from planner.search.changes.variations import alike
from planner.search.search import search
from planner.workload import Trace

_search = partial(search, explain=False)


def solved_scenario(
    name: str, asked: Question, rows: Trace | None = None, *, weight: float = 1.0, hours: float | None = None
) -> Scenario:
    """Return a scenario with its own best plan and the fewest chips that the search proved.

    ``rows`` are the requests of its trace, where a plan can be played on them.
    """
    answer, question, relaxed = served_nearest(asked, rows)
    bound = answer.bound.value if answer.best and answer.bound else None
    return Scenario(
        name=name,
        question=question,
        weight=weight,
        hours=hours,
        best=answer.best,
        least_chips=0.0 if answer.best is None else bound if bound is not None else answer.best.chips,
        relaxed=relaxed,
    )


def served_nearest(question: Question, rows: Trace | None) -> tuple[Answer, Question, str | None]:
    """Return the plan with the fewest chips; where none keeps the limits, that for the nearest limits, and these.

    With a trace the plan is played on it; limits that it misses are relaxed to the values reached.
    """
    found = None if rows is None else search_on_trace(question, rows, _search, _search)
    answer, on_trace = (_search(question), None) if found is None else (found.answer, found.on_trace)
    if answer.best is None:
        for ttft in (True, False):
            change = limit_change(question, ttft, alike())
            if change.question is not None:
                answer, nearest, _ = served_nearest(change.question, rows)
                return answer, nearest, f"{change.direction} {change.told}"
    told = []
    if on_trace is not None and not on_trace.keeps:
        for name, ttft in (("TTFT", True), ("TPOT", False)):
            limit = asked_limit(question, ttft)[1]
            measured = rounded_up(on_trace.at(name.lower(), question.percentile) or 0.0)
            if measured > limit:
                question = with_limit(question, ttft, measured)
                told.append(f"{name} {format_duration(measured)} on its trace instead of {format_duration(limit)}")
    nearest = replace(answer.question, ttft_seconds=question.ttft_seconds, tpot_seconds=question.tpot_seconds)
    return answer, nearest, " and ".join(told) or None
