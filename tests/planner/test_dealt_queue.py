"""Arrivals dealt in turn, against the recursion of the queue itself."""

import numpy as np
import pytest

from planner.dealt_queue import chain_states, dealt_sojourn
from planner.prefill_queue import prefill_latency
from planner.prefill_service import by_share

FIXED, SHARE = 2.0, 1.0


def _pass_seconds(prompts):
    return FIXED + SHARE * prompts


def _simulate(rate, cap, instances, squared_cv=0.0, requests=150_000):
    """Sojourn times at one of ``instances`` that Poisson arrivals are dealt to in turn."""
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(1 / (rate * instances), requests * instances))[::instances]
    lengths = np.ones(requests) if squared_cv == 0 else rng.gamma(1 / squared_cv, squared_cv, requests)
    work = np.append(0.0, np.cumsum(lengths))
    now, first, found = 0.0, 0, np.empty(requests)
    while first < requests:
        now = max(now, arrivals[first])
        last = min(int(np.searchsorted(arrivals, now, side="right")), first + cap)
        now += FIXED + SHARE * (work[last] - work[first])
        found[first:last] = now - arrivals[first:last]
        first = last
    return found[requests // 50 :]


@pytest.mark.parametrize(("cap", "instances", "utilisation"), [(1, 4, 0.85), (1, 20, 0.7), (3, 8, 0.85), (16, 4, 0.6)])
def test_fixed_lengths_against_the_recursion(cap, instances, utilisation):
    """Mean within 1 %, percentiles within 4 %: the chain is exact, the sample is not."""
    rate = utilisation * cap / _pass_seconds(cap)
    latency = prefill_latency(
        arrival_rate_per_second=rate,
        pass_seconds=_pass_seconds,
        most_prompts=cap,
        arrival_squared_cv=1 / instances,
    )
    measured = _simulate(rate, cap, instances)
    assert latency.mean == pytest.approx(measured.mean(), rel=0.01)
    for level in (50, 90, 99):
        assert latency.at(level) == pytest.approx(np.percentile(measured, level), rel=0.04)


def test_lengths_that_spread_against_the_recursion():
    """Squared CV 0.5 of a prompt's share: mean within 4 %, p99 within 8 %."""
    rate = 0.75 * 2 / _pass_seconds(2)
    latency = prefill_latency(
        arrival_rate_per_second=rate,
        pass_seconds=_pass_seconds,
        most_prompts=2,
        service_squared_cv=0.5,
        arrival_squared_cv=1 / 6,
    )
    measured = _simulate(rate, 2, 6, 0.5)
    assert latency.mean == pytest.approx(measured.mean(), rel=0.04)
    assert latency.p99 == pytest.approx(np.percentile(measured, 99), rel=0.08)


def test_masses_are_a_distribution():
    """Positive, summing to one, and no sojourn shorter than a pass of one prompt."""
    service = by_share(_pass_seconds, 4, 0.0, 0.0)
    seconds, masses = dealt_sojourn(service, 0.5, 5, 4)
    assert masses.sum() == pytest.approx(1)
    assert masses.min() >= 0
    assert seconds.min() >= _pass_seconds(1) - 1e-9


@pytest.mark.parametrize(("cap", "instances", "squared_cv"), [(1, 5, 0.0), (16, 5, 0.0), (2, 16, 1.0), (24, 10, 0.3)])
def test_latency_rises_with_the_rate(cap, instances, squared_cv):
    """Up to 98 % of saturation, through every change of the way in which arrivals are counted."""
    top = cap / _pass_seconds(cap)
    found = [
        prefill_latency(
            arrival_rate_per_second=part * top,
            pass_seconds=_pass_seconds,
            most_prompts=cap,
            service_squared_cv=squared_cv,
            arrival_squared_cv=1 / instances,
        )
        for part in np.concatenate([np.linspace(0.2, 0.9, 22), np.linspace(0.91, 0.98, 15)])
    ]
    for level in (50.0, 99.0):
        times = np.array([latency.at(level) for latency in found])
        assert np.all(np.diff(times) > -0.004 * times[:-1])


def test_the_chain_grows_with_phases_and_load():
    """A longer line and more phases take more states; under the cap no line is kept."""
    service = by_share(_pass_seconds, 2, 0.0, 0.0)
    assert chain_states(service, 0.3, 6, 2) < chain_states(service, 0.45, 6, 2)
    assert chain_states(service, 0.3, 12, 2) > chain_states(service, 0.3, 6, 2)
    assert chain_states(by_share(_pass_seconds, 50, 0.0, 0.0), 0.3, 4, 5) == 4 * 7
