"""Elastic bulk service, against M/D/1, M/M/1 and a simulation of the queue itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ground.errors import BadInput
from planner.queues.prefill_queue import (
    prefill_capacity,
    prefill_latency,
    thinned_squared_cv,
)
from planner.queues.queueing import pollaczek_khinchine_wait

FIXED, SHARE = 2.0, 1.0


def _pass_seconds(prompts):
    return FIXED + SHARE * prompts


def _simulate(rate, cap, squared_cv, arrival_squared_cv=1.0, requests=120_000):
    """Sojourn times of a queue that serves what waits, up to ``cap``; two seeds, in one array."""
    sojourns = []
    for seed in (11, 12):
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.gamma(1 / arrival_squared_cv, arrival_squared_cv / rate, requests))
        lengths = np.ones(requests) if squared_cv == 0 else rng.gamma(1 / squared_cv, squared_cv, requests)
        work = np.append(0.0, np.cumsum(lengths))
        now, first, found = 0.0, 0, np.empty(requests)
        while first < requests:
            now = max(now, arrivals[first])
            last = min(int(np.searchsorted(arrivals, now, side="right")), first + cap)
            now += FIXED + SHARE * (work[last] - work[first])
            found[first:last] = now - arrivals[first:last]
            first = last
        sojourns.append(found[requests // 50 :])
    return np.concatenate(sojourns)


def _md1_wait_cdf(utilisation, wait):
    """P(W <= t) of M/D/1 with service 1: (1 - rho) sum_k (-rho (t - k))^k / k! e^(rho (t - k)) (Erlang 1909)."""
    return (1 - utilisation) * sum(
        (-utilisation * (wait - k)) ** k / math.factorial(k) * math.exp(utilisation * (wait - k))
        for k in range(int(wait) + 1)
    )


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.85])
def test_one_prompt_per_pass_is_md1(utilisation):
    """Mean rho S / (2 (1 - rho)) + S; the percentiles satisfy Erlang's formula."""
    latency = prefill_latency(arrival_rate_per_second=utilisation, pass_seconds=lambda n: 1.0 + 0 * n, most_prompts=1)
    assert latency.mean == pytest.approx(1 + pollaczek_khinchine_wait(utilisation, 1.0, 0.0), rel=0.003)
    for level in (90.0, 99.0):
        assert _md1_wait_cdf(utilisation, latency.at(level) - 1) == pytest.approx(level / 100, abs=0.002)


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.85])
def test_one_prompt_of_exponential_length_per_pass_is_mm1(utilisation):
    """M/M/1: the sojourn is exponential with mean S / (1 - rho)."""
    latency = prefill_latency(
        arrival_rate_per_second=utilisation, pass_seconds=lambda n: 1.0 + 0 * n, most_prompts=1, service_squared_cv=1.0
    )
    assert latency.mean == pytest.approx(1 / (1 - utilisation), rel=0.01)
    assert latency.p99 == pytest.approx(math.log(100) / (1 - utilisation), rel=0.03)


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.85])
@pytest.mark.parametrize("cap", [4, 32])
def test_fixed_lengths_against_simulation(cap, utilisation):
    """Mean within 3 %, p99 within 6 %."""
    rate = utilisation * cap / _pass_seconds(cap)
    latency = prefill_latency(arrival_rate_per_second=rate, pass_seconds=_pass_seconds, most_prompts=cap)
    measured = _simulate(rate, cap, 0.0)
    assert latency.mean == pytest.approx(measured.mean(), rel=0.03)
    assert latency.p99 == pytest.approx(np.percentile(measured, 99), rel=0.06)


@pytest.mark.parametrize(("cap", "utilisation"), [(4, 0.3), (4, 0.85), (32, 0.6)])
def test_exponential_lengths_against_simulation(cap, utilisation):
    """Squared CV 1 of one prompt's share: within 10 %."""
    rate = utilisation * cap / _pass_seconds(cap)
    latency = prefill_latency(
        arrival_rate_per_second=rate, pass_seconds=_pass_seconds, most_prompts=cap, service_squared_cv=1.0
    )
    measured = _simulate(rate, cap, 1.0)
    assert latency.mean == pytest.approx(measured.mean(), rel=0.05)
    for level in (50, 90, 99):
        assert latency.at(level) == pytest.approx(np.percentile(measured, level), rel=0.1)


@pytest.mark.parametrize("arrival_squared_cv", [0.25, 3.0])
def test_other_arrivals_against_simulation(arrival_squared_cv):
    """Gamma gaps, smoother and burstier than Poisson: mean within 8 %, p99 within 15 %."""
    rate = 0.7 * 16 / _pass_seconds(16)
    latency = prefill_latency(
        arrival_rate_per_second=rate,
        pass_seconds=_pass_seconds,
        most_prompts=16,
        arrival_squared_cv=arrival_squared_cv,
    )
    measured = _simulate(rate, 16, 0.0, arrival_squared_cv)
    assert latency.mean == pytest.approx(measured.mean(), rel=0.08)
    assert latency.p99 == pytest.approx(np.percentile(measured, 99), rel=0.15)


