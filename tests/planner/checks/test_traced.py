"""Searches on the requests of a trace."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from planner.checks.on_trace import on_trace
from planner.checks.traced import Traced, search_on_trace
from planner.plans.aggregated import AggregatedPlan
from planner.plans.plan import DisaggregatedPlan
from planner.question import Question
from planner.search.search import search
from planner.workload import Trace
from tests.questions import small_question

plain = partial(search, explain=False, beside=False)


def bursty(burst: float, count: int = 3000) -> Trace:
    """Return requests of the planned lengths, a quarter of them so much faster than the others."""
    gaps = np.random.default_rng(4).exponential(1.0, count)
    gaps[count // 4 : count // 2] /= burst
    return Trace(arrival_seconds=np.cumsum(gaps), input_tokens=np.full(count, 1024), output_tokens=np.full(count, 128))


def found(question: Question, trace: Trace) -> Traced:
    """Return what is found on a trace."""
    return search_on_trace(question, trace, plain)


@pytest.fixture(scope="module")
def question() -> Question:
    """The throughput question of a few devices."""
    return replace(small_question("qwen3-30b-a3b", "h100", 8), shape="disaggregated")


@pytest.fixture(scope="module")
def most(question: Question) -> float:
    """What the stationary queues carry."""
    best = plain(question).best
    assert best is not None
    return best.requests_per_second


def test_a_tame_trace_takes_no_more_than_poisson_arrivals(question: Question, most: float) -> None:
    """At half the rate the plan for those keeps the limits on it, and so does its own, which is no larger."""
    asked = replace(question, objective="chips", rate_per_second=0.5 * most)
    traced, without = found(asked, bursty(1.0)), plain(asked)
    assert traced.on_trace is not None and traced.on_trace.keeps
    assert traced.answer.best is not None and without.best is not None
    assert on_trace(without.best, bursty(1.0)).keeps
    assert traced.answer.best.devices <= without.best.devices


@pytest.mark.parametrize("share", [0.5, 0.65])
def test_a_wild_trace_takes_as_many_devices_as_it_needs(question: Question, most: float, share: float) -> None:
    """The plan keeps the limits on the trace at the asked rate, with both roles together; one for none does not."""
    asked, trace = replace(question, objective="chips", rate_per_second=share * most), bursty(3.0)
    plan, tame = found(asked, trace).answer.best, plain(asked).best
    assert isinstance(plan, DisaggregatedPlan) and isinstance(tame, DisaggregatedPlan)
    assert plan.requests_per_second == asked.rate_per_second
    assert on_trace(plan, trace).keeps and not on_trace(tame, trace).keeps
    assert plan.devices > tame.devices


def test_latencies_of_the_plan_are_those_on_the_trace(question: Question, most: float) -> None:
    """Each role is told as if the other took no time: within 2 % of both together."""
    asked, trace = replace(question, objective="chips", rate_per_second=0.5 * most), bursty(3.0)
    plan = found(asked, trace).answer.best
    assert plan is not None
    played = on_trace(plan, trace).recorded
    assert plan.ttft.mean == pytest.approx(played.ttft_seconds.mean(), rel=0.02)
    assert plan.tpot.mean == pytest.approx(played.tpot_seconds.mean(), rel=0.02)


def test_the_most_that_a_trace_allows_is_a_rate_that_was_played(question: Question, most: float) -> None:
    """For throughput the plan's rate is one at which its own requests keep the limits."""
    traced = found(question, bursty(3.0))
    plan = traced.answer.best
    assert isinstance(plan, DisaggregatedPlan) and traced.on_trace is not None
    assert traced.on_trace.keeps
    assert 0.3 * most < plan.requests_per_second < most


def test_a_burst_that_no_plan_outlives_is_refused(question: Question, most: float) -> None:
    """Nothing on these devices keeps the limits through it."""
    asked = replace(question, objective="chips", rate_per_second=0.95 * most)
    assert found(asked, bursty(20.0)).answer.best is None


def test_aggregated_instances_are_played_too() -> None:
    """They take more devices than for Poisson arrivals, and keep the limits on the trace."""
    asked = small_question("qwen3-8b", "h100", 2, lengths=(1024.0, 128.0), shape="aggregated")
    best = plain(asked).best
    assert isinstance(best, AggregatedPlan)
    asked = replace(asked, objective="chips", rate_per_second=0.4 * best.requests_per_second)
    traced, tame = found(asked, bursty(2.0, count=1500)), plain(asked).best
    plan = traced.answer.best
    assert isinstance(plan, AggregatedPlan) and tame is not None and traced.on_trace is not None
    assert traced.on_trace.keeps and plan.devices > tame.devices
    assert plan.ttft.at(99.0) == pytest.approx(traced.on_trace.at("ttft", 99.0), rel=0.03)
    assert set(traced.on_trace.recorded.busy) == {"mixed"}


def test_a_trace_that_is_over_before_pools_have_filled_is_not_played(question: Question) -> None:
    """It tells little of a plan, which stationary traffic is taken for."""
    short, without = found(question, bursty(1.0, count=300)), plain(question)
    assert short.on_trace is None and short.answer.best is not None and without.best is not None
    assert short.answer.best.requests_per_second == without.best.requests_per_second
