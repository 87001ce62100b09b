"""Whether a question's devices, or a fixed deployment, keep the limits, with margins and confidence."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.checks.deployed import Deployed, plan_on
from planner.checks.margins import AfterLoss, Margin, held_confidence, margins_at, room_of, worst_loss
from planner.checks.on_trace import held_at, loads, search_on_trace
from planner.plans.plan import Plan
from planner.plans.quantised import as_planned
from planner.plans.servers import PREDICTED
from planner.question import Loss, Question
from planner.search.answer import Answer
from planner.search.changes.nearest import rate_change, size_change
from planner.search.changes.shortage import too_few, with_changes
from planner.search.changes.variations import has_plan
from planner.search.search import search
from planner.search.sure import told_of
from planner.serving.capacity import Limits
from planner.workload import TraceRows

Search = Callable[[Question], Answer]

_SIZED = 0.97
"""Share of the asked rate from which a plan that carries less leads to a second search, for the asked rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to one question; ``margins`` are at the asked confidence."""

    holds: bool
    binding: str  # the limit that fails first, or that has least room
    explanation: str
    margins: tuple[Margin, ...] = ()
    confidence: float | None  # the asked confidence
    held_confidence: float | None = None
    """Largest confidence at which each latency limit holds; None beyond the saturation of a pool."""
    after_loss: AfterLoss | None = None
    plan: Plan | None = None  # the plan that is judged; None for a manifest, and where there is no plan
    rate_per_second: float | None = None  # the rate that is judged; None where there is no plan
    played: bool = False  # whether the figures come from the trace's own requests; else from stationary queues


def check_deployed(
    deployed: Deployed,
    limits: Limits,
    rate_per_second: float,
    confidence: float | None = None,
    headroom: float = 0.0,
    *,
    loss: Loss | None = None,
) -> Verdict:
    """Return whether a fixed deployment keeps the limits at a rate with headroom."""
    asked = rate_per_second * (1 + headroom)
    margins = margins_at(deployed, limits, rate_per_second, confidence, headroom)
    after = worst_loss(deployed, limits, asked, loss, confidence or PREDICTED) if loss else None
    tightest = min(margins, key=room_of, default=None)
    holds = all(margin.holds for margin in margins)
    survives = after is None or after.holds
    why_not = "every limit holds" if holds and survives else "" if holds else _passed(deployed, limits, margins)
    if not survives and after is not None:
        counts = after.lost.counts
        none = [pool.role for pool in deployed.pools if pool.instances <= counts.get(pool.role, 0)]
        why = f"no {none[0]} instance is left" if none else _passed(deployed, limits, after.margins)
        why_not = f"{why_not}{'; ' if why_not else ''}after losing one {after.loss}, {why}"
    return Verdict(
        holds=holds and survives,
        binding="survive" if holds and not survives else tightest.name if tightest else "none",
        explanation=why_not,
        margins=margins,
        confidence=confidence,
        held_confidence=held_confidence(deployed, limits, asked, loss, confidence),
        after_loss=after,
        rate_per_second=rate_per_second,
    )


def _passed(deployed: Deployed, limits: Limits, margins: tuple[Margin, ...]) -> str:
    """Return the limits that do not hold, each once."""
    told, both = [], any(pool.role == "mixed" for pool in deployed.pools)
    for margin in margins:
        flag = f"--{margin.name} at p{limits.percentile:g}"
        if margin.share is None:
            late = "the pool" if both else "prefill" if margin.name == "ttft" else "decode"
            told.append(f"{late} cannot keep up with the rate")
        elif not margin.holds:
            told.append(f"{flag} is passed by {-margin.share:.1%}")
    return " and ".join(dict.fromkeys(told))


def check_question(question: Question, *, search_plan: Search = search, trace: TraceRows | None = None) -> Verdict:
    """Return whether the devices of a question keep its limits at its rate, or at any rate where none is asked.

    The plan with the largest rate on these devices is judged, whatever the objective; with a confidence, the one with
    the largest rate at correspondingly longer service times. With a trace it is the plan that keeps the limits on the
    trace's own requests at the largest rate, and it is judged on these requests. If no plan carries the rate with
    ``question.survive``, the plan without that demand shows the shortfall.
    """
    asked = question.rate_per_second
    finder = _Finder(search_plan, trace, asked)
    found = finder.most(replace(question, objective="throughput", rate_per_second=None))
    if found.plan and trace is None and asked and not found.carries(asked) and found.carries(_SIZED * asked):
        sized = replace(question, objective="chips")  # a search for fewest chips may carry a little more
        if has_plan(sized) and (plan := search_plan(sized).best) is not None:
            found = replace(found, plan=plan, rate_per_second=asked)
    if question.survive is not None and not (found.plan and found.carries(asked)):
        other = finder.most(replace(question, objective="throughput", rate_per_second=None, survive=None))
        found = other if other.plan is not None else found
    if found.plan is None:
        answer = found.answer
        return Verdict(
            holds=False,
            binding=answer.binding_limit,
            explanation=answer.explanation,
            confidence=question.confidence,
        )
    return _weigh(question, found, finder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Most:
    """The plan with the largest rate, and that rate at the asked confidence."""

    answer: Answer
    plan: Plan | None
    rate_per_second: float
    played: bool = False  # whether the rate is one at which the limits hold on the trace's own requests

    def carries(self, asked: float | None) -> bool:
        return asked is None or self.rate_per_second >= asked * (1 - 1e-9)


class _Finder(NamedTuple):
    """Finds the plan with the largest rate."""

    search_plan: Search
    trace: TraceRows | None
    asked_per_second: float | None = None

    def carries(self, question: Question) -> bool:
        """Whether a question's devices carry its rate; with a trace, whether the first plan found does."""
        if self.trace is None:
            return has_plan(replace(question, objective="chips"))
        rate = question.rate_per_second or 0.0
        plan = self.search_plan(replace(question, objective="throughput", rate_per_second=None)).best
        asked = None if plan is None else plan.under(as_planned(question, plan))(rate)
        return asked is not None and held_at(asked, self.trace).keeps

    def most(self, question: Question) -> _Most:
        """Return the plan with the largest rate; with a trace, on the trace's own requests."""
        if self.trace is None:
            answer = self.search_plan(question)
            best = answer.best
            return _Most(answer=answer, plan=best, rate_per_second=best.requests_per_second if best else 0.0)
        traced = search_on_trace(question, self.trace, self.search_plan)
        best = traced.answer.best
        if best is None or traced.on_trace is not None:
            most = 0.0 if best is None else best.requests_per_second
            return _Most(answer=traced.answer, plan=best, rate_per_second=most, played=best is not None)
        # A trace too short for the plan's largest rate may still suffice for the asked rate.
        played = self.asked_per_second is not None and loads(best, self.trace, self.asked_per_second)
        return _Most(answer=traced.answer, plan=best, rate_per_second=best.requests_per_second, played=played)


