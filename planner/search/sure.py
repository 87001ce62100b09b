"""Plans that hold with a confidence in the predicted service times, and with headroom in the rate.

If all service times are f times the predicted ones, the queue at rate R is the predicted queue at rate f R with a clock
slowed by f. So the search plans for limits f times as tight at f (1 + headroom) times the rate, and then reports what
the pools do at the asked rate under the asked limits.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.plans.plan import Plan
from planner.plans.pools import PlannedPool
from planner.plans.quantised import Tried, as_planned
from planner.plans.servers import PREDICTED, deviation_of, server_of, times_with
from planner.question import Question, lost_instances
from planner.search.answer import Answer

_ROUNDS = 5
"""Most searches; each stresses service times by the factor that the last plan needs for the confidence."""
_ALIKE = 1e-9
"""Factors nearer than this are equal."""


STRESSED = "the bound is of times and rates as with the confidence"


def told_of(question: Question) -> list[str]:
    """Return a phrase with the confidence and headroom that are asked for."""
    told = [] if (question.confidence or PREDICTED) <= PREDICTED else [f"with the confidence {question.confidence:g}"]
    return [*told, *([f"with {question.headroom:.0%} headroom"] if question.headroom else [])]


def is_plain(question: Question) -> bool:
    """Whether a question asks for neither a confidence nor headroom."""
    return (question.confidence or PREDICTED) <= PREDICTED and not question.headroom


def stressed(question: Question, times: float) -> Question:
    """Return the question whose answer holds if service times are ``times`` as long as predicted."""
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
    """Return the factor on predicted service times that a plan's real ones keep below with a confidence."""
    return times_with(max(confidence or PREDICTED, PREDICTED), deviation_of(plan))


def surely(
    questions: Sequence[Question], solve: Callable[[list[Question]], Answer]
) -> tuple[Answer, tuple[float, ...]]:
    """Return the answer to stressed questions, one per member, and the factor on the service times of each.

    The factor must give the plan that is found its confidence. It rises to that of the last plan until it suffices;
    where it is then larger than needed, one more search with the smaller factor may carry more.
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
    """Whether a plan found with a factor on service times has the confidence of a question."""
    return times_of(plan, question.confidence) <= times * (1 + 2 * _ALIKE)


def rate_with(plan: Plan, confidence: float) -> float:
    """Return the largest rate that a plan's pools carry within the limits with a confidence.

    Where the question has a loss to survive, the instances that remain after it carry that rate.
    """
    asked, times = plan.question, times_of(plan, confidence)
    hard = replace(stressed(asked, times), objective="throughput", rate_per_second=None)

    def carried(pool: PlannedPool) -> float:
        lost = lost_instances(asked.survive, pool.candidate.devices, pool.machines.devices_per_node)
        return server_of(plan, pool, hard).pool_capacity(pool.instances - lost)

    return min(carried(pool) for _, pool in plan.pools()) / share_of(asked, times)


def restated(plan: Plan, question: Question, times: float) -> Plan | None:
    """Return the plan for the stressed question, restated at the rate and limits of the question itself."""
    share, asked = share_of(question, times), as_planned(question, plan)
    return plan.under(asked, share)(plan.requests_per_second / share)


def in_own_terms(answer: Answer, question: Question, times: float) -> Answer:
    """Return the answer to the stressed question of a single model, restated for the question itself."""

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
