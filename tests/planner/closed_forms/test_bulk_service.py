"""Elastic bulk service of equal prompts, against M/D/1 and a recursion of the queue itself, and its chain cut short."""

import math

import numpy as np
import pytest

from planner.closed_forms.bulk_lattice import Arrivals, Passes
from planner.closed_forms.bulk_service import _Walk, latency_of, settled_chain, sojourn, thinned_squared_cv
from tests.planner.closed_forms.waits import pollaczek_khinchine_wait

FIXED, SHARE = 2.0, 1.0
CASES = [(1, 4, 0.85), (1, 20, 0.7), (3, 8, 0.85), (16, 4, 0.6), (4, 1, 0.85), (32, 1, 0.6)]
CHAINS = [
    # prompts of the largest pass, seconds of a pass without any, utilisation, squared CV of arrivals
    (16, 2.0, 0.97, 1 / 14),
    (16, 2.0, 0.93, 1 / 7),
    (48, 9.0, 0.95, 1 / 9),
    (2, 1.0, 0.9, 1.0),
]


def _passes(cap, fixed=FIXED, share=SHARE):
    return Passes.tabulated(lambda prompts: fixed + share * prompts, cap)


def _seconds(prompts):
    return FIXED + SHARE * prompts


def _played(rate, cap, instances, requests=150_000):
    """Sojourn times at one of ``instances`` that Poisson arrivals are dealt to in turn."""
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(1 / (rate * instances), requests * instances))[::instances]
    now, first, found = 0.0, 0, np.empty(requests)
    while first < requests:
        now = max(now, arrivals[first])
        last = min(int(np.searchsorted(arrivals, now, side="right")), first + cap)
        now += _seconds(last - first)
        found[first:last] = now - arrivals[first:last]
        first = last
    return found[requests // 50 :]


def _md1_wait_cdf(utilisation, wait):
    """P(W <= t) of M/D/1 with service 1: (1 - rho) sum_k (-rho (t - k))^k / k! e^(rho (t - k)) (Erlang 1909)."""
    return (1 - utilisation) * sum(
        (-utilisation * (wait - k)) ** k / math.factorial(k) * math.exp(utilisation * (wait - k))
        for k in range(int(wait) + 1)
    )


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.85])
def test_one_prompt_per_pass_is_md1(utilisation):
    """Mean rho S / (2 (1 - rho)) + S; the percentiles satisfy Erlang's formula."""
    latency = latency_of(_passes(1, 1.0, 0.0), utilisation)
    assert latency.mean == pytest.approx(1 + pollaczek_khinchine_wait(utilisation, 1.0, 0.0), rel=0.003)
    for level in (90.0, 99.0):
        assert _md1_wait_cdf(utilisation, latency.at(level) - 1) == pytest.approx(level / 100, abs=0.002)


@pytest.mark.parametrize(("cap", "instances", "utilisation"), CASES)
def test_equal_prompts_against_the_recursion(cap, instances, utilisation):
    """Mean within 2 %, percentiles within 4 %: the chain is exact, the sample is not."""
    rate = utilisation * cap / _seconds(cap)
    latency, measured = latency_of(_passes(cap), rate, 1 / instances), _played(rate, cap, instances)
    assert latency.mean == pytest.approx(measured.mean(), rel=0.02)
    for level in (50, 90, 99):
        assert latency.at(level) == pytest.approx(np.percentile(measured, level), rel=0.04)


def test_many_prompts_are_counted_in_steps():
    """A cap of 2000 at 95 % of its rate, in steps of several prompts."""
    rate = 0.95 * 2000 / (200 + 2000)
    settled = rate * 200 / (1 - rate)  # prompts of the pass whose arrivals fill the next
    assert latency_of(_passes(2000, 200.0), rate).mean == pytest.approx(1.5 * (200 + settled), rel=0.03)


def test_lone_prompts_take_their_own_time():
    """At a vanishing rate TTFT is the pass of one prompt at every percentile."""
    latency = latency_of(_passes(64), 1e-9)
    assert (latency.mean, latency.p99) == pytest.approx((3.0, 3.0), rel=0.002)


