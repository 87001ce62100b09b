"""Distributions of a duration, by laws whose quantiles are known."""

import math

import numpy as np
import pytest

from planner.serving.latency import Latency, cells, independent_sum, one_or_other

EVEN = Latency.from_samples(np.append(np.arange(1.0, 1002.0), np.nan))
"""From 1 s to 1001 s: the quantile at p is 1 + 10 p seconds."""


@pytest.mark.parametrize(("percentile", "seconds"), [(0.5, 11), (12, 121), (50.25, 503.5), (98.7, 988), (99.9, 1000)])
def test_quantiles_of_even_samples(percentile: float, seconds: float) -> None:
    """Straight between two levels; below the first one that one's."""
    assert EVEN.at(percentile) == pytest.approx(seconds)
    assert EVEN.later(2.0).at(percentile) == pytest.approx(seconds + 2)
    assert EVEN.scaled(2.0).at(percentile) == pytest.approx(2 * seconds)


def test_means_and_named_percentiles() -> None:
    """Of those that are numbers; no sample at all has no duration."""
    assert (EVEN.mean, EVEN.p50, EVEN.p90, EVEN.p99) == pytest.approx((501, 501, 901, 991))
    assert (EVEN.later(2.0).mean, EVEN.scaled(2.0).mean) == (503, 1002)
    nothing = Latency.from_samples(np.array([np.nan]))
    assert (nothing.mean, nothing.p50, nothing.p99) == (0, 0, 0) and nothing.levels == EVEN.levels


def test_an_exponential_tail_goes_on_beyond_the_last_level() -> None:
    """One request in ten thousand waits ln 10^4 mean durations."""
    known = EVEN._replace(seconds=tuple(-math.log(1 - level / 100) for level in EVEN.levels))
    assert [known.at(level) for level in (99.99, 99.999)] == pytest.approx([math.log(1e4), math.log(1e5)])


def test_masses_are_spread_down_to_the_duration_before() -> None:
    """Half of the requests take 1 s at most, a quarter up to 2 s and a quarter up to 4 s."""
    found = Latency.from_masses(np.array([1.0, 2.0, 4.0]), np.array([2.0, 1.0, 1.0]))
    assert found.mean == 2
    assert [found.at(level) for level in (10, 50, 62.5, 75, 80)] == pytest.approx([1, 1, 1.5, 2, 2.4])
    assert Latency.from_masses(np.array([1.0]), np.array([1.0]), 3.0).mean == 3


def test_cells_hold_all_requests() -> None:
    """The first is below the first level, the last above the last one."""
    middles, masses = cells()
    assert masses.sum() == pytest.approx(100) and middles @ masses == pytest.approx(5000)
    assert (middles[0], masses[0]) == (0.5, 1) and (middles[-1], masses[-1]) == pytest.approx((99.95, 0.1))


def test_two_even_durations_add_up_to_a_triangle() -> None:
    """P(S > s) = (2 - s)^2 / 2 above the middle; means add exactly."""
    found = independent_sum(EVEN, EVEN.later(5.0))
    assert found.mean == 501 + 506
    assert found.p50 == pytest.approx(1007, rel=0.01)
    assert found.p90 == pytest.approx(7 + 1000 * (2 - math.sqrt(0.2)), rel=0.01)


def test_some_requests_take_one_duration_and_others_another() -> None:
    """Three in four take up to 1 s, the rest 1 s to 2 s: percentiles of each part are those of the whole."""
    found = one_or_other(EVEN, EVEN.later(1002.0), 0.75)
    assert found.mean == pytest.approx(0.75 * EVEN.mean + 0.25 * EVEN.later(1002.0).mean)
    assert found.at(37.5) == pytest.approx(EVEN.p50, rel=0.01)
    assert found.at(97.5) == pytest.approx(1002 + EVEN.p90, rel=0.01)
