"""Plans that hold with a confidence in the predicted service times, and with headroom in the rate.

If all service times of a role are f times the predicted ones, its queue at rate R is the predicted queue at rate f R
with a clock slowed by f. So the search takes the instances of each role on a clock slowed by a factor of the role, at
(1 + headroom) times the rate, and then reports what the pools do at the asked rate as predicted. Errors of all roles
have one sign and the same share of their deviations, so each role has its own factor at a confidence.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

from planner.plans.plan import Plan
from planner.plans.pools import PlannedPool
from planner.plans.quantised import Tried, as_planned
from planner.plans.servers import PREDICTED, deviation_of, server_of, times_with
from planner.question import Question, Role
from planner.search.answer import Answer

Times = dict[Role, float]  # factors on predicted service times, by role
ROLES: tuple[Role, ...] = get_args(Role)

_ROUNDS = 6  # most searches; each stresses service times by the factors that the last plan needs for the confidence
_ALIKE = 1e-9  # factors nearer than this are equal
STRESSED = "the bound is of times and rates as with the confidence"


def told_of(question: Question) -> list[str]:
    """Return a phrase with the confidence and headroom that are asked for."""
    told = [] if (question.confidence or PREDICTED) <= PREDICTED else [f"with confidence {question.confidence:g}"]
    return [*told, *([f"with {question.headroom:.0%} headroom"] if question.headroom else [])]


def is_plain(question: Question) -> bool:
    """Whether a question asks for neither a confidence nor headroom."""
    return (question.confidence or PREDICTED) <= PREDICTED and not question.headroom


def stressed(question: Question, times: Times) -> Question:
    """Return the question whose answer holds if service times of roles are ``times`` as long as predicted."""
    rate = question.rate_per_second
    return replace(
        question,
        confidence=None,
        headroom=0.0,
        stretch=tuple((role, factor) for role, factor in times.items() if factor != 1),
        rate_per_second=None if rate is None else rate * (1 + question.headroom),
    )


def times_of(plan: Plan, confidence: float | None) -> Times:
    """Return the factors on predicted service times, by role, that a plan's real ones keep below with a confidence."""
    level = max(confidence or PREDICTED, PREDICTED)
    return {role: times_with(level, deviation_of(pool)) for role, pool in plan.pools()}


def needed(plan: Plan, question: Question) -> Times:
    """Return the factors that a plan for the stressed question needs for the confidence of the question itself.

    How sure the steps of aggregated instances are depends on what runs in them, which is told as predicted.
    """
    mixed = any(role == "mixed" for role, _ in plan.pools())
    own = restated(plan, question) if mixed and plan.question.stretch else plan
    return times_of(own or plan, question.confidence)


def surely(questions: Sequence[Question], solve: Callable[[list[Question]], Answer]) -> Answer:
    """Return the answer to stressed questions, one per member.

    Where nothing carries the asked rates with the factors that a first plan needs, those of the plan with the largest
    rates are taken: smaller batches may be surer.
    """
    found = _settled(questions, solve, [dict.fromkeys(ROLES, 1.0) for _ in questions])
    if found.held is not None:
        return found.held
    if found.last.plans or questions[0].goal.maximised or all(set(own.values()) == {1.0} for own in found.times):
        return found.last
    most = _settled([replace(each, objective="throughput") for each in questions], solve, found.times)
    again = None if most.held is None else _settled(questions, solve, most.times)
    return again.held if again and again.held else found.last


class _Settled(NamedTuple):
    """The answer whose plans have their confidence, if any, the last one, and the factors with which it was found."""

    held: Answer | None
    last: Answer
    times: list[Times]


