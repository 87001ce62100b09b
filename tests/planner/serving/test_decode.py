"""Decode pools: against a plain Python reference, the birth-death pool, and links first come first served."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from planner.serving.decode import DecodePool, DecodeRequests, DecodeRun, iteration_times, play_decode
from planner.serving.streams import stationary
from planner.workload import Lengths, Workload
from tests.planner.serving.costs import linear_cost

FIXED, PER_REQUEST = 0.01, 1e-3


def _pool(
    ranks: int, slots: int, instances: int = 1, capacity: float = 1e9, per_kv: float = 0.0, **links: float
) -> DecodePool:
    cost = linear_cost(FIXED, 0.0, PER_REQUEST, per_kv=per_kv, ranks=ranks)
    return DecodePool(
        times=iteration_times(cost, ranks=ranks, slots=slots, kv_tokens_per_request=0.0, microbatches=1),
        ranks=ranks,
        slots=slots,
        capacity_tokens=capacity,
        instances=instances,
        policy="round_robin",
        **links,
    )


def _requests(ready: list[float], answers: list[int], transfer: float = 0.0) -> DecodeRequests:
    count = len(ready)
    return DecodeRequests(
        ready_seconds=np.array(ready),
        cached_tokens=np.full(count, 10.0),
        answer_tokens=np.array(answers, dtype=np.int64),
        reserved_tokens=np.array(answers) + 10.0,
        transfer_seconds=np.full(count, transfer),
        source=np.zeros(count, dtype=np.int64),
    )


def _reference(ready: list[float], steps: list[int], growth: int, slots: int) -> list[float]:
    """One instance with one rank, iteration by iteration; each of 10 cached tokens takes a millisecond, too."""
    waiting, left = list(range(len(ready))), [0.0] * len(ready)
    running: dict[int, int] = {}
    now = 0.0
    while waiting or running:
        if not running:
            now = max(now, ready[waiting[0]])
        while waiting and ready[waiting[0]] <= now and len(running) < slots:
            joined = waiting.pop(0)
            running[joined] = steps[joined]
        cached = sum(10 + growth * (steps[each] - more) for each, more in running.items())
        now += FIXED + PER_REQUEST * len(running) + 1e-3 * cached
        for each in list(running):
            running[each] -= 1
            if not running[each]:
                left[each] = now
                del running[each]
    return left


@given(
    gaps=st.lists(st.integers(1, 200), min_size=1, max_size=30),
    slots=st.integers(1, 6),
    growth=st.sampled_from([1, 3]),
    data=st.data(),
)
def test_requests_leave_when_a_plain_reference_says(
    gaps: list[int], slots: int, growth: int, data: st.DataObject
) -> None:
    """Slots that block, joins at the end of an iteration, KV that grows by a token or, with drafts, by several.

    Iterations take whole milliseconds, arrivals are none apart: who comes as one ends would join it by rounding.
    """
    steps = data.draw(st.lists(st.integers(1, 30), min_size=len(gaps), max_size=len(gaps)))
    ready = (1e-3 * np.cumsum(gaps) + 1e-5 * np.arange(len(gaps))).tolist()
    requests = replace(_requests(ready, [growth * each for each in steps]), iterations=np.array(steps))
    played = play_decode(_pool(1, slots, per_kv=1e-3), requests)
    np.testing.assert_allclose(played.left_seconds, _reference(ready, steps, growth, slots), rtol=1e-6)


def test_kv_crosses_links_first_come_first_served() -> None:
    """Two prompts of one group end together: the second transfer waits for the first."""
    played = play_decode(_pool(2, 4, latency_seconds=0.5), _requests([0.0, 0.0], [1, 1], transfer=2.0))
    np.testing.assert_allclose(played.there_seconds, [2.5, 4.5])
    np.testing.assert_allclose(played.link_wait_seconds, [0.0, 2.0])


def test_memory_that_is_set_aside_blocks() -> None:
    """A rank with KV for one request serves one after the other, whatever its slots."""
    played = play_decode(_pool(1, 8, capacity=30.0), _requests([0.0, 0.0], [20, 20]))
    np.testing.assert_allclose(played.left_seconds, [20 * 0.011, 40 * 0.011])


def test_occupancy_is_that_of_a_birth_death_process() -> None:
    """Poisson arrivals: the mean residence is that of processor sharing with iterations that slow as it fills."""
    workload = Workload(input_tokens=Lengths(mean=10), output_tokens=Lengths(mean=200, squared_cv=1.0))
    stream = stationary(workload, 40_000, seed=3)
    rate, slots = 1.2, 64
    answers = np.maximum(stream.answer_tokens - 1, 1)
    requests = _requests((stream.arrival_seconds / rate).tolist(), answers.tolist())
    played = play_decode(_pool(1, slots), requests)
    running = np.arange(1, slots + 1)
    logs = np.append(0.0, np.cumsum(np.log(rate * answers.mean() * (FIXED + PER_REQUEST * running) / running)))
    chances = np.exp(logs - logs.max())
    expected = float(chances[1:] @ running / chances.sum()) / rate
    inner = slice(4000, -4000)
    residence = (played.left_seconds - requests.ready_seconds)[inner].mean()
    assert residence == pytest.approx(expected, rel=0.03)


def test_a_stream_in_parts_is_served_as_a_whole() -> None:
    """What has not left is carried over, longer answers included that come in a later part."""
    rng = np.random.default_rng(5)
    ready, answers = np.cumsum(rng.exponential(0.05, 900)), rng.integers(1, 40, 900)
    answers[600:] *= 5
    requests = _requests(ready.tolist(), answers.tolist(), transfer=0.001)
    pool = _pool(2, 6, 2, latency_seconds=0.01)
    run, found = DecodeRun(pool), np.zeros(900)
    for first, last in pairwise([0, 1, 300, 650, 900]):
        until = ready[last - 1] if last < 900 else np.inf
        gone = run.play(requests.select(np.arange(first, last)), until)
        found[gone.number] = gone.left_seconds
    np.testing.assert_allclose(found, play_decode(pool, requests).left_seconds, rtol=1e-9)
