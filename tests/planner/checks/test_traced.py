"""Searches on the requests of a trace."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from planner.checks.on_trace import (
    Traced,
    at_rate,
    excess_of,
    least_chips,
    on_trace,
    pools_of,
    search_on_trace,
    together,
)
from planner.instances.space import Role
from planner.plans.plan import DisaggregatedPlan
from planner.question import Question
from planner.search.search import search
from planner.serving.deployed import play
from planner.workload import TraceRows
from tests.questions import small_question

plain = partial(search, beside=False)


def bursty(burst: float, count: int = 3000) -> TraceRows:
    """Return requests of the planned lengths, a quarter of them so much faster than the others."""
    gaps = np.random.default_rng(4).exponential(1.0, count)
    gaps[count // 4 : count // 2] /= burst
    return TraceRows(
        arrival_seconds=np.cumsum(gaps), input_tokens=np.full(count, 1024), output_tokens=np.full(count, 128)
    )


def found(question: Question, trace: TraceRows) -> Traced:
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
    return best.requests_per_second


def test_a_tame_trace_takes_no_more_than_poisson_arrivals(question: Question, most: float) -> None:
    """At half the rate the plan for those keeps the limits on it, and so does its own, which is no larger."""
    asked = replace(question, objective="chips", rate_per_second=0.5 * most)
    traced, without = found(asked, bursty(1.0)), plain(asked)
    assert traced.on_trace.keeps
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


@pytest.mark.parametrize("burst", [1.5, 3.0])
def test_both_roles_together_need_every_instance(question: Question, most: float, burst: float) -> None:
    """From more instances than are needed and from fewer the same are found; one less of a role is late."""
    trace = bursty(burst)
    tame = plain(replace(question, objective="chips", rate_per_second=0.4 * most)).best
    assert isinstance(tame, DisaggregatedPlan)
    kept = together(tame, trace)
    assert isinstance(kept, DisaggregatedPlan)
    counts: dict[Role, int] = {role: pool.instances for role, pool in kept.pools()}
    faster = at_rate(trace, kept.requests_per_second)
    assert excess_of(play(pools_of(kept), faster), kept.question) <= 1
    assert kept.ttft.at(99.0) <= kept.question.ttft_seconds and kept.tpot.at(99.0) <= kept.question.tpot_seconds
    for role, count in counts.items():
        fewer = {**counts, role: count - 1}
        assert count == 1 or excess_of(play(pools_of(kept, fewer), faster), kept.question) > 1
    larger = tame.resized(counts["prefill"] + 1, counts["decode"] + 1)
    assert {role: pool.instances for role, pool in together(larger, trace).pools()} == counts
    assert together(tame, bursty(20.0)) is tame  # nothing that the devices hold keeps the limits


def test_the_bound_on_a_trace_is_below_its_plan(question: Question, most: float) -> None:
    """Prefill alone beside decode whose full batches carry the rate: no more chips than what keeps the limits."""
    trace, asked = bursty(3.0), replace(question, objective="chips", rate_per_second=0.5 * most)
    answer = search(asked)
    bound = least_chips(answer.best, trace, answer.bound)
    plan = found(asked, trace).answer.best
    assert 2 <= bound.value <= plan.chips
    assert bound.gap == pytest.approx(1 - bound.value / answer.best.chips)
    assert least_chips(replace(answer.best, question=replace(asked, shape="auto")), trace, answer.bound) is None


def test_latencies_of_the_plan_are_those_on_the_trace(question: Question, most: float) -> None:
    """Each role is told as if the other took no time: within 2 % of both together."""
    asked, trace = replace(question, objective="chips", rate_per_second=0.5 * most), bursty(3.0)
    plan = found(asked, trace).answer.best
    played = on_trace(plan, trace).recorded
    assert plan.ttft.mean == pytest.approx(played.ttft_seconds.mean(), rel=0.02)
    assert plan.tpot.mean == pytest.approx(played.tpot_seconds.mean(), rel=0.02)


def test_a_burst_that_no_plan_outlives_is_refused(question: Question, most: float) -> None:
    """Nothing on these devices keeps the limits through it."""
    asked = replace(question, objective="chips", rate_per_second=0.95 * most)
    assert found(asked, bursty(20.0)).answer.best is None


def test_aggregated_instances_are_played_too() -> None:
    """They take more devices than for Poisson arrivals, and keep the limits on the trace."""
    asked = small_question("qwen3-8b", "h100", 2, lengths=(1024.0, 128.0), shape="aggregated")
    best = plain(asked).best
    asked = replace(asked, objective="chips", rate_per_second=0.4 * best.requests_per_second)
    traced, tame = found(asked, bursty(2.0, count=1500)), plain(asked).best
    plan = traced.answer.best
    assert traced.on_trace.keeps and plan.devices > tame.devices
    assert plan.ttft.at(99.0) == pytest.approx(traced.on_trace.at("ttft", 99.0), rel=0.03)
    assert set(traced.on_trace.recorded.busy) == {"mixed"}


def test_a_trace_that_is_over_before_pools_have_filled_is_not_played(question: Question) -> None:
    """It tells little of a plan, which stationary traffic is taken for."""
    short, without = found(question, bursty(1.0, count=300)), plain(question)
    assert short.on_trace is None
    assert short.answer.best.requests_per_second == without.best.requests_per_second