def _settled(questions: Sequence[Question], solve: Callable[[list[Question]], Answer], times: list[Times]) -> _Settled:
    """Return the answer with the smallest factors that are known to give the plans that are found their confidence.

    They rise to those of the last plan until they suffice. Where they are then larger than needed, smaller ones may
    carry more: those of that plan, and if the plan found with them needs longer ones, what it needs.
    """
    held: tuple[Answer, list[Times]] | None = None
    failed = False
    for _ in range(_ROUNDS):
        answer = solve([stressed(each, own) for each, own in zip(questions, times, strict=True)])
        if not answer.plans:
            break
        wanted = [needed(*each) for each in zip(answer.plans, questions, strict=True)]
        if all(_within(more, own) for more, own in zip(wanted, times, strict=True)):
            held, smaller = (answer, times), [{**own, **less} for less, own in zip(wanted, times, strict=True)]
            if failed or all(_within(own, less) for own, less in zip(times, smaller, strict=True)):
                break
            times = smaller
        else:  # roles that the plan lacks are taken as uncertain as those that it has
            failed = held is not None
            times = [
                {role: max(factor, more.get(role, max(more.values()))) for role, factor in own.items()}
                for more, own in zip(wanted, times, strict=True)
            ]
            if held and all(_within(known, own) for known, own in zip(held[1], times, strict=True)):
                break
    return _Settled(held[0], answer, held[1]) if held else _Settled(None, answer, times)


def _within(wanted: Times, times: Times) -> bool:
    return all(factor <= times.get(role, 1.0) * (1 + _ALIKE) for role, factor in wanted.items())


def holds(plan: Plan, question: Question, asked: Question) -> bool:
    """Whether a plan found for the stressed question ``asked`` has the confidence of a question."""
    return _within(needed(plan, question), dict(asked.stretch))


def rate_with(plan: Plan, confidence: float) -> float:
    """Return the largest rate that a plan's pools carry within the limits with a confidence.

    Where the question has a loss to survive, the instances that remain after it carry that rate. As predicted and
    without such demands it is that of the capacities which the plan tells.
    """
    asked, times = plan.question, times_of(plan, confidence)
    if confidence <= PREDICTED and asked.survive is None and is_plain(asked):
        return min(pool.capacity_per_second for _, pool in plan.pools())
    lost = plan.lost(asked.survive)
    hard = replace(stressed(asked, times), objective="throughput", rate_per_second=None)

    def carried(role: Role, pool: PlannedPool) -> float:
        return server_of(plan, pool, hard.on_clock(role)).pool_capacity(pool.instances - lost[role]) / times[role]

    return min(carried(*each) for each in plan.pools()) / (1 + asked.headroom)


def restated(plan: Plan, question: Question) -> Plan | None:
    """Return the plan for the stressed question, restated for the service times and the rate of the question itself.

    In a fleet the machines are those that the plan took, which may be others than the question's.
    """
    share, own = 1 + question.headroom, plan.question
    asked = replace(as_planned(question, plan), prefill=own.prefill, decode=own.decode)
    found = plan.under(asked, share)(plan.requests_per_second / share)
    if found is None or found.played is None or plan.played is None:
        return found
    low, high = plan.played.requests_per_second  # of the pools, whose headroom the told rates leave
    return replace(found, played=found.played._replace(requests_per_second=(low / share, high / share)))


def in_own_terms(answer: Answer, question: Question) -> Answer:
    """Return the answer to the stressed question of a single model, restated for the question itself."""

    def own(plan: Plan | None) -> Plan | None:
        return None if plan is None else restated(plan, question)

    def tried(each: Tried) -> Tried:
        return each._replace(plan=own(each.plan))

    best, goal = own(answer.best), question.goal
    plans = () if best is None else (best,)
    pareto = [each for plan in answer.pareto if plan is not answer.best and (each := own(plan)) is not None]
    chosen = question if best is None else as_planned(question, best)
    told, bound = ", ".join(told_of(question)), answer.bound
    if bound is not None and goal.maximised:
        bound = bound._replace(value=bound.value / (1 + question.headroom))
    elif bound is not None and goal.timed:
        bound = bound._replace(covers=f"{bound.covers}; {STRESSED}")
    return replace(
        answer,
        fleet=answer.fleet._replace(members=tuple(each._replace(question=chosen) for each in answer.fleet.members)),
        plans=plans,
        pareto=tuple(sorted((*plans, *pareto), key=lambda plan: -plan.requests_per_second)),
        growth=answer.growth / (1 + question.headroom if goal.maximised else 1.0),
        bound=bound,
        explanation=f"{told.capitalize()}: {best.explanation}" if best else f"{told}: {answer.explanation}",
        engines=tuple(map(tried, answer.engines)),
        formats=tuple(map(tried, answer.formats)),
        unrestricted=own(answer.unrestricted),
        published=tuple(each._replace(plan=own(each.plan)) for each in answer.published),
    )
