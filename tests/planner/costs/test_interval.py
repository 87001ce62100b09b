"""Intervals: which errors add, which average out, and what each composition effect adds."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
from hypothesis import given, strategies as st

from planner.costs.breakdown import Operator
from planner.costs.interval import (
    LOAD_DEVIATION,
    LOOP_DEVIATION,
    STRAGGLER_DEVIATION,
    UNLISTED_DEVIATION,
    Interval,
    interval,
    loop_interval,
)

QUANTILE = NormalDist().inv_cdf(0.9)
PLAIN = Operator("a", "0", 1, 1.0, 1.0, 1.0, 1.0, 0.0, "compute", 0.0)


def deviation(rows: list[Operator], seconds: float = 1.0) -> float:
    """Standard deviation of the interval of ``rows`` at 80 %."""
    return interval(seconds, rows).half / QUANTILE


def test_errors_of_one_fit_add_and_of_two_average() -> None:
    """Two operators of half the time each: the same fit gives r, two fits r / sqrt(2)."""
    half = replace(PLAIN, seconds=0.5, exposed_seconds=0.5, residual=0.06745)
    other = replace(half, name="b", bound="memory")
    assert deviation([half, half]) == pytest.approx(math.hypot(0.1, UNLISTED_DEVIATION))
    assert deviation([half, other]) == pytest.approx(math.hypot(0.1 / math.sqrt(2), UNLISTED_DEVIATION))


def test_waiting_and_hidden_time_widen_it() -> None:
    """The wait for the busiest rank counts by half; what overlap hides counts at most as the step itself."""
    wait = replace(PLAIN, name="straggler_wait", exposed_seconds=0.2, seconds=0.2)
    assert deviation([PLAIN, wait]) == pytest.approx(math.hypot(UNLISTED_DEVIATION, STRAGGLER_DEVIATION * 0.2))
    hidden = replace(PLAIN, name="b", seconds=50.0, exposed_seconds=0.0)
    more = replace(hidden, seconds=500.0)
    assert deviation([PLAIN, hidden]) == pytest.approx(deviation([PLAIN, more]))
    assert deviation([PLAIN, hidden]) > deviation([PLAIN])


def test_what_a_step_carries_is_uncertain_by_phase() -> None:
    """Decode steps are full and even; prompts are not."""
    widths = [interval(1.0, [PLAIN], phase=phase).half for phase in ("decode", "mixed", "prefill")]
    assert widths == sorted(widths)
    assert LOAD_DEVIATION["decode"] == 0


@given(st.floats(1e-3, 100), st.floats(0, 0.3))
def test_waiting_errs_by_a_factor(ttft: float, relative: float) -> None:
    """The bounds of a closed loop's TTFT are as far in ratio on both sides, and at least the loop's own deviation."""
    known = loop_interval(ttft, Interval(1 - relative, 1 + relative, 0.8), 1.0)
    assert known.high / ttft == pytest.approx(ttft / known.low)
    assert known.high / ttft >= math.exp(QUANTILE * LOOP_DEVIATION) * (1 - 1e-9)


@given(st.floats(0.5, 0.99))
def test_a_higher_level_is_wider(level: float) -> None:
    """And the time that it is about lies inside."""
    known = interval(1.0, [PLAIN], level)
    assert known.low < 1.0 < known.high
    assert known.half < interval(1.0, [PLAIN], (1 + level) / 2).half
