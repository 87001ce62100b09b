"""Decode pools: against a plain Python reference, the birth-death pool, and links first come first served."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from planner.serving.decode import DecodePool, DecodeRequests, DecodeRun, iteration_times, play_decode
from planner.serving.streams import stationary
from planner.workload import Lengths, Workload
from tests.planner.serving.costs import linear_cost

FIXED, PER_REQUEST = 0.01, 1e-3


def _pool(
    ranks: int, slots: int, instances: int = 1, capacity: float = 1e9, per_kv: float = 0.0, **fields: Any
) -> DecodePool:
    cost = linear_cost(FIXED, 0.0, PER_REQUEST, per_kv=per_kv, ranks=ranks)
    return DecodePool(
        times=iteration_times(cost, ranks=ranks, slots=slots, kv_tokens_per_request=0.0, microbatches=1),
        ranks=ranks,
        slots=slots,
        capacity_tokens=capacity,
        instances=instances,
        **({"policy": "round_robin"} | fields),
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


class _Reference:
    """One instance, iteration by iteration."""

    def __init__(self, pool: DecodePool, requests: DecodeRequests, per_kv: float) -> None:
        self.pool, self.requests, self.per_kv = pool, requests, per_kv
        self.line, self.steps = list(range(requests.ready_seconds.size)), requests.iterations.tolist()
        self.taken, self.turns, self.gets = ([0.0] * pool.ranks for _ in range(3))
        self.reserved, self.sends, self.rank = [0.0] * pool.ranks, [0.0] * pool.source_channels, {}
        self.there, self.done, self.left, self.waits = {}, {}, [0.0] * len(self.line), [0.0] * len(self.line)

    def place(self, until: float, freed: float) -> None:
        """Give those who are ready a place, from when there are any, and pull their KV over both ends' links."""
        least = {"least_kv": self.reserved, "least_requests": self.taken, "round_robin": self.turns}[self.pool.policy]
        while self.line and self.requests.ready_seconds[self.line[0]] <= until and min(self.taken) < self.pool.slots:
            p = self.line.pop(0)
            now, held = max(self.requests.ready_seconds[p], freed), self.requests.transfer_seconds[p]
            r = min((r for r in range(self.pool.ranks) if self.taken[r] < self.pool.slots), key=least.__getitem__)
            self.rank[p], self.turns[r] = r, max(self.turns) + 1
            self.taken[r], self.reserved[r] = self.taken[r] + 1, self.reserved[r] + self.requests.reserved_tokens[p]
            out = min(range(len(self.sends)), key=self.sends.__getitem__)
            begun = max(now, self.sends[out], self.gets[r])
            self.waits[p], self.there[p] = begun - now, begun + held + self.pool.latency_seconds
            self.sends[out], self.gets[r] = max(now, self.sends[out]) + held, max(now, self.gets[r]) + held

    def seconds(self) -> float:
        """Return the time of an iteration of those who run."""
        ranks, growth = range(self.pool.ranks), self.requests.answer_tokens / self.requests.iterations
        of = [[p for p in self.done if self.rank[p] == r] for r in ranks]
        cached = max(sum(self.requests.cached_tokens[p] + growth[p] * self.done[p] for p in own) for own in of)
        return FIXED + PER_REQUEST * max(map(len, of)) + self.per_kv * cached

    def play(self) -> list[float]:
        """Return when each has its last token."""
        now = 0.0
        while self.line or self.there or self.done:
            if not self.done:
                self.place(self.requests.ready_seconds[self.line[0]] if not self.there else 0.0, now)
                self.place(min(self.there.values()), now)  # transfers take their turn: none overtakes the first
                now = max(now, min(self.there.values()))
            self.done |= dict.fromkeys([p for p in self.there if self.there[p] <= now], 0)
            self.there = {p: there for p, there in self.there.items() if there > now}
            end = now + self.seconds()
            self.place(end, now)
            self.done = {p: done + 1 for p, done in self.done.items()}
            for p in [p for p, done in self.done.items() if done == self.steps[p]]:
                self.left[p], r = end, self.rank[p]
                self.taken[r], self.reserved[r] = self.taken[r] - 1, self.reserved[r] - self.requests.reserved_tokens[p]
                del self.done[p]
            now = end
            self.place(now, now)
        return self.left


@given(
    gaps=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    ranks=st.integers(1, 3),
    slots=st.integers(1, 6),
    channels=st.integers(1, 2),
    growth=st.sampled_from([1, 3]),
    policy=st.sampled_from(["round_robin", "least_requests", "least_kv"]),
    data=st.data(),
)
def test_requests_leave_when_a_plain_reference_says(gaps, ranks, slots, channels, growth, policy, data):
    """Slots that block, links, joins at the end of an iteration, KV that grows by a token or, with drafts, by several.

    Iterations take whole milliseconds, arrivals and transfers are none apart: who comes as one ends would join it by
    rounding.
    """
    count, per_kv = np.arange(len(gaps)), 1e-3 if ranks == 1 else 0.0
    steps = data.draw(st.lists(st.integers(1, 30), min_size=len(gaps), max_size=len(gaps)))
    ready = (1e-3 * np.cumsum(gaps) + 1e-5 * count).tolist()
    requests = replace(
        _requests(ready, [growth * each for each in steps]),
        iterations=np.array(steps),
        transfer_seconds=8e-3 + 3.7e-7 * count,
    )
    links = {"source_channels": channels, "latency_seconds": 5e-4 + 1.3e-8}
    pool = _pool(ranks, slots, per_kv=per_kv, policy=policy, **links)
    reference = _Reference(pool, requests, per_kv)
    played = play_decode(pool, requests)
    np.testing.assert_allclose(played.left_seconds, reference.play(), rtol=1e-6)
    np.testing.assert_allclose(played.link_wait_seconds, reference.waits, rtol=1e-6, atol=1e-12)


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
