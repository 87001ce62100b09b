"""Plans that hold with a confidence in the predicted service times, and with headroom in the rate.

All service times times f at a rate R make the queue of the predicted times at the rate f R, seen through a clock that
runs f times as slow. So such a plan is the one for limits f times as tight at f (1 + headroom) times the rate, and what
is told of it is what its pools do under the limits and at the rate that were asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.plans.plan import Plan
from planner.plans.quantised import Tried, as_planned
from planner.plans.servers import PREDICTED, deviation_of, server_of, times_with
from planner.question import Question
from planner.search.answer import Answer

_ROUNDS = 5
"""Searches at most: each is for times as long as they are, with the confidence, for the plan of the last one."""
_ALIKE = 1e-9
"""Times nearer than this are the same."""


STRESSED = "the bound is of times and rates as with the confidence"


def told_of(question: Question) -> list[str]:
    """Say with which confidence and headroom limits are to hold."""
    told = [] if (question.confidence or PREDICTED) <= PREDICTED else [f"with the confidence {question.confidence:g}"]
    return [*told, *([f"with {question.headroom:.0%} headroom"] if question.headroom else [])]


def is_plain(question: Question) -> bool:
    """Whether limits are to hold for times as predicted, at the rate that is asked for."""
    return (question.confidence or PREDICTED) <= PREDICTED and not question.headroom


def stressed(question: Question, times: float) -> Question:
    """Return what a question asks of times as predicted where they are so many times as long."""
    rate = question.rate_per_second
    return replace(
        question,
        confidence=None,
        headroom=0.0,
        ttft_seconds=question.ttft_seconds / times,
        tpot_seconds=question.tpot_seconds / times,
        rate_per_second=None if rate is None else rate * share_of(question, times),
    )


def share_of(question: Question, times: float) -> float:
    """Return the rate of the stressed question over that of the question."""
    return times * (1 + question.headroom)


def times_of(plan: Plan, confidence: float | None) -> float:
    """Return how many times as long as predicted a plan's service times are with a confidence."""
    return times_with(max(confidence or PREDICTED, PREDICTED), deviation_of(plan))


def surely(
    questions: Sequence[Question], solve: Callable[[list[Question]], Answer]
) -> tuple[Answer, tuple[float, ...]]:
    """Return the answer to stressed questions, one of each member, and how many times as long the times of each are.

    The confidence of a question holds for the plan that is found. Times grow to those of the last plan until they are
    its own or longer; where they are longer, the search is made once more with its own, which allow more.
    """
    times, held = (1.0,) * len(questions), None
    for _ in range(_ROUNDS):
        answer = solve([stressed(each, own) for each, own in zip(questions, times, strict=True)])
        if not answer.plans:
            break
        wanted = tuple(times_of(plan, each.confidence) for plan, each in zip(answer.plans, questions, strict=True))
        if all(more <= own * (1 + _ALIKE) for more, own in zip(wanted, times, strict=True)):
            held = answer, times
            if all(more >= own * (1 - _ALIKE) for more, own in zip(wanted, times, strict=True)):
                break
            times = wanted
        elif held is None:
            times = tuple(map(max, wanted, times))
        else:  # a plan that carries more with shorter times needs longer ones
            break
    return held or (answer, times)


def holds(plan: Plan, question: Question, times: float) -> bool:
    """Whether a plan for so many times its service times has the confidence of a question."""
    return times_of(plan, question.confidence) <= times * (1 + 2 * _ALIKE)


def rate_with(plan: Plan, confidence: float) -> float:
    """Return the largest rate that a plan's pools, as they are, carry within the limits with a confidence."""
    asked, times = plan.question, times_of(plan, confidence)
    hard = replace(stressed(asked, times), objective="throughput", rate_per_second=None)
    carried = (server_of(plan, pool, hard).pool_capacity(pool.instances) for _, pool in plan.pools())
    return min(carried) / share_of(asked, times)


def restated(plan: Plan, question: Question, times: float) -> Plan | None:
    """Return what the pools of a plan for the stressed question do under the question itself, at its own rate."""
    share, asked = share_of(question, times), as_planned(question, plan)
    return plan.under(asked, share)(plan.requests_per_second / share)


def in_own_terms(answer: Answer, question: Question, times: float) -> Answer:
    """Return the answer to the stressed question of a single model as one to the question itself."""

    def own(plan: Plan | None) -> Plan | None:
        return None if plan is None else restated(plan, question, times)

    def tried(each: Tried) -> Tried:
        return replace(each, plan=own(each.plan))

    best, goal = own(answer.best), question.goal
    plans = () if best is None else (best,)
    pareto = [each for plan in answer.pareto if plan is not answer.best and (each := own(plan)) is not None]
    bound = answer.bound
    if bound is not None and goal.maximised:
        bound = replace(bound, value=bound.value / share_of(question, times))
    elif bound is not None and goal.timed:
        bound = replace(bound, covers=f"{bound.covers}; {STRESSED}")
    return replace(
        answer,
        fleet=replace(answer.fleet, members=tuple(replace(each, question=question) for each in answer.fleet.members)),
        plans=plans,
        pareto=tuple(sorted((*plans, *pareto), key=lambda plan: -plan.requests_per_second)),
        growth=answer.growth / (share_of(question, times) if goal.maximised else 1.0),
        bound=bound,
        explanation=f"{', '.join(told_of(question))}: {best.explanation if best is not None else answer.explanation}",
        engines=tuple(map(tried, answer.engines)),
        formats=tuple(map(tried, answer.formats)),
        unrestricted=own(answer.unrestricted),
        published=tuple(replace(each, plan=own(each.plan)) for each in answer.published),
    )
