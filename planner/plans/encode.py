"""Encode instances of a plan: their pool, and the requests that leave it, as arrivals at the next role."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats
from planner.instances.encoding import embedding_seconds
from planner.instances.operating import PrefillServer
from planner.plans.pools import EncodePool, limit_of
from planner.question import Question
from planner.serving.played import MANY
from planner.serving.prefill import play_prefill
from planner.serving.streams import Stream, stationary


def encode_pool(
    question: Question, encode: tuple[PrefillServer, int, float], rate_per_second: float
) -> EncodePool | None:
    """Return the encode pool of (server, instances, rate of one) for a question; None beyond saturation."""
    (server, instances, capacity_of_each), times = encode, question.stretch_of("encode")
    each = times * rate_per_second / instances
    latency = server.ttft(each, instances)
    if latency is None:
        return None
    return EncodePool(
        question=server.question,
        candidate=server.candidate,
        machines=question.prefill,
        instances=instances,
        capacity_per_second=instances * capacity_of_each,
        utilisation=each / server.candidate.requests_per_second,
        limit=limit_of(server, times * capacity_of_each, math.inf),
        latency=latency.later(embedding_seconds(question)).scaled(times),
    )


class Leaving(NamedTuple):
    """Requests in the order in which they leave encode, the times at which they leave, and their stays, [requests]."""

    stream: Stream
    encode_seconds: Floats


def leaving(question: Question, pool: EncodePool, rate_per_second: float) -> Leaving:
    """Play an encode pool that requests are dealt to in turn; return its requests as they leave.

    Requests of one pass leave together, once their embeddings have been sent. The next role is played on them.
    """
    server, context = pool.server(question), float(question.model.max_position)
    times = question.stretch_of("encode")
    stream = stationary(question.workload, MANY, most_tokens=context).at_rate(times * rate_per_second)
    none = np.zeros(len(stream), dtype=np.int64)
    pictures = replace(stream, prompt_tokens=none + round(pool.question.workload.input_tokens.mean), reused_tokens=none)
    ready = play_prefill(replace(server.pool, instances=pool.instances), pictures).first_token_seconds
    ready = times * (ready + embedding_seconds(question))
    order, stays = np.argsort(ready, kind="stable"), ready - times * stream.arrival_seconds
    return Leaving(replace(stream.select(order), arrival_seconds=ready[order]), stays[order])
