"""The search on a trace's own requests: candidates are played on them, and so is the plan, both roles together.

A candidate of one role is played as if the other took no time. What its plan does as a whole (``checks.on_trace``)
differs little; for throughput it gives the rate, where the limits do not hold at the one that was found.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.checks.on_trace import OnTrace, held_at, loads, on_trace
from planner.question import Question
from planner.search.answer import Answer
from planner.workload import Trace

Search = Callable[[Question], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """An answer and what its plan does on the trace; None where the trace does not tell, for it hardly fills it."""

    answer: Answer
    on_trace: OnTrace | None = None


def search_on_trace(question: Question, trace: Trace, search_plan: Search) -> Traced:
    """Return the answer to a question on a trace, or on stationary traffic where the trace hardly fills its plan."""
    answer = search_plan(replace(question, workload=replace(question.workload, trace=trace)))
    best = answer.best
    if best is None:
        return Traced(answer=answer)
    if not loads(best, trace, best.requests_per_second):
        return Traced(answer=search_plan(question))
    found = on_trace(best, trace)
    if found.keeps or not question.goal.maximised or not found.most_per_second:
        return Traced(answer=answer, on_trace=found)
    slower = best.under(best.question)(found.most_per_second)
    if slower is None:
        return Traced(answer=answer, on_trace=found)
    plans = [slower if plan is best else plan for plan in answer.pareto]
    return Traced(answer=replace(answer, plans=(slower,), pareto=tuple(plans)), on_trace=held_at(slower, trace))
