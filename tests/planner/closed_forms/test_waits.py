"""Closed forms of waiting, against textbook values and each other."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ground.errors import BadInput
from planner.closed_forms.mixserve import eq7_waiting
from planner.serving.capacity import STEP, largest_rate, on_grid
from planner.serving.latency import Latency, independent_sum
from planner.serving.streams import gamma_quantiles
from tests.planner.closed_forms.waits import (
    allen_cunneen_wait,
    kingman_wait,
    pollaczek_khinchine_wait,
)


def test_distserve_prefill_wait():
    """DistServe (OSDI 2024) Eq. (1): R D^2 / (2 (1 - R D)); R = 2/s, D = 0.25 s gives 0.125 s."""
    assert pollaczek_khinchine_wait(2.0, 0.25, 0.0) == pytest.approx(0.125)


def test_single_memoryless_server_by_four_roads():
    """M/M/1 at half load waits as long as it serves, by P-K, Kingman, Allen-Cunneen and MixServe Eq. (7)."""
    waits = (
        pollaczek_khinchine_wait(0.5, 1.0, 1.0),
        kingman_wait(0.5, 1.0, 1.0, 1.0),
        allen_cunneen_wait(1, 0.5, 1.0, 1.0, 1.0),
        eq7_waiting(0.5, 1.0),
    )
    assert waits == pytest.approx((1.0,) * 4)


@pytest.mark.parametrize("squared_cv", [0.1, 1.0, 3.0])
def test_gamma_quantiles_are_scipys(squared_cv):
    """Against scipy.stats.gamma from the first to the last percentile."""
    levels = np.array([0.01, 0.1, 0.5, 0.9, 0.99])
    expected = stats.gamma(1 / squared_cv, scale=squared_cv).ppf(levels)
    assert gamma_quantiles(squared_cv, levels) == pytest.approx(expected, rel=0.02)


def test_latency_of_an_exponential():
    """Percentiles of an exponential with mean 1, on and beyond the grid: -ln(1 - p)."""
    edges = np.linspace(0.001, 16, 16000)
    latency = Latency.from_masses(edges, np.exp(-edges))
    assert latency.mean == pytest.approx(1.0, rel=0.01)
    for level in (50.0, 90.0, 99.0, 99.9, 99.99):
        assert latency.at(level) == pytest.approx(-math.log(1 - level / 100), rel=0.02)
    assert (latency.p50, latency.p90, latency.p99) == (latency.at(50), latency.at(90), latency.at(99))


@pytest.mark.parametrize("percentile", [0.0, 100.0, 140.0])
def test_percentile_that_cannot_be(percentile):
    """A percentile lies between 0 and 100."""
    latency = Latency.from_masses(np.array([1.0, 2.0]), np.array([0.5, 0.5]))
    with pytest.raises(BadInput, match="--percentile"):
        latency.at(percentile)


@settings(max_examples=200, deadline=None)
@given(
    fixed=st.floats(0.05, 0.9),
    wait=st.floats(1e-3, 1.0),
    power=st.floats(0.3, 3.0),
    jump=st.tuples(st.floats(0.05, 0.97), st.floats(0.0, 1.0)),
    about=st.none() | st.floats(0.01, 2.0),
)
def test_largest_rate_of_any_rising_latency(fixed, wait, power, jump, about):
    """A fixed part, a wait that ends or not at full load, and a step where a pass is full.

    The answer was evaluated, keeps the limit, is the largest that does, and is the same wherever it was expected.
    """
    tried = {}

    def seconds(rate):
        tried[rate] = fixed + wait * rate * (1 - rate) ** -power + jump[1] * (rate > jump[0])
        return tried[rate]

    rate = largest_rate(seconds, 1.0, 0.98, about)
    assert len(tried) <= 30

    following = 0.98 / 1000 if rate is None else min(on_grid(rate, 1), 0.98)
    assert rate is None or tried[rate] <= 1
    assert rate == 0.98 or seconds(following) > 1
    assert rate == largest_rate(seconds, 1.0, 0.98)


def test_largest_rate_at_the_ends():
    """All of it where the limit never binds, with one call or two; none where one request alone breaks it."""
    calls = []
    assert largest_rate(lambda rate: calls.append(rate) or 1 / (1 - rate), 100.0, 0.98) == 0.98
    assert largest_rate(lambda rate: calls.append(rate) or 1 / (1 - rate), 100.0, 0.98, 0.5) == 0.98
    assert calls == [0.98, pytest.approx(0.5, rel=STEP), 0.98]
    assert largest_rate(lambda rate: 1 / (1 - rate), 0.9, 0.98) is None
    assert largest_rate(lambda rate: 1 / (1 - rate), 0.9, 0.98, 0.5) is None


def test_largest_rate_below_one_that_cannot_be_kept_up_with():
    """An endless wait at the largest rate tells only that it is too much."""
    rate = largest_rate(lambda rate: 0.5 + rate if rate < 0.9 else math.inf, 1.0, 0.98)
    assert rate == pytest.approx(0.5, abs=0.01)


def test_sum_of_independent_durations():
    """Two exponential durations of 1 s: Erlang-2 quantiles within 1 %, the mean exactly."""
    grid = np.linspace(0.0, 20.0, 20_001)[1:]
    one = Latency.from_masses(grid, np.diff(1 - np.exp(-np.linspace(0.0, 20.0, 20_001))))
    both = independent_sum(one, one)
    assert both.mean == pytest.approx(2 * one.mean)
    for percentile in (10, 50, 90, 99):
        assert both.at(percentile) == pytest.approx(stats.gamma(2).ppf(percentile / 100), rel=0.01)
