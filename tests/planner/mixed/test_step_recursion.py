"""Steps of many instances at once against the same rule as a plain loop over steps, ranks and prompts."""

from collections import deque

import numpy as np
import pytest

from planner.mixed.step_recursion import Instance, Streams, play
from planner.queues.machine import Loads
from planner.serving.latency import Array

_TOKEN, _PAIR, _MEAN, _STEP = 1e-5, 2e-9, 4e-6, 0.01
_RUNNING, _HELD, _HELD_TOKENS, _ANSWER = 5e-5, 3e-9, 400.0, 30.0


def _with_prompts(load: Loads, mean_tokens: Array, running: Array) -> Array:
    tokens, _, pairs, _ = load
    return _STEP + _TOKEN * tokens + _PAIR * pairs + _MEAN * mean_tokens + _RUNNING * running


def _without(mean_tokens: Array, running: Array) -> Array:
    return _STEP + _MEAN * mean_tokens + _RUNNING * running


def _instance(ranks: int, room: float, running: float = 0.0, lives: int = 60) -> Instance:
    return Instance(
        ranks=ranks,
        room=lambda on_rank: np.maximum(room - on_rank, 1.0),
        with_prompts=_with_prompts,
        without=_without,
        pair_tokens=_PAIR / _TOKEN,
        token_seconds=_TOKEN,
        held_seconds=_HELD,
        held_tokens=_HELD_TOKENS,
        answer_tokens=_ANSWER,
        running=running,
        lives=np.full(4, lives),
        most=1e9,
    )


def _streams(ranks: int, lanes: int, reuse: bool, answers: bool = False) -> Streams:
    rng = np.random.default_rng(ranks)
    shape = lanes, 40 * ranks
    tokens = np.rint(rng.lognormal(5.5, 1.0, shape)) + 1
    return Streams(
        arrivals=np.cumsum(rng.exponential(0.06 / ranks, shape), axis=1),
        tokens=tokens,
        reused=np.rint(tokens * rng.random(shape)) if reuse else np.zeros(shape),
        lives=rng.integers(1, 60, shape) if answers else np.zeros(shape, dtype=np.int64),
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
    decoding: list[list[list[float]]] = [[] for _ in range(instance.ranks)]  # steps to go, tokens held
    now, came = 0.0, 0
    while len(ends) < tokens.size:
        while came < tokens.size and arrivals[came] <= now:
            waiting[came % instance.ranks].append([came, 0.0])
            came += 1
        running = sum(map(len, decoding))
        if not running and not any(waiting):
            now = float(arrivals[came])
            continue
        loads, ended = [], []
        for line, own in zip(waiting, decoding, strict=True):
            room, taken, pairs = float(instance.room(np.array(len(own)))), 0.0, 0.0
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
        held = [sum(held for _, held in own) - _HELD_TOKENS * running / instance.ranks for own in decoding]
        own_seconds = [
            _TOKEN * load[0] + _PAIR * load[1] + _HELD * more for load, more in zip(loads, held, strict=True)
        ]
        now += _STEP + _MEAN * mean + _RUNNING * running + max(own_seconds)
        ends.update(dict.fromkeys(ended, now))
        for own in decoding:
            own[:] = [[left - 1, held] for left, held in own if left > 1]
        _begin(decoding, [(number, streams.lives[lane, number], tokens[number] + reused[number]) for number in ended])
    return ends


def _begin(decoding: list[list[list[float]]], ended: list[tuple[int, int, float]]) -> None:
    """Let prompts (number, steps of the answer, tokens) that ended be answered, each on its rank."""
    for number, steps, tokens in ended:
        if steps:
            decoding[number % len(decoding)].append([steps, tokens + _ANSWER])


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("answers", [False, True])
def test_each_lane_is_what_a_plain_loop_makes_of_it(ranks: int, reuse: bool, answers: bool) -> None:
    """Ends of all prompts that are asked for, to rounding; with requests in decode within 2 %, for of steps in a row
    without prompts each is taken to last as the first.
    """
    instance, streams = _instance(ranks, 200.0), _streams(ranks, 5, reuse, answers)
    played = play(instance, streams)
    for lane in range(5):
        ends = _plain(instance, streams, lane)
        expected = [ends[number] for number in range(streams.first, streams.last)]
        assert played.ends[lane] == pytest.approx(expected, rel=0.02 if answers else 1e-9)


def test_steps_are_counted_while_prompts_that_are_asked_for_come() -> None:
    """Their seconds are those between the first and the last such prompt; those without prompts count one by one."""
    instance, streams = _instance(2, 200.0, 8.0, 100_000), _streams(2, 4, False)
    played = play(instance, streams)
    span = streams.arrivals[:, streams.last - 1] - streams.arrivals[:, streams.first]
    assert played.step_seconds == pytest.approx(span, abs=0.2)
    assert (played.prompt_steps < played.steps).all()
    assert (played.steps <= span / _STEP + 1).all()


def test_a_lane_goes_on_where_it_stands() -> None:
    """Half of a prompt of 1,000 tokens is done: five full steps of 100 are left."""
    streams = Streams(
        arrivals=np.array([[0.0, 50.0, 60.0]]),
        tokens=np.array([[1000.0, 10.0, 10.0]]),
        reused=np.zeros((1, 3)),
        lives=np.zeros((1, 3), dtype=np.int64),
        begin_seconds=np.array([1.0]),
        heads=np.zeros((1, 1), dtype=np.int64),
        done=np.array([[0.5]]),
        first=0,
        last=1,
    )
    played = play(_instance(1, 100.0), streams)
    pairs = 500 * 500 + 500 * 501 / 2
    assert played.ends[0, 0] == pytest.approx(1.0 + 5 * (_STEP + (_MEAN + _TOKEN) * 100) + _PAIR * pairs)
