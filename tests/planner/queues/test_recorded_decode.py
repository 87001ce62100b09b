"""Decode of a recorded stream: against steps of a clock, and queues that can be done by hand."""

import numpy as np
import pytest

from planner.queues.recorded_decode import decode_recorded


def _stepped(ready, iterations, table, step):
    """Processor sharing in small steps of time."""
    left, done = np.full(len(ready), np.nan), np.zeros(len(ready))
    now = 0.0
    while np.isnan(left).any():
        running = np.flatnonzero((np.array(ready) <= now) & np.isnan(left))
        if running.size:
            done[running] += step / table[running.size - 1]
            ended = running[done[running] >= np.array(iterations)[running]]
            left[ended] = now + step
        now += step
    return left


def test_against_small_steps():
    """Thirty requests with iterations that slow as more run: later by what is left of an iteration when they come."""
    random = np.random.default_rng(2)
    table = 0.01 + 0.002 * np.arange(1.0, 31.0)
    ready, iterations = np.sort(random.uniform(0, 3, 30)), random.uniform(10, 80, 30)
    found = decode_recorded(ready, iterations, table, 1)
    late = found.left_seconds - _stepped(ready, iterations, table, 1e-3)
    assert late.min() > -0.01
    assert late.max() < 2 * table[-1]
    assert 0.2 * table[0] < late.mean() < table[-1]


def test_one_slot_is_first_come_first_served():
    """With one slot each runs alone after the one before it."""
    ready, iterations = np.array([0.0, 0.1, 5.0]), np.array([100.0, 50.0, 10.0])
    found = decode_recorded(ready, iterations, np.array([0.01]), 1)
    assert found.left_seconds == pytest.approx([1.0, 1.5, 5.1])
    assert found.busy_seconds == pytest.approx(1.6)


def test_requests_join_between_iterations():
    """One that comes in the middle of an iteration waits for its end; alone it begins at once."""
    table = np.array([0.1, 0.1])
    found = decode_recorded(np.array([0.05, 0.2, 2.0]), np.array([4.0, 4.0, 1.0]), table, 1)
    assert found.left_seconds == pytest.approx([0.45, 0.65, 2.1])


def test_order_of_requests_does_not_matter():
    """Requests may stand in any order; each keeps its place."""
    random = np.random.default_rng(5)
    ready, iterations, table = random.uniform(0, 2, 40), random.uniform(5, 50, 40), np.linspace(0.01, 0.03, 16)
    order = random.permutation(40)
    one, other = (decode_recorded(ready[way], iterations[way], table, 2) for way in (np.arange(40), order))
    assert one.left_seconds[order] == pytest.approx(other.left_seconds)


def test_instances_share_evenly():
    """Four requests on two instances run as two on one."""
    table = np.array([0.01, 0.02, 0.03, 0.04])
    pair = decode_recorded(np.zeros(2), np.full(2, 100.0), table, 1)
    four = decode_recorded(np.zeros(4), np.full(4, 100.0), table, 2)
    assert four.left_seconds == pytest.approx(pair.left_seconds[0])
    assert four.busy_seconds == pytest.approx(2 * pair.busy_seconds)
