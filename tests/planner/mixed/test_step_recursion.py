"""Steps of many instances at once against the same rule as a plain loop over steps, ranks and prompts."""

from collections import deque

import numpy as np
import pytest

from planner.mixed.step_recursion import Instance, Streams, play
from planner.queues.machine import Loads
from planner.queues.queueing import Array

_TOKEN, _PAIR, _MEAN, _STEP = 1e-5, 2e-9, 4e-6, 0.01


def _with_prompts(load: Loads, mean_tokens: Array) -> Array:
    tokens, _, pairs, _ = load
    return _STEP + _TOKEN * tokens + _PAIR * pairs + _MEAN * mean_tokens


def _without(mean_tokens: Array) -> Array:
    return 1.5 * _STEP + _MEAN * mean_tokens


def _instance(ranks: int, room: float, pauses: bool) -> Instance:
    return Instance(
        ranks=ranks,
        room=room,
        with_prompts=_with_prompts,
        without=_without,
        pair_tokens=_PAIR / _TOKEN,
        pauses=pauses,
    )


def _streams(ranks: int, lanes: int, reuse: bool) -> Streams:
    rng = np.random.default_rng(ranks)
    shape = lanes, 40 * ranks
    tokens = np.rint(rng.lognormal(5.5, 1.0, shape)) + 1
    return Streams(
        arrivals=np.cumsum(rng.exponential(0.06 / ranks, shape), axis=1),
        tokens=tokens,
        reused=np.rint(tokens * rng.random(shape)) if reuse else np.zeros(shape),
        begin_seconds=np.zeros(lanes),
        heads=np.zeros((lanes, ranks), dtype=np.int64),
        done=np.zeros((lanes, ranks)),
        first=2 * ranks,
        last=30 * ranks,
    )


def _plain(instance: Instance, streams: Streams, lane: int) -> dict[int, float]:
    """Return when each prompt of a lane has its first token, one step after the other."""
    arrivals, tokens, reused = (each[lane] for each in (streams.arrivals, streams.tokens, streams.reused))
    waiting: list[deque[list[float]]] = [deque() for _ in range(instance.ranks)]
    ends: dict[int, float] = {}
    now, came = 0.0, 0
    while len(ends) < tokens.size:
        while came < tokens.size and arrivals[came] <= now:
            waiting[came % instance.ranks].append([came, 0.0])
            came += 1
        if instance.pauses and not any(waiting):
            now = float(arrivals[came])
            continue
        loads, ended = [], []
        for line in waiting:
            room, taken, pairs = instance.room, 0.0, 0.0
            while line and room > 0:
                number, done = int(line[0][0]), line[0][1]
                part = min(room, tokens[number] - done)
                before = reused[number] + done
                pairs += part * before + part * (part + 1) / 2
                taken, room = taken + part, room - part
                line[0][1] += part
                if line[0][1] < tokens[number]:
                    break
                ended.append(number)
                line.popleft()
            loads.append((taken, pairs))
        mean = sum(taken for taken, _ in loads) / instance.ranks
        lasts = 1.5 * _STEP + _MEAN * mean
        for taken, pairs in loads:
            if taken:
                lasts = max(lasts, _STEP + _TOKEN * taken + _PAIR * pairs + _MEAN * mean)
        now += lasts
        ends.update(dict.fromkeys(ended, now))
    return ends


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("pauses", [False, True])
def test_each_lane_is_what_a_plain_loop_makes_of_it(ranks: int, reuse: bool, pauses: bool) -> None:
    """Ends of all prompts that are asked for, to rounding."""
    instance, streams = _instance(ranks, 200.0, pauses), _streams(ranks, 5, reuse)
    played = play(instance, streams)
    for lane in range(5):
        ends = _plain(instance, streams, lane)
        expected = [ends[number] for number in range(streams.first, streams.last)]
        assert played.ends[lane] == pytest.approx(expected, rel=1e-9)


def test_steps_are_counted_while_prompts_that_are_asked_for_come() -> None:
    """Their seconds are those between the first and the last such prompt; those without prompts count one by one."""
    instance, streams = _instance(2, 200.0, False), _streams(2, 4, False)
    played = play(instance, streams)
    span = streams.arrivals[:, streams.last - 1] - streams.arrivals[:, streams.first]
    assert played.step_seconds == pytest.approx(span, abs=0.2)
    assert (played.prompt_steps < played.steps).all()
    assert (played.steps <= span / _STEP + 1).all()


def test_a_lane_goes_on_where_it_stands() -> None:
    """Half of a prompt of 1,000 tokens is done: five full steps of 100 are left, as long as those without."""
    streams = Streams(
        arrivals=np.array([[0.0, 50.0, 60.0]]),
        tokens=np.array([[1000.0, 10.0, 10.0]]),
        reused=np.zeros((1, 3)),
        begin_seconds=np.array([1.0]),
        heads=np.zeros((1, 1), dtype=np.int64),
        done=np.array([[0.5]]),
        first=0,
        last=1,
    )
    played = play(_instance(1, 100.0, True), streams)
    assert played.ends[0, 0] == pytest.approx(1.0 + 5 * (1.5 * _STEP + _MEAN * 100))
