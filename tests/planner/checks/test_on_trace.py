"""A plan on its own trace: as its manifest has it, and the rate up to which the limits hold."""

import numpy as np
import pytest

from planner.checks.on_trace import on_trace, pools_of
from planner.plans.assemble import assemble
from planner.plans.plan import DisaggregatedPlan
from planner.plans.recorded import expect_recorded
from planner.serving.deployed import play
from planner.workload import TraceRows
from tests.plans import small_plan


def _plan() -> DisaggregatedPlan:
    return small_plan()


def _trace(rate: float, count: int = 1200, burst: float = 1.0) -> TraceRows:
    """Requests of the planned lengths; ``burst`` times as fast in the second quarter."""
    gaps = np.random.default_rng(4).exponential(1 / rate, count)
    gaps[count // 4 : count // 2] /= burst
    return TraceRows(
        arrival_seconds=np.cumsum(gaps) - gaps[0], input_tokens=np.full(count, 1024), output_tokens=np.full(count, 128)
    )


def test_a_plan_plays_a_trace_as_its_manifest_does():
    """The pools of the plan and those of the manifest that is made of it give the same times."""
    plan, trace = _plan(), _trace(100.0)
    told = expect_recorded(assemble(plan, {}), trace).prediction
    found = play(pools_of(plan), trace)
    assert found.ttft_seconds.mean() == pytest.approx(told.ttft_seconds.mean, rel=0.01)
    assert np.nanmean(found.tpot_seconds) == pytest.approx(told.tpot_seconds.mean, rel=0.01)


def test_the_mean_rate_is_the_plans():
    """However slow the trace came, it is played at the planned rate."""
    plan = _plan()
    slow, fast = (on_trace(plan, _trace(rate)) for rate in (1.0, 10.0))
    assert slow.factor == pytest.approx(10 * fast.factor)
    assert slow.recorded.ttft_seconds == pytest.approx(fast.recorded.ttft_seconds)


def test_the_largest_rate_is_that_of_the_pools():
    """A plan at a fifth of what its pools carry is told about the same largest rate, not twice its own."""
    plan = _plan()
    slow = plan.under(plan.question)(plan.requests_per_second / 5)
    told, other = (on_trace(each, _trace(1.0)).most_per_second for each in (plan, slow))
    assert other == pytest.approx(told, rel=0.05) and other > 3 * slow.requests_per_second


@pytest.mark.parametrize("burst", [1.0, 5.0])
def test_rates_that_are_told_keep_the_limits(burst):
    """Played at the rate that was found, the percentiles are within the limits; well beyond it they are not."""
    plan, question = _plan(), _plan().question
    found = on_trace(plan, _trace(1.0, burst=burst))
    trace = _trace(1.0, burst=burst)
    own = 1199 / np.asarray(trace.arrival_seconds)[-1]
    kept = []
    for factor in (1.0, 1.3):
        faster = own / (factor * found.most_per_second)
        played = play(
            pools_of(plan),
            TraceRows(
                arrival_seconds=np.asarray(trace.arrival_seconds) * faster,
                input_tokens=trace.input_tokens,
                output_tokens=trace.output_tokens,
            ),
        )
        ttft, tpot = (np.percentile(values, 99) for values in (played.ttft_seconds, played.tpot_seconds))
        kept.append(ttft <= question.ttft_seconds and tpot <= question.tpot_seconds)
    assert kept == [True, False]
