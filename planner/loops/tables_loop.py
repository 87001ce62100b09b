"""Compiled: seconds of a step, read off a ``TableArrays``, and of steps that grow evenly."""

import math

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats
from planner.loops.arrays import TableArrays
from planner.loops.compiled import njit, outermost

__all__ = [
    "LEAST_SECONDS",
    "Line",
    "alone_line",
    "alone_seconds",
    "cell",
    "computing_seconds",
    "head_seconds",
    "keep_worth_loading",
    "lasting",
    "loaded_seconds",
    "pass_seconds",
    "reached",
    "seconds_on",
    "step_seconds",
]


Usual = tuple[float, float, float, float]
"""The usual cached tokens of a rank and what one more takes, its usual requests and what one more takes."""
Line = tuple[float, float, float, float, float]
"""Seconds of a rank with the usual cached tokens and requests, and these."""
LEAST_SECONDS = 1e-9  # of a step: what is read off a table of an odd cost may fall below nothing
_FLAT, _ROUNDING = 1e-15, 1e-9  # seconds by which steps grow that are none, and the part of a step that is rounding


@njit
def cell(axis: Floats, value: float) -> tuple[int, float]:
    """Return the last knot at or below a value that has one above it, and how far beyond it the value lies."""
    low, high = 0, axis.size - 2
    while low < high:
        middle = (low + high + 1) >> 1
        if axis[middle] <= value:
            low = middle
        else:
            high = middle - 1
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


@njit
def _between(values: Floats, low: int, part: float) -> float:
    return float(values[low] * (1.0 - part) + values[low + 1] * part)


@njit
def _inside(times: TableArrays, level: int, tokens: float, context: float, pairs: float, mean: float) -> float:
    """Seconds of a rank with prompts of which one ends, beside the requests of a level."""
    i, x = cell(times.tokens, tokens)
    j, y = cell(times.lengths, pairs / tokens)
    k, z = cell(times.prefixes, context * tokens / pairs)
    s, w, last = 0, 0.0, 0
    if times.shares.size > 1:
        s, w = cell(times.shares, mean / tokens)
        last = 1
    total = 0.0
    for a in range(last + 1):
        at_share = w if a else 1.0 - w
        for b in range(2):
            at_tokens = at_share * (x if b else 1.0 - x)
            for c in range(2):
                row = times.loaded[level, s + a, i + b, j + c]
                total += at_tokens * (y if c else 1.0 - y) * (row[k] * (1.0 - z) + row[k + 1] * z)
    return total


@njit
def loaded_seconds(
    times: TableArrays,
    running: int,
    prompts: tuple[float, float, float, float],
    mean: float,
    sequences: float,
    kv: float,
) -> float:
    """Seconds of a rank that carries ``prompts`` beside its running requests.

    Args:
        times: table of the instance's steps.
        running: requests in decode of all ranks.
        prompts: tokens (above 0), cached tokens that they attend to, query-key pairs, prompts that end.
        mean: prompt tokens of the mean rank.
        sequences: requests in decode of this rank.
        kv: cached tokens of those.
    """
    tokens, context, pairs, ended = prompts
    part = tokens / mean if tokens < mean else 1.0  # shares end at 1: what has less lies between that and no prompts
    level, over = cell(times.levels, float(running))
    seconds = _inside(times, level, tokens / part, context / part, pairs / part, mean)
    if over > 0.0:
        above = _inside(times, level + 1, tokens / part, context / part, pairs / part, mean)
        seconds = seconds * (1.0 - over) + above * over
    i, x = cell(times.running, float(running))
    if part < 1.0:
        seconds = seconds * part + _without(times, i, x, mean) * (1.0 - part)
    if ended > 0.0:
        seconds += (ended - part) * _between(times.row_seconds, i, x)
    else:
        seconds -= part * _between(times.first_row_seconds, i, x)
    return float(max(seconds + _beyond(_usual(times, i, x, running), sequences, kv), LEAST_SECONDS))


@njit
def pass_seconds(times: TableArrays, tokens: float, context: float, pairs: float, ended: float, mean: float) -> float:
    """Seconds of a prefill pass of a rank that carries such prompts, ``mean`` tokens on the mean rank."""
    part = tokens / mean if tokens < mean else 1.0
    seconds = _inside(times, 0, tokens / part, context / part, pairs / part, mean)
    if part < 1.0:
        seconds = seconds * part + _without(times, 0, 0.0, mean) * (1.0 - part)
    row = times.row_seconds[0] * (ended - part) if ended > 0.0 else -part * times.first_row_seconds[0]
    return float(max(seconds + row, LEAST_SECONDS))


