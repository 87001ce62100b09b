"""The arithmetic that is shown adds up to the step that is predicted."""

import pytest

from planner.plans.worked import short_form, worked_plan
from podplan.planning import plan as planned
from tests.plans import small_plan


def test_terms_add_up_to_the_step() -> None:
    """Leading terms and the rest are the predicted pass and iteration; shares by what binds sum to one."""
    plan = small_plan()
    for pool, known in zip(worked_plan(plan), (plan.prefill.prediction, plan.decode.prediction), strict=True):
        assert pool.step_seconds == pytest.approx(known.iteration_seconds, rel=1e-6)
        assert sum(row.exposed_seconds for row in pool.terms) + pool.rest_seconds == pytest.approx(pool.step_seconds)
        assert sum(pool.by_bound.values()) == pytest.approx(1)
        assert [row.exposed_seconds for row in pool.terms] == sorted(
            (row.exposed_seconds for row in pool.terms), reverse=True
        )


def test_the_least_time_is_amount_over_rate_and_below_what_is_predicted() -> None:
    """count · amount / rate is printed as such, and a kernel takes no less."""
    shown = [row for pool in worked_plan(small_plan()) for row in pool.terms if row.least_seconds is not None]
    assert shown
    for row in shown:
        assert row.least_seconds == pytest.approx(row.count * row.amount / row.rate_per_second)
        assert row.least_seconds <= row.seconds * 1.001


def test_the_rate_line_multiplies_out() -> None:
    """Batch times ranks times tokens per iteration over the iteration and the answer's length is the full rate."""
    plan = small_plan()
    candidate = plan.decode.candidate
    line = worked_plan(plan)[1].lines[0]
    assert line.startswith(f"rate: {candidate.batch} requests x {candidate.row.strategy.attention_dp} DP ranks")
    assert f"= {candidate.requests_per_second:.3g} requests/s when full" in line
    assert len(short_form(plan)) == 2


def test_windows_and_measured_kernels_do_not_contradict_what_runs() -> None:
    """Half of gpt-oss's layers keep 128 tokens, and its MXFP4 experts multiply quicker than the peak of BF16."""
    plan = planned("gpt-oss-20b", hw="rtx-pro-6000", rate="15/s", engine="trtllm", shape="disaggregated").best
    terms = worked_plan(plan)
    (line,) = [each for each in terms[1].lines if each.startswith("memory:")]
    held = int(line.rpartition(" = ")[2].split()[0])
    assert held >= plan.decode.candidate.batch
    for row in (row for pool in terms for row in pool.terms):
        assert row.least_seconds is None or row.least_seconds <= row.seconds * 1.001
