"""The largest rate within limits, found with few queues."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.mixed.kinds import largest_within


def _searched(carried: float, leap: float, start: float) -> tuple[float, int]:
    """(rate found, queues) where latency goes up as 1/(1 - load) to its limit at ``carried``, and leaps beyond."""
    asked: list[float] = []

    def excess(rate: float) -> float:
        asked.append(rate)
        if rate >= 1:
            return math.inf
        value = (1 - carried) / (1 - rate)
        return value + leap if value > 1 else value

    return largest_within(excess, start, 1.0), len(asked)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 0.98), st.sampled_from([0.0, 0.2, math.inf]), st.floats(0.05, 0.95))
def test_the_largest_rate_within_a_limit_is_found(carried: float, leap: float, start: float) -> None:
    """It keeps the limit, and comes within 1 % of latency or 0.3 % of the rate, also where latency leaps."""
    found, queues = _searched(carried, leap, start)
    assert found <= carried * (1 + 1e-9)
    assert (1 - carried) / (1 - found) >= 0.99 or found >= 0.996 * carried - 1e-3
    assert queues <= 14


def test_few_queues_are_enough() -> None:
    """A latency that goes up smoothly takes four or five of them, wherever the search begins."""
    assert max(_searched(carried, 0.0, start)[1] for carried in (0.3, 0.6, 0.9) for start in (0.2, 0.5, 0.8)) <= 6


def test_what_no_rate_keeps_is_given_up_soon() -> None:
    """A limit below the latency of a single request is missed at any rate: some few are asked."""
    asked: list[float] = []
    assert largest_within(lambda rate: asked.append(rate) or 1.06, 0.9, 1.0) == 0.0
    assert len(asked) <= 6


def test_all_that_is_allowed_is_taken() -> None:
    """Where the limit is kept up to the upper end, that is the answer."""
    assert largest_within(lambda rate: 0.5 + rate / 4, 0.5, 1.0) == pytest.approx(1.0, rel=2e-3)