@outermost
def step_seconds(times: TableArrays, loads: Floats, ranks: int) -> float:
    """Seconds of a step that all of an instance's ranks leave together: those of its slowest one.

    Args:
        times: table of the instance's steps.
        loads: [loads, 6], what ranks carry that carry anything: requests in decode and cached tokens of those, then
            prompt tokens, cached tokens that they attend to, query-key pairs, and prompts that end.
        ranks: of the instance.
    """
    decoding, prompts, slowest = 0.0, 0.0, LEAST_SECONDS
    for r in range(loads.shape[0]):
        decoding += loads[r, 0]
        prompts += loads[r, 2]
    running, mean = int(decoding), prompts / ranks
    for r in range(loads.shape[0]):
        sequences, kv, tokens = loads[r, 0], loads[r, 1], loads[r, 2]
        context, pairs, ended = loads[r, 3], loads[r, 4], loads[r, 5]
        if tokens == 0.0:
            seconds = alone_seconds(times, running, mean, sequences, kv)
        elif times.levels.size == 1:
            seconds = pass_seconds(times, tokens, context, pairs, ended, mean)
        else:
            seconds = loaded_seconds(times, running, (tokens, context, pairs, ended), mean, sequences, kv)
        slowest = max(slowest, seconds)
    return slowest


@outermost
def computing_seconds(times: TableArrays, budget: int, tokens: int) -> float:
    """Seconds in which full passes compute the first tokens of a prompt on a rank, instead of loading them."""
    return pass_seconds(times, budget, 0.0, budget * (tokens + 1) / 2, 0.0, budget) * tokens / budget


@outermost
def keep_worth_loading(times: TableArrays, budget: int, reused: NDArray[np.int64]) -> None:
    """Drop the reused tokens of prompts [requests] that full passes compute sooner than they come."""
    for p in range(reused.size):
        if reused[p] and computing_seconds(times, budget, reused[p]) < reused[p] * times.loading_seconds:
            reused[p] = 0


@njit
def _usual(times: TableArrays, i: int, x: float, running: int) -> Usual:
    kv, more = _between(times.usual_kv, i, x), _between(times.kv_seconds, i, x)
    return kv, more, running / times.ranks, _between(times.sequence_seconds, i, x)


@njit
def _beyond(usual: Usual, sequences: float, kv: float) -> float:
    """Seconds that a rank takes because it has not the usual cached tokens and requests."""
    return (kv - usual[0]) * usual[1] + (sequences - usual[2]) * usual[3]


@njit
def _without(times: TableArrays, i: int, x: float, mean: float) -> float:
    """Seconds of a rank without prompts."""
    j, y = cell(times.means, mean)
    low = times.alone[i, j] * (1.0 - y) + times.alone[i, j + 1] * y
    high = times.alone[i + 1, j] * (1.0 - y) + times.alone[i + 1, j + 1] * y
    return float(low * (1.0 - x) + high * x)


@njit
def alone_seconds(times: TableArrays, running: int, mean: float, sequences: float, kv: float) -> float:
    """Seconds of a rank without prompts, with so many requests in decode and cached tokens of its own.

    Args: ``running`` requests of all ranks; ``mean`` prompt tokens of the mean rank, which its experts serve, too.
    """
    return seconds_on(alone_line(times, running, mean), sequences, kv)


@njit
def alone_line(times: TableArrays, running: int, mean: float) -> Line:
    """``alone_seconds`` as a line over a rank's cached tokens and requests."""
    i, x = cell(times.running, float(running))
    return _without(times, i, x, mean), *_usual(times, i, x, running)


@njit
def seconds_on(line: Line, sequences: float, kv: float) -> float:
    """Seconds of a rank without prompts, with so many requests in decode and cached tokens of its own."""
    return float(max(line[0] + _beyond(line[1:], sequences, kv), LEAST_SECONDS))


@njit
def head_seconds(times: TableArrays, rows: float) -> float:
    """Seconds of a step's output head, drafts and sampling where so many requests of all ranks get a token."""
    i, x = cell(times.running, rows)
    return _between(times.head_seconds, i, x)


@njit
def lasting(first: float, more: float, steps: int) -> float:
    """Seconds of so many steps: the first so long, each next one so much longer."""
    return first * steps + more * steps * (steps - 1) / 2


@njit
def reached(seconds: float, first: float, more: float, most: int) -> int:
    """Return the least number of such steps that take ``seconds``, at least one and so many at most."""
    slope, seconds = first - more / 2, max(seconds, 0.0)
    root = (math.sqrt(slope * slope + 2 * more * seconds) - slope) / more if more > _FLAT else seconds / first
    return int(min(max(math.ceil(root * (1 - _ROUNDING)), 1), most))
