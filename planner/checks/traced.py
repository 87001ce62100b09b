"""Searching again where a plan breaks its limits on the trace that it was made for.

The search weighs candidates by stationary queues (``checks.on_trace``), which may take a trace for tamer than it is.
The rate at which its plan does hold the limits on the trace tells by how much: what the stationary queues say of it
there is what they have to say of a plan that holds at the asked rate. So the limits are tightened to that, and all is
searched again, a few times; then plans that do not keep the limits get more instances (``checks.grown``). Plans are
compared by what they do on the trace.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ground.units import format_rate
from planner.checks.grown import grown
from planner.checks.on_trace import OnTrace, held_at, loads, on_trace
from planner.plans.plan import Plan
from planner.question import Question
from planner.search.answer import Answer
from planner.search.front import front_of
from planner.search.proof import Bound
from planner.search.sure import in_own_terms, is_plain, share_of, surely
from planner.workload import Trace

ROUNDS = 4
"""Searches at most, the first one included."""
_LEAST_SHARE = 0.25
"""Of a limit, to which one round tightens it at most."""
_MORE = 1.005
"""Times the rate that earlier rounds hold, below which a round for throughput has taught nothing."""
_TIGHTER = 0.97
"""Of the last limit, where what was learnt would leave it as it was."""
_MUCH_TIGHTER = 0.85
"""The same, where the last limits led to a plan that was known already: nothing is learnt of it again."""
Search = Callable[[Question], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One search: the limits and the rate that it was asked for, and its plan under the true ones, played."""

    asked: Question
    plan: Plan | None
    """None where nothing keeps the tightened limits."""
    on_trace: OnTrace | None
    grown: bool = False
    """Whether nothing was searched: the plan is that of another round with more instances."""

    @property
    def keeps(self) -> bool:
        """Whether the plan keeps the true limits on the trace at its rate."""
        return self.on_trace is not None and self.on_trace.keeps

    @property
    def most_per_second(self) -> float:
        """Largest rate found at which it does; 0 where none was."""
        return 0.0 if self.on_trace is None else self.on_trace.most_per_second or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The answer whose plan does best on the trace, what it does there, and the searches that led to it."""

    answer: Answer
    on_trace: OnTrace | None = None
    rounds: tuple[Round, ...] = ()
    most_per_second: float = 0.0
    """Up to which its limits hold on the trace, with the confidence and the headroom that were asked for."""


def surely_on_trace(question: Question, trace: Trace, first: Search, again: Search) -> Traced:
    """Return ``search_on_trace`` of a question with a confidence or headroom: of the stressed one, in its own terms."""
    found: list[Traced] = []

    def solve(asked: list[Question]) -> Answer:
        found.append(search_on_trace(asked[0], trace, first, again))
        return found[-1].answer

    answer, (times,) = surely([question], solve)
    last = found[-1]
    most = (last.on_trace.most_per_second or 0.0) / share_of(question, times) if last.on_trace else 0.0
    if is_plain(question):
        return replace(last, most_per_second=most)
    answer = in_own_terms(answer, question, times)
    played = on_trace(answer.best, trace) if answer.best is not None and last.on_trace is not None else None
    return Traced(answer=answer, on_trace=played, rounds=last.rounds, most_per_second=most)


def search_on_trace(question: Question, trace: Trace, first: Search, again: Search) -> Traced:
    """Return the answer to a question whose plan keeps the limits on its trace, where one was found.

    With an asked rate that is the plan with fewest chips (or least cost, or quickest) of those that keep the limits at
    it; for throughput the one that keeps them at the largest rate, at that rate. Where no round found one, the plan
    that comes nearest, with its limits missed. A trace does not tell much of a plan that it hardly fills: such an
    answer stands as it is.

    Args: ``first`` searches what was asked, ``again`` a question with tightened limits, of which only the plan counts.
    """
    answer = first(question)
    best = answer.best
    if best is None or not loads(best, trace, best.requests_per_second):
        return Traced(answer=answer)
    question = answer.question  # in the number format that was chosen
    rounds = [_round(question, question, trace, best)]
    larger = _grown(question, trace, rounds, ())
    while len(rounds) < ROUNDS and (wanted := _tightened(question, rounds)) is not None:
        if _passed(question, rounds[-1], (*rounds, *larger)):
            break
        rounds.append(_round(question, wanted, trace, again(wanted).best))
        larger += _grown(question, trace, rounds, larger)
    return _chosen(question, trace, answer, [*rounds, *larger])


def _passed(question: Question, last: Round, rounds: Sequence[Round]) -> bool:
    """Whether the last search found a plan that breaks the limits and is no smaller than one that keeps them."""
    if question.goal.maximised or last.plan is None or last.keeps:
        return False
    return last.plan.devices >= _fewest(rounds)


def _fewest(rounds: Sequence[Round]) -> float:
    """Return the devices of the smallest plan that keeps the limits; infinite where none does."""
    return min((each.plan.devices for each in rounds if each.keeps and each.plan is not None), default=math.inf)


def _grown(question: Question, trace: Trace, rounds: Sequence[Round], others: Sequence[Round]) -> list[Round]:
    """Return the last plan with as many more instances as keep the limits, if that is the smallest that does."""
    last, fewest = rounds[-1], _fewest((*rounds, *others))
    if question.goal.maximised or last.plan is None or last.keeps or last.plan.devices >= fewest:
        return []
    if any(_same(last, each) for each in rounds[:-1]):
        return []
    larger = grown(question, last.plan, trace, last.most_per_second)
    if larger is None or larger[0].devices >= fewest:
        return []
    return [Round(asked=last.asked, plan=larger[0], on_trace=larger[1], grown=True)]


def _round(question: Question, asked: Question, trace: Trace, best: Plan | None) -> Round:
    if best is None:
        return Round(asked=asked, plan=None, on_trace=None)
    plan = best if asked == question else _under(question, best)
    return Round(asked=asked, plan=plan, on_trace=None if plan is None else on_trace(plan, trace))


def _under(question: Question, best: Plan) -> Plan | None:
    """Return a plan that was searched for other limits under those of the question, at its rate."""
    rate = best.requests_per_second if question.goal.maximised else question.rate_per_second
    return best.under(question)(rate or best.requests_per_second)


def _tightened(question: Question, rounds: Sequence[Round]) -> Question | None:
    """Return what to search next; None where that is enough."""
    last = rounds[-1]
    known = max((each.most_per_second for each in rounds[:-1]), default=0.0)
    if question.goal.maximised and last.most_per_second <= _MORE * known:
        return None
    if last.keeps:
        return _between(question, rounds)
    if last.plan is None or last.on_trace is None:
        return _more_rate(question, rounds)
    most = _MUCH_TIGHTER if any(_same(last, each) for each in rounds[:-1]) else _TIGHTER
    return replace(
        last.asked,
        ttft_seconds=_learnt(question, last, "ttft", most),
        tpot_seconds=_learnt(question, last, "tpot", most),
    )


def _same(one: Round, other: Round) -> bool:
    """Whether two rounds found the same plan: played alike, on as many devices."""
    if one.plan is None or other.plan is None:
        return False
    return one.most_per_second == other.most_per_second and one.plan.devices == other.plan.devices


def _learnt(question: Question, last: Round, name: str, most: float) -> float:
    """Return the limit that the stationary queues have to keep for the trace to keep its own: ``most`` of the last."""
    assert last.plan is not None and last.on_trace is not None, "only a plan that was played teaches something"
    limit, asked = getattr(question, f"{name}_seconds"), float(getattr(last.asked, f"{name}_seconds"))
    measured = last.on_trace.at(name, question.percentile)
    if measured is None or measured <= limit:
        return asked
    held = last.plan.under(question)(last.most_per_second) if last.most_per_second else None
    told = limit * limit / measured if held is None else float(getattr(held, name).at(question.percentile))
    return max(min(told, most * asked), _LEAST_SHARE * asked)


def _between(question: Question, rounds: Sequence[Round]) -> Question | None:
    """Return limits between those of a plan that keeps its own on the trace and of one that does not.

    Only where the first is not the least that could be, and the second was searched just before.
    """
    if len(rounds) < 2 or question.goal.maximised:
        return None
    last, before = rounds[-1], rounds[-2]
    if before.plan is None or before.keeps or last.plan is None or last.plan.devices <= before.plan.devices + 1:
        return None
    return replace(
        last.asked,
        ttft_seconds=(last.asked.ttft_seconds * before.asked.ttft_seconds) ** 0.5,
        tpot_seconds=(last.asked.tpot_seconds * before.asked.tpot_seconds) ** 0.5,
    )


def _more_rate(question: Question, rounds: Sequence[Round]) -> Question | None:
    """Return the question with its own limits at a larger rate, where nothing keeps tightened ones."""
    rate, held = question.rate_per_second, rounds[0].most_per_second
    if rate is None or question.goal.maximised or not held:
        return None
    wanted = replace(question, rate_per_second=rate * rate / held)
    return None if any(each.asked == wanted for each in rounds) else wanted


def _chosen(question: Question, trace: Trace, answer: Answer, rounds: Sequence[Round]) -> Traced:
    played = [each for each in rounds if each.plan is not None]
    kept = [each for each in played if each.keeps]
    if question.goal.maximised or not kept:
        best = max(played, key=lambda each: each.most_per_second)
    else:
        best = min(kept, key=lambda each: _cost(question, each))
    plan, found = best.plan, best.on_trace
    assert plan is not None and found is not None, "the first round has a plan"
    if question.goal.maximised and best.most_per_second and (not best.keeps or best is not rounds[0]):
        slower = plan.under(question)(best.most_per_second)
        if slower is not None and (not best.keeps or _stationary(question, slower)):
            plan, found = slower, held_at(slower, trace)
    if plan is answer.best:
        return Traced(answer=answer, on_trace=found, rounds=tuple(rounds))
    return Traced(answer=_answered(answer, plan), on_trace=found, rounds=tuple(rounds))


def _stationary(question: Question, plan: Plan) -> bool:
    """Whether the stationary queues keep the limits, too."""
    level = question.percentile
    return plan.ttft.at(level) <= question.ttft_seconds and plan.tpot.at(level) <= question.tpot_seconds


def _cost(question: Question, each: Round) -> float:
    """What the objective makes small."""
    assert each.plan is not None and each.on_trace is not None, "only plans that were played are compared"
    return float(each.on_trace.recorded.e2e_seconds.mean()) if question.goal.timed else question.goal.value(each.plan)


def _answered(answer: Answer, plan: Plan) -> Answer:
    """Return the answer with the plan that does best on the trace, and its distance from what is proven."""
    told = plan.explanation
    if answer.question.goal.maximised:
        carried = " and ".join(f"{format_rate(pool.capacity_per_second)} ({role})" for role, pool in plan.pools())
        told = (
            f"On the trace itself the limits hold up to {format_rate(plan.requests_per_second)}; by stationary queues "
            f"the pools carry {carried}."
        )
    first = answer.best
    assert first is not None, "an answer that was played has a plan"
    return replace(
        answer,
        plans=(plan,),
        pareto=tuple(front_of(plan, [each for each in answer.pareto if each is not first])),
        bound=answer.bound and _wider(answer.bound, first, plan),
        binding_limit=f"trace, {plan.binding_limit}",
        explanation=told,
    )


def _wider(bound: Bound, first: Plan, plan: Plan) -> Bound:
    """Return the bound with the gap of the plan that is answered with; the bound is one of the stationary queues."""
    before, after = (bound.goal.value(each) for each in (first, plan))
    reached = bound.value * after / before
    return replace(
        bound,
        gap=abs(bound.value - reached) / reached,
        covers=f"{bound.covers}; by stationary queues, of what the trace itself allows nothing is proven",
    )
