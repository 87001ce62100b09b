"""Prompts that find prefill full of those that wait for decode, beside M/M/c."""

import math

import numpy as np
import pytest

from planner.closed_forms.birth_death import DecodeQueue
from planner.closed_forms.crowding import Crowding
from planner.serving.latency import Latency
from planner.workload import Lengths

PLACES, RATE, TTFT = 4, 3.2, Latency.from_samples(np.linspace(0.2, 0.4, 1000))


def _crowding(room_prompts: float) -> Crowding:
    state = DecodeQueue(
        iterations_per_request=Lengths(mean=100.0, squared_cv=1.0),
        iteration_seconds=lambda running: np.full_like(running, 0.01),
        most_requests=PLACES,
    ).state(RATE)
    assert state is not None
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