@pytest.mark.parametrize(("cap", "instances"), [(1, 5), (16, 5), (2, 16), (24, 10)])
def test_latency_rises_with_the_rate(cap, instances):
    """Up to 98 % of saturation, through every change of the way in which arrivals are counted."""
    parts = np.concatenate([np.linspace(0.2, 0.9, 22), np.linspace(0.91, 0.98, 15)])
    found = [latency_of(_passes(cap), part * cap / _seconds(cap), 1 / instances) for part in parts]
    for level in (50.0, 99.0):
        times = np.array([latency.at(level) for latency in found])
        assert np.all(np.diff(times) > -0.004 * times[:-1])


def test_regular_arrivals_hardly_wait_when_a_pass_is_shorter_than_their_gaps():
    """Dealt to 8 instances in turn, arrivals are nearly regular: 45 % busy and one prompt a pass, few wait at all."""
    assert 0.15 <= latency_of(_passes(4, 0.0, 0.15), 3.0, 1 / 8).mean < 0.16


@pytest.mark.parametrize("utilisation", [0.7, 0.85, 0.91])
def test_caps_that_are_hardly_reached_change_hardly_anything(utilisation):
    """Long passes bring many arrivals, so what waits has an exponential tail; none of it is cut off."""
    tails = [latency_of(_passes(cap, 0.005, 0.025), utilisation * 40).at(99) for cap in (30, 40, 128)]
    assert max(tails) < 1.02 * min(tails)


def test_passes_that_leap_near_saturation_are_solved():
    """Groups of eight, next to no fixed part: what a pass brings hardly falls short of the largest one."""
    passes = Passes.tabulated(lambda prompts: 0.1 + np.ceil(prompts / 8) * 8, 200)
    _, masses, _ = sojourn(passes, 0.98 * passes.saturation_per_second, 1 / 64)
    assert masses.sum() == pytest.approx(1)


def test_thinning():
    """Every fourth Poisson arrival is an Erlang-4 gap, squared CV 1/4; a random quarter of Poisson is Poisson."""
    assert thinned_squared_cv(1.0, 4, "round_robin") == 0.25
    assert thinned_squared_cv(1.0, 4, "random") == 1.0
    assert thinned_squared_cv(3.0, 4, "random") == 1.5


def _walk(most, fixed, utilisation, squared_cv):
    """The walk of passes of ``fixed`` and one second a prompt, and its lattice."""
    service = Passes.tabulated(lambda prompts: fixed + prompts, most)
    rate = utilisation * service.saturation_per_second
    arrivals = Arrivals.of(rate, squared_cv)
    chain = settled_chain(service, arrivals, rate, squared_cv)
    brought = chain.passes @ chain.reached
    return _Walk(chain.lattice, brought[:-1], brought[-1]), chain


def _whole(walk):
    """Solved over the whole lattice."""
    return walk._between(walk.lattice.fine, None)


@pytest.mark.parametrize(("most", "fixed", "utilisation", "squared_cv"), CHAINS)
def test_what_is_left_out_is_negligible(most, fixed, utilisation, squared_cv):
    """Solved between its least and a geometric tail, the chain is that of five times as long a lattice."""
    walk, chain = _walk(most, fixed, utilisation, squared_cv)
    whole = _whole(walk._replace(lattice=chain.lattice._replace(cells=5 * chain.lattice.cells, least=1)))
    quick = walk.settled()
    assert walk._tail() is not None
    assert quick[:-1] == pytest.approx(whole[: quick.size - 1], abs=3e-9)
    assert quick[-1] == pytest.approx(whole[quick.size - 1 :].sum(), abs=5e-8)


def test_a_least_that_is_not_negligible_is_noticed():
    """Told that no pass takes fewer than what most take, the chain is solved from one prompt on all the same."""
    walk, chain = _walk(16, 2.0, 0.93, 1 / 14)
    whole = _whole(walk)
    wrong = walk._replace(lattice=chain.lattice._replace(least=14))
    assert wrong.settled() == pytest.approx(whole, abs=1e-12)
