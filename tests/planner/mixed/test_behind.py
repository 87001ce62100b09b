"""Steps behind a request's own prompt: against steps that are played, dealt in turn and at random."""

from collections import deque

import numpy as np
import pytest

from planner.manifest.layout import Degrees
from planner.mixed.behind import seconds_behind
from planner.mixed.even import extra_behind, extra_beside
from planner.mixed.steps import Aggregate, StepTable
from planner.serving.latency import Array
from planner.workload import Lengths, Workload
from tests.manifests import cost

_RUNNING = 4.0
_PER_PROMPT = 0.05
"""Seconds; it counts for bursts and more than eight phases."""


def _table(prompt: float, budget: float, prompt_cv2: float = 0.0) -> StepTable:
    """Return the steps of a made-up instance of one rank."""
    aggregate = Aggregate(
        cost=cost(Degrees(attention_tp=1, attention_dp=1, moe_ep=1), 16),
        workload=Workload(input_tokens=Lengths(mean=prompt, squared_cv=prompt_cv2), output_tokens=Lengths(mean=32.0)),
        ranks=1,
        budget_tokens=budget,
        most_requests=64,
    )
    return StepTable(aggregate)


def _played(table: StepTable, rate: float, phases: int, steps: int) -> tuple[Array, Array]:
    """Durations and ended prompts of steps beside four running requests; every phases-th of random arrivals comes."""
    rng, aggregate = np.random.default_rng(5), table.aggregate
    room = float(aggregate.room(np.array(_RUNNING)))
    places = np.linspace(0.0, room, 200)
    lasts = table.seconds(_RUNNING, places, places)
    new, weights = aggregate.new_tokens, aggregate.prompts.weights
    lengths = (
        new[rng.choice(new.size, 1_000_000, p=weights / weights.sum())] if new.size > 1 else np.full(10**6, new[0])
    )
    arrivals = np.cumsum(rng.gamma(phases, 1 / phases, lengths.size) / rate)
    seconds, ended = np.zeros(steps), np.zeros(steps)
    waiting: deque[float] = deque()
    now, come = 0.0, 0
    for step in range(steps):
        while arrivals[come] <= now:
            waiting.append(float(lengths[come]))
            come += 1
        left = room
        while waiting and left > 0:
            takes = min(waiting[0], left)
            left -= takes
            waiting[0] -= takes
            if waiting[0] <= 0:
                waiting.popleft()
                ended[step] += 1
        seconds[step] = float(np.interp(room - left, places, lasts))
        now += seconds[step]
    return seconds, ended


@pytest.mark.parametrize(
    ("prompt", "budget", "squared_cv", "phases", "answer", "busy"),
    [
        (1024.0, 2500.0, 0.0, 1, 8, 0.7),
        (1024.0, 2500.0, 0.0, 8, 8, 0.7),
        (1024.0, 2500.0, 0.0, 2, 32, 0.8),
        (2048.0, 700.0, 0.0, 1, 16, 0.6),
        (2048.0, 700.0, 0.0, 8, 16, 0.7),
        (1024.0, 2500.0, 1.0, 1, 16, 0.6),
        (1024.0, 2500.0, 1.0, 4, 16, 0.6),
    ],
)
def test_steps_behind_a_prompt_are_as_long_as_played(
    prompt: float, budget: float, squared_cv: float, phases: int, answer: int, busy: float
) -> None:
    """Prompts that fit and that are cut, alike and not, at random and in turn: means over an answer within 7 %."""
    table = _table(prompt, budget, squared_cv)
    room = table.aggregate.room(np.array([_RUNNING]))
    rate = busy * float(room[0] / table.seconds(_RUNNING, room, room)[0]) / prompt
    seconds, ended = _played(table, rate, phases, 100_000)
    until, mean = np.append(0.0, np.cumsum(seconds)), float(seconds.mean())
    behind = until[1 + answer :] - until[1:-answer]
    found = float(behind @ ended[: behind.size]) / float(ended[: behind.size].sum())
    told = answer * mean + seconds_behind(table, _RUNNING, (rate, 1 / phases), float(answer), _PER_PROMPT)
    assert told == pytest.approx(found, rel=0.07)


def test_it_matters_that_prompts_come_in_turn() -> None:
    """The next is not soon behind: with as many prompts, steps are shorter by a prompt or so."""
    table = _table(1024.0, 2500.0)
    room = table.aggregate.room(np.array([_RUNNING]))
    rate = 0.7 * float(room[0] / table.seconds(_RUNNING, room, room)[0]) / 1024
    random, turns, more = (
        seconds_behind(table, _RUNNING, (rate, each), 16.0, _PER_PROMPT) for each in (1.0, 0.25, 0.125)
    )
    assert random > 0 and random > turns > more
    assert seconds_behind(table, _RUNNING, (rate, 3.0), 16.0, _PER_PROMPT) > random


@pytest.mark.parametrize("phases", [2, 5])
def test_prompts_behind_and_beside_one_of_a_renewal_process(phases: int) -> None:
    """Erlang gaps, drawn: what comes within a time behind one, and the variance of what comes within a time."""
    rng = np.random.default_rng(2)
    times = np.cumsum(rng.gamma(phases, 1 / phases, 200_000))
    for gaps in (0.3, 1.0, 4.0):
        first = rng.uniform(0.0, 0.2, times.size)
        behind = times.searchsorted(times + first + gaps) - times.searchsorted(times + first)
        assert extra_behind(0.2, gaps, 1 / phases) == pytest.approx(behind[:-50].mean() - gaps, abs=0.01)
        counts = np.diff(times.searchsorted(np.arange(0.0, times[-1], gaps)))
        assert extra_beside(gaps, 1 / phases) == pytest.approx(counts.var() / gaps - 1, abs=0.02)
    assert extra_behind(0.2, 1.0, 4.0) == 1.5 and extra_beside(1.0, 4.0) == 3.0