def _weigh(question: Question, most: _Most, finder: _Finder) -> Verdict:
    """Return the verdict on the plan with the largest rate, at the asked rate, or at its own where none is asked."""
    plan, carried = most.plan, most.rate_per_second
    assert plan is not None, "only a plan is weighed"
    deployed = plan_on(plan, finder.trace if most.played else None)
    rate = question.rate_per_second or carried or plan.requests_per_second
    sure = question.confidence, question.headroom
    found = check_deployed(deployed, Limits.of(question), rate, *sure, loss=question.survive)
    found = replace(found, plan=plan, played=most.played)
    if question.rate_per_second is None:
        return replace(found, binding=plan.binding_limit) if found.holds else found
    margins = (*found.margins, Margin(name="rate", limit=rate, value=carried))
    if margins[-1].holds or (most.played and found.holds):
        if found.binding == "survive" and not most.played:
            changes = rate_change(question, None, finder.carries), size_change(question, None, finder.carries)
            found = replace(found, explanation=with_changes(found.explanation, changes))
        return replace(found, margins=margins)
    # Latency limits may hold a little beyond the utilisation limit.
    unharmed = plan.question.survive != question.survive
    told = too_few(question, carried, finder.carries, unharmed=unharmed) if carried else found.explanation
    told = ": ".join([", ".join(told_of(question)), told]) if told_of(question) else told
    # Latency limits that hold beyond the utilisation limit give no confidence in the rate.
    return replace(found, holds=False, margins=margins, binding="devices", explanation=told, held_confidence=None)
