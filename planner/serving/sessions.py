"""Sessions as a stream: turns that follow each other, each prompt the whole conversation so far and new tokens."""

import math
from dataclasses import replace

import numpy as np

from ground.traces import Trace, with_blocks
from planner.serving.streams import stationary
from planner.workload import Sessions, Workload


def session_trace(
    workload: Workload, shape: Sessions, rate_per_second: float, requests: int, seed: int = 0, turn_seconds: float = 0.0
) -> Trace:
    """Return at least so many requests of sessions that begin at random, and the prefix that each prompt reuses.

    A turn is ``branches`` requests at once. When all have their answers, an exponential pause follows (a user who
    thinks, a tool that works), then the next turn. Its prompt holds the prompts and answers of all before it.

    Args:
        workload: law of answer lengths; ``shape.new_tokens`` is the law of new prompt tokens.
        rate_per_second: mean rate of requests.
        turn_seconds: time from a turn to its answers, for the arrival times; the pause is added.
    """
    each = shape.turns * shape.branches
    count = math.ceil(requests / each)
    law = replace(workload, input_tokens=shape.new_tokens, prompts=None, prefix_reuse=0.0, length_covariance=0.0)
    drawn = stationary(law, count * each, seed=seed)
    new, answers = (
        column.reshape(count, shape.turns, shape.branches) for column in (drawn.prompt_tokens, drawn.answer_tokens)
    )
    said = np.cumsum((new + answers).sum(axis=2), axis=1)
    prompts = new + np.concatenate([np.zeros((count, 1), dtype=np.int64), said[:, :-1]], axis=1)[:, :, None]
    random = np.random.default_rng([seed, 7])
    pauses = (
        random.exponential(shape.think_seconds, (count, shape.turns))
        if shape.think_seconds
        else np.zeros((count, shape.turns))
    )
    starts = np.cumsum(random.exponential(each / rate_per_second, count))
    pauses[:, 0] = 0.0
    stamps = starts[:, None] + np.cumsum(pauses, axis=1) + turn_seconds * np.arange(shape.turns)
    delays = np.full(new.shape, -1.0)
    delays[:, :, 0] = pauses
    delays[:, 0, 0] = np.nan
    arrival = np.broadcast_to(stamps[:, :, None], new.shape).ravel()
    order = np.argsort(arrival, kind="stable")
    trace = Trace(
        name="sessions",
        format="mooncake",
        arrival_seconds=arrival[order] - arrival[order[0]],
        input_tokens=prompts.ravel()[order],
        output_tokens=answers.ravel()[order],
        session=np.repeat(np.arange(count), each)[order],
        delay_seconds=delays.ravel()[order],
    )
    return with_blocks(trace, keeps_answers=shape.keeps_answers)