def test_many_prompts_are_counted_in_steps():
    """A cap of 2000 at 95 % of its rate, in steps of several prompts, against simulation."""
    rate = 0.95 * 2000 / (200 + 2000)
    latency = prefill_latency(arrival_rate_per_second=rate, pass_seconds=lambda n: 200 + n, most_prompts=2000)
    settled = rate * 200 / (1 - rate)  # prompts of the pass whose arrivals fill the next
    assert latency.mean == pytest.approx(1.5 * (200 + settled), rel=0.03)


def test_lone_prompts_take_their_own_time():
    """At a vanishing rate TTFT is the pass of one prompt and what follows it, at every percentile."""
    latency = prefill_latency(
        arrival_rate_per_second=1e-9, pass_seconds=_pass_seconds, most_prompts=64, extra_seconds=0.5
    )
    assert (latency.mean, latency.p99) == pytest.approx((3.5, 3.5), rel=0.002)


def test_saturated_instance_has_no_latency():
    """Passes of 4 prompts in 6 s carry less than 4/6 prompts per second."""
    assert prefill_latency(arrival_rate_per_second=4 / 6, pass_seconds=_pass_seconds, most_prompts=4) is None


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 60), st.floats(0.1, 0.9))
def test_more_load_never_helps(cap, utilisation):
    """Mean and p99 rise with the rate."""
    top = cap / _pass_seconds(cap)
    low, high = (
        prefill_latency(arrival_rate_per_second=u * top, pass_seconds=_pass_seconds, most_prompts=cap)
        for u in (utilisation, utilisation + 0.05)
    )
    assert high.mean > low.mean
    assert high.p99 >= low.p99 * 0.99


def test_capacity_keeps_its_limit_tightly():
    """At the rate found p99 is just under the limit; a looser limit carries more."""
    tight, loose = (
        prefill_capacity(pass_seconds=_pass_seconds, most_prompts=16, limit_seconds=limit, percentile=99)
        for limit in (15.0, 30.0)
    )
    assert 14.7 <= tight.ttft.p99 <= 15.0
    assert tight.rate_per_second < loose.rate_per_second < 16 / 18


def test_instances_behind_a_router_carry_more_than_their_sum():
    """Round robin smooths arrivals, at random does not; nothing carries a limit below the lone pass."""

    def carried(instances, policy):
        return prefill_capacity(
            pass_seconds=_pass_seconds,
            most_prompts=4,
            limit_seconds=12.0,
            percentile=99,
            instances=instances,
            policy=policy,
        ).rate_per_second

    assert carried(4, "random") == pytest.approx(4 * carried(1, "random"))
    assert carried(4, "round_robin") > 1.03 * carried(4, "random")
    assert carried(4, "least_load") == carried(4, "round_robin")
    assert prefill_capacity(pass_seconds=_pass_seconds, most_prompts=4, limit_seconds=2.9, percentile=99) is None


def test_thinning():
    """Every fourth Poisson arrival is an Erlang-4 gap, squared CV 1/4; a random quarter of Poisson is Poisson."""
    assert thinned_squared_cv(1.0, 4, "round_robin") == 0.25
    assert thinned_squared_cv(1.0, 4, "random") == 1.0
    assert thinned_squared_cv(3.0, 4, "random") == 1.5


def test_pools_and_passes_that_cannot_be():
    """A pool has an instance, a pass holds a prompt, a rate is not negative."""
    with pytest.raises(BadInput, match="at least 1"):
        prefill_capacity(pass_seconds=_pass_seconds, most_prompts=1, limit_seconds=1, percentile=99, instances=0)
    with pytest.raises(BadInput, match="at least 1"):
        prefill_latency(arrival_rate_per_second=1, pass_seconds=_pass_seconds, most_prompts=0)
    with pytest.raises(BadInput, match="negative"):
        prefill_latency(arrival_rate_per_second=-1, pass_seconds=_pass_seconds, most_prompts=1)


def test_regular_arrivals_hardly_wait_when_a_pass_is_shorter_than_their_gaps():
    """Dealt to 8 instances in turn, arrivals are nearly regular: 45 % busy and one prompt a pass, few wait at all."""
    latency = prefill_latency(
        arrival_rate_per_second=3.0,
        pass_seconds=lambda prompts: 0.15 * prompts,
        most_prompts=4,
        arrival_squared_cv=1 / 8,
    )

    assert latency is not None
    assert 0.15 <= latency.mean < 0.16


@pytest.mark.parametrize("utilisation", [0.7, 0.85, 0.91])
def test_caps_that_are_hardly_reached_change_hardly_anything(utilisation):
    """Long passes bring many arrivals, so what waits has an exponential tail; none of it is cut off."""
    tails = [
        prefill_latency(
            arrival_rate_per_second=utilisation * 40, pass_seconds=lambda n: 0.005 + 0.025 * n, most_prompts=cap
        ).at(99)
        for cap in (30, 40, 128)
    ]
    assert max(tails) < 1.02 * min(tails)
