"""Decode as processor sharing, against closed forms and a simulation of requests that advance together."""

import heapq
import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.closed_forms.birth_death import Crowding, DecodeQueue
from planner.serving.latency import Latency
from planner.workload import Lengths
from tests.planner.closed_forms.waits import allen_cunneen_wait

ITERATIONS = 500
PLACES, RATE, TTFT = 4, 3.2, Latency.from_samples(np.linspace(0.2, 0.4, 1000))


def _simulate(rate, base, slope, most, squared_cv, requests=50_000, kv_squared_cv=0.0):
    """Seconds per iteration of each request, waiting included; the clock counts iterations. KV makes them longer."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / rate, requests))
    shape = max(squared_cv, 1e-9)
    lengths = np.maximum(rng.gamma(1 / shape, shape * ITERATIONS, requests), 1.0)
    slower = slope * (rng.gamma(1 / kv_squared_cv, kv_squared_cv, requests) if kv_squared_cv else np.ones(requests))
    now, clock, tau = 0.0, 0.0, base
    came, running, line, found = 0, [], deque(), np.empty(requests)
    while came < requests or running:
        ends = now + (running[0][0] - clock) * tau if running else np.inf
        if came < requests and arrivals[came] < ends:
            clock += (arrivals[came] - now) / tau
            now = arrivals[came]
            line.append(came)
            came += 1
        else:
            now = ends
            clock, request = heapq.heappop(running)
            found[request] = (now - arrivals[request]) / lengths[request]
            tau -= slower[request]
        while line and len(running) < most:
            request = line.popleft()
            heapq.heappush(running, (clock + lengths[request], request))
            tau += slower[request]
    return found[requests // 10 : -requests // 10]


def _state(rate, base, slope, most, squared_cv=0.0, **more):
    lengths = Lengths(mean=ITERATIONS, squared_cv=squared_cv)
    return DecodeQueue(
        iterations_per_request=lengths, iteration_seconds=lambda n: base + slope * n, most_requests=most, **more
    ).state(rate)


@pytest.mark.parametrize("squared_cv", [0.0, 1.0])
@pytest.mark.parametrize(("active", "base", "slope"), [(16, 0.02, 0.0004), (16, 0.01, 0.0006), (128, 0.1, 0.0004)])
def test_tpot_against_simulation(active, base, slope, squared_cv):
    """Mean and p99 of per-request averages within 3 %."""
    rate = active / (ITERATIONS * (base + slope * active))
    tpot = _state(rate, base, slope, 8 * active, squared_cv).tpot
    measured = _simulate(rate, base, slope, 8 * active, squared_cv)
    assert tpot.mean == pytest.approx(measured.mean(), rel=0.03)
    assert tpot.p99 == pytest.approx(np.percentile(measured, 99), rel=0.03)


@pytest.mark.parametrize("squared_cv", [0.0, 1.0])
def test_uneven_kv_spreads_tpot_as_a_simulation_does(squared_cv):
    """Requests of KV with CV 1 on a batch of 16: p99 within 5 %, where equal ones have it 13 % too low."""
    active, base, slope = 16, 0.01, 0.0006
    rate = active / (ITERATIONS * (base + slope * active))
    measured = _simulate(rate, base, slope, 8 * active, squared_cv, kv_squared_cv=1.0)
    told = _state(rate, base, slope, 8 * active, squared_cv, kv_squared_cv=1.0, kv_seconds=lambda n: slope * n).tpot
    assert told.mean == pytest.approx(measured.mean(), rel=0.03)
    assert told.at(99) == pytest.approx(np.percentile(measured, 99), rel=0.05)
    assert _state(rate, base, slope, 8 * active, squared_cv).tpot.at(99) < 0.88 * np.percentile(measured, 99)


def test_full_instance_against_simulation():
    """72 places, 64 running on average: waits of Allen and Cunneen carry the percentile, within 15 %."""
    rate = 60 / (ITERATIONS * (0.02 + 0.0005 * 60))
    state = _state(rate, 0.02, 0.0005, 72)
    measured = _simulate(rate, 0.02, 0.0005, 72, 0.0, requests=150_000)
    assert state.waiting_probability > 0.2
    assert state.tpot.mean == pytest.approx(measured.mean(), rel=0.1)
    assert state.tpot.p99 == pytest.approx(np.percentile(measured, 99), rel=0.15)


def test_constant_iterations_are_mmc():
    """tau without slope makes every place a server of its own: M/M/c with c = 8, S = 5 s, a = 6."""
    state = _state(6 / 5, 0.01, 0.0, 8, 1.0)
    assert state.mean_wait_seconds == pytest.approx(allen_cunneen_wait(8, 6 / 5, 5.0, 1.0, 1.0))
    assert state.mean_requests == pytest.approx(6.0)
    assert state.mean_requests / state.rate_per_second == pytest.approx(5.0)
    assert state.utilisation == pytest.approx(0.75)


def test_transfer_and_accepted_tokens_enter_tpot():
    """One second of transfer over 500 iterations is 2 ms of each; two tokens per iteration halve all of it."""
    plain = _state(0.5, 0.02, 0.0005, 64)
    moved = _state(0.5, 0.02, 0.0005, 64, transfer_seconds=1.0, tokens_per_iteration=2.0)
    assert moved.tpot.mean == pytest.approx((plain.tpot.mean + 0.002) / 2)
    assert moved.tpot.p99 == pytest.approx((plain.tpot.p99 + 0.002) / 2)


def test_overloaded_instance_has_no_state():
    """A full instance finishes most / (I tau(most)) requests per second."""
    top = 64 / (ITERATIONS * (0.02 + 0.0005 * 64))
    assert _state(top, 0.02, 0.0005, 64) is None


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 300), st.floats(0.1, 0.9), st.floats(0, 2))
def test_more_load_never_helps(most, utilisation, squared_cv):
    """Occupancy and TPOT rise with the rate."""
    top = most / (ITERATIONS * (0.02 + 0.0005 * most))
    low, high = (_state(u * top, 0.02, 0.0005, most, squared_cv) for u in (utilisation, utilisation + 0.05))
    assert high.mean_requests > low.mean_requests
    assert high.tpot.mean >= low.tpot.mean
    assert high.tpot.p99 >= low.tpot.p99 * 0.99


def _queue(most):
    return DecodeQueue(
        iterations_per_request=Lengths(mean=ITERATIONS),
        iteration_seconds=lambda n: 0.02 + 0.0001 * n,
        most_requests=most,
    )


def test_capacity_keeps_its_limit_tightly():
    """50 ms at p99 leaves the mean occupancy a little below the 300 requests at which an iteration takes 50 ms."""
    queue = _queue(512)
    found = queue.state(queue.capacity(0.05, 99))
    assert 0.0495 < found.tpot.p99 <= 0.05
    assert 240 < found.mean_requests < 300


def test_capacity_is_bounded_by_room_or_by_nothing():
    """With room for 64 the instance fills before the limit binds; below one iteration no rate will do."""
    queue = _queue(64)
    assert queue.capacity(0.5, 99) == pytest.approx(0.98 * 64 / (ITERATIONS * 0.0264))
    assert queue.capacity(0.0200, 99) is None


def test_instances_filled_alike_vary_together():
    """Nine instances with one line: the same mean occupancy, and a third of its spread where nobody waits."""

    def state(instances):
        return DecodeQueue(
            iterations_per_request=Lengths(mean=50.0),
            iteration_seconds=lambda running: 0.5 + 0.005 * running,
            most_requests=400,
        ).state(1.0, instances)

    one, nine = state(1), state(9)
    assert nine.rate_per_second == one.rate_per_second
    assert nine.mean_requests == pytest.approx(one.mean_requests, rel=0.02)
    assert nine.tpot.mean == pytest.approx(one.tpot.mean, rel=0.01)
    spreads = [found.tpot.p99 - found.tpot.p50 for found in (one, nine)]
    assert spreads[1] == pytest.approx(spreads[0] / 3, rel=0.1)
    assert nine.waiting_probability <= one.waiting_probability


def _crowding(room_prompts: float) -> Crowding:
    state = DecodeQueue(
        iterations_per_request=Lengths(mean=100.0, squared_cv=1.0),
        iteration_seconds=lambda running: np.full_like(running, 0.01),
        most_requests=PLACES,
    ).state(RATE)
    return Crowding.before(state, RATE, room_prompts, TTFT)


@pytest.mark.parametrize("room", [2, 6])
def test_the_share_is_that_of_the_line_of_erlang(room: int) -> None:
    """Room for so many beside those in passes: Erlang's C times the load to the power of the room."""
    masses = [RATE**n / math.factorial(n) for n in range(PLACES)]
    full = RATE**PLACES / math.factorial(PLACES) / (1 - RATE / PLACES)
    found = _crowding(room + RATE * TTFT.mean)
    assert found.share == pytest.approx(full / (sum(masses) + full) * (RATE / PLACES) ** room)
    assert found.seconds == pytest.approx(1 / (PLACES - RATE))


def test_ttft_has_the_wait_of_those_who_find_no_room() -> None:
    """The mean exactly, the tail as far as they are many; nothing where there is room for all."""
    found = _crowding(10.0)
    later = found.delayed(TTFT)
    assert later.mean == pytest.approx(TTFT.mean + found.share * found.seconds)
    assert later.p99 > TTFT.p99 + 1
    assert later.p50 == pytest.approx(TTFT.p50, rel=0.1)
    assert _crowding(200.0).delayed(TTFT) is TTFT
