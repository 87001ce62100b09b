"""`--sessions`: turns that follow each other, as kinds of prompts with what each finds of the turns before."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ground.errors import BadInput
from ground.traces import Trace, reused_tokens, select
from ground.units import parse_count, parse_duration
from planner.serving.sessions import session_trace
from planner.workload import Lengths, Sessions, Traffic, Workload
from planner.workload import Trace as Rows

MOST_IN_A_SESSION = 10_000
_REQUESTS, _SEED = 20_000, 0
_TOKEN_SECONDS = 0.05
"""Of an answer, by which turns are stamped: the default limit of TPOT."""


def read_sessions(text: str, new_tokens: Lengths) -> Sessions:
    """Return sessions such as ``turns=4,think=30s,branches=3,answers=dropped``; BadInput naming the flag."""
    given = {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in text.split(","))}
    known, answers = {"turns", "think", "branches", "answers"}, given.get("answers", "kept")
    if "turns" not in given or given.keys() - known or answers not in ("kept", "dropped"):
        raise BadInput(f"--sessions: {text[:60]!r} is not such as turns=4,think=30s,branches=3,answers=kept or dropped")
    shape = Sessions(
        turns=parse_count(given["turns"], "--sessions turns"),
        new_tokens=new_tokens,
        think_seconds=parse_duration(given.get("think", "0s"), "--sessions think", allow_zero=True),
        branches=parse_count(given.get("branches", "1"), "--sessions branches"),
        keeps_answers=answers == "kept",
    )
    if shape.turns * shape.branches > MOST_IN_A_SESSION:
        raise BadInput(f"--sessions: turns times branches must be at most {MOST_IN_A_SESSION}")
    return shape


def longest_tokens(shape: Sessions, answer: Lengths) -> float:
    """Return the mean tokens of a session when its last turn has its answer."""
    return shape.turns * shape.branches * (shape.new_tokens.mean + answer.mean)


def sessions_workload(shape: Sessions, answer: Lengths, rate: float | None, hits: Callable[[Trace], Trace]) -> Workload:
    """Return the traffic of sessions in full swing: those under way at the ends of what is played do not count.

    Branches come at once: of Poisson groups the variance of counts is their size times the mean, which is the squared
    CV of gaps that queues take.

    Args: ``rate`` of requests, on which depends what a pool of a size still has; ``hits`` in that pool.
    """
    base = Workload(input_tokens=shape.new_tokens, output_tokens=answer)
    turn = _TOKEN_SECONDS * answer.mean
    ramp = shape.turns * (shape.think_seconds + turn)
    per_second = rate or _REQUESTS / (10 * ramp + 1)
    count = _REQUESTS + int(min(2 * ramp * per_second, 5 * _REQUESTS))
    found = hits(session_trace(base, shape, per_second, count, _SEED, turn))
    arrival = found.arrival_seconds
    begun = np.isnan(found.delay_seconds) if found.delay_seconds is not None else np.ones_like(arrival, dtype=bool)
    inside = (arrival >= 2 * ramp) & (arrival <= arrival[begun][-1])
    kept = inside if inside.sum() > _REQUESTS / 10 else np.ones_like(inside)
    traffic = Traffic.from_trace(Rows.of(select(found, np.flatnonzero(kept)), reused_tokens(found)[kept])).workload
    branches = float(shape.branches)
    return replace(traffic, output_tokens=answer, length_covariance=0.0, arrival_squared_cv=branches, sessions=shape)
