"""Searching again where a plan breaks its limits on its trace."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from planner.checks.grown import grown
from planner.checks.on_trace import held_at, on_trace
from planner.checks.traced import ROUNDS, Traced, search_on_trace
from planner.plans.aggregated import AggregatedPlan
from planner.plans.plan import DisaggregatedPlan
from planner.question import Question
from planner.search.search import search
from planner.workload import Trace
from tests.questions import small_question

again = partial(search, explain=False, beside=False)


def bursty(burst: float, count: int = 3000) -> Trace:
    """Return requests of the planned lengths, a quarter of them so much faster than the others."""
    gaps = np.random.default_rng(4).exponential(1.0, count)
    gaps[count // 4 : count // 2] /= burst
    return Trace(arrival_seconds=np.cumsum(gaps), input_tokens=np.full(count, 1024), output_tokens=np.full(count, 128))


def found(question: Question, trace: Trace) -> Traced:
    """Return what is found on a trace."""
    return search_on_trace(question, trace, again, again)


@pytest.fixture(scope="module")
def question() -> Question:
    """The throughput question of a few devices."""
    return replace(small_question("qwen3-30b-a3b", "h100", 8), shape="disaggregated")


@pytest.fixture(scope="module")
def most(question: Question) -> float:
    """What the stationary queues carry."""
    best = again(question).best
    assert best is not None
    return best.requests_per_second


def test_a_tame_trace_takes_one_search(question: Question, most: float) -> None:
    """At half the rate the first plan keeps the limits, and the answer is as without a trace."""
    asked = replace(question, objective="chips", rate_per_second=0.5 * most)
    traced, plain = found(asked, bursty(1.0)), again(asked)
    assert len(traced.rounds) == 1 and traced.rounds[0].keeps
    assert traced.answer.best is not None and plain.best is not None
    assert traced.answer.best.devices == plain.best.devices
    assert traced.answer.binding_limit == plain.binding_limit


def test_a_wild_trace_takes_more_devices(question: Question, most: float) -> None:
    """The plan that is answered with keeps the limits on the trace at the asked rate; its gap to the bound is told."""
    asked = replace(question, objective="chips", rate_per_second=0.6 * most)
    traced, trace = search_on_trace(asked, bursty(3.0), partial(search, explain=False), again), bursty(3.0)
    plan, first = traced.answer.best, traced.rounds[0]
    assert 1 < sum(not each.grown for each in traced.rounds) <= ROUNDS and not first.keeps
    assert isinstance(plan, DisaggregatedPlan) and first.plan is not None
    assert plan.requests_per_second == asked.rate_per_second
    assert on_trace(plan, trace).keeps
    assert traced.on_trace is not None and traced.on_trace.keeps
    assert plan.devices > first.plan.devices
    assert plan.devices == min(each.plan.devices for each in traced.rounds if each.keeps and each.plan is not None)
    bound = traced.answer.bound
    assert bound is not None and bound.gap == pytest.approx(1 - first.plan.devices / plan.devices)
    assert "nothing is proven" in bound.covers


def test_the_most_that_a_trace_allows_is_a_rate_that_was_played(question: Question, most: float) -> None:
    """For throughput the plan's rate is one at which its own requests keep the limits."""
    trace = bursty(3.0)
    traced = found(question, trace)
    plan = traced.answer.best
    assert isinstance(plan, DisaggregatedPlan) and traced.on_trace is not None
    assert traced.on_trace.keeps
    assert plan.requests_per_second >= traced.rounds[0].most_per_second * (1 - 1e-9)
    assert plan.requests_per_second < most
    assert traced.answer.binding_limit.startswith("trace")


def test_where_no_round_helps_the_nearest_plan_is_told(question: Question, most: float) -> None:
    """A burst that no plan on these devices outlives: the answer stands, with its limits missed."""
    asked = replace(question, objective="chips", rate_per_second=0.95 * most)
    traced = found(asked, bursty(20.0))
    assert traced.answer.best is not None
    assert traced.on_trace is not None and not traced.on_trace.keeps
    assert not any(each.keeps for each in traced.rounds)


@pytest.mark.parametrize("share", [0.6, 0.65, 0.7])
def test_more_instances_hold_where_no_search_finds_a_plan(question: Question, most: float, share: float) -> None:
    """Limits that are tightened four times step over plans that would do: the first one, with more instances."""
    asked = replace(question, objective="chips", rate_per_second=share * most)
    first = again(asked).best
    assert isinstance(first, DisaggregatedPlan)
    found = grown(asked, first, bursty(3.0), 0.0)
    assert found is not None
    plan, told = found
    assert isinstance(plan, DisaggregatedPlan)
    assert told.keeps and plan.requests_per_second == asked.rate_per_second
    assert plan.prefill.instances > first.prefill.instances  # TTFT was late
    assert plan.devices <= question.prefill.devices
    fewer = replace(plan, prefill=replace(plan.prefill, instances=plan.prefill.instances - 1))
    assert not held_at(fewer, bursty(3.0)).keeps


def test_there_may_be_no_room_for_more(question: Question, most: float) -> None:
    """Nothing is grown beyond the devices at hand."""
    asked = replace(question, objective="chips", rate_per_second=0.6 * most)
    first = again(asked).best
    assert first is not None
    assert grown(asked, first, bursty(20.0), 0.0) is None


def test_aggregated_plans_are_played_and_grow() -> None:
    """An answer for a trace with one shape is as one with the other; only a trace over at once stands as it is."""
    asked = small_question("qwen3-8b", "h100", 2, lengths=(1024.0, 128.0), shape="aggregated")
    best = again(asked).best
    assert isinstance(best, AggregatedPlan)
    asked = replace(asked, objective="chips", rate_per_second=0.4 * best.requests_per_second)
    traced = found(asked, bursty(2.0, count=1500))
    plan = traced.answer.best
    assert isinstance(plan, AggregatedPlan) and traced.on_trace is not None
    assert not traced.rounds[0].keeps and traced.on_trace.keeps
    assert traced.rounds[0].plan is not None and plan.devices > traced.rounds[0].plan.devices
    assert set(traced.on_trace.recorded.busy) == {"mixed"}


def test_a_trace_that_is_over_before_pools_have_filled_is_not_played(question: Question) -> None:
    """It tells little of a plan, whose stationary figures stand."""
    short = found(question, bursty(1.0, count=300))
    assert short.on_trace is None and short.answer.best is not None


def test_a_plan_that_comes_back_tightens_the_limits_by_more(question: Question, most: float) -> None:
    """Nothing is learnt from it twice, and rounds are few: limits fall by a seventh at least."""
    asked = replace(question, objective="chips", rate_per_second=0.9 * most)
    answer = again(asked)
    rounds = search_on_trace(asked, bursty(3.0), lambda _: answer, lambda _: answer).rounds
    limits = [(each.asked.ttft_seconds, each.asked.tpot_seconds) for each in rounds]
    tightened = [min(now / then for now, then in zip(after, before, strict=True)) for before, after in pairwise(limits)]

    assert len(rounds) == ROUNDS and not any(each.keeps for each in rounds)
    assert tightened[0] < 1 and all(share <= 0.85 + 1e-9 for share in tightened[1:])
