"""Encode instances: the vision encoder on devices of its own, before prefill or aggregated instances (E-P-D, E-PD).

A request goes through two queues in a row, and one limit holds for both. The search gives each a part of it: encode
instances keep ``encode_share`` of the TTFT limit, what follows keeps the rest, and of the requests that may be late a
tenth may be so in encode and nine tenths behind it. By the union bound both together then keep the limit at its
percentile, however the two waits depend on each other.

An encode instance is a prefill instance whose model is the encoder alone: its prompts are the tokens of the pictures of
a request, its cache holds their embeddings, and these cross to prefill as KV crosses to decode. No encode instance
finds pictures in a cache: what it gets are the requests as they come (vLLM starts encoders without prefix caching).
"""

from dataclasses import replace
from typing import NamedTuple

from models.vision import Encoding
from planner.engines.loader import broken_encoder, load_engine
from planner.engines.rules import Broken
from planner.engines.spec import ShapeName
from planner.instances.kv_links import kv_plane
from planner.instances.space import Row
from planner.question import Pin, Question
from planner.strategy import Strategy
from planner.workload import Lengths

SHARES = (0.25, 0.5)
"""Of the TTFT limit for encode instances, which the search tries."""
LATE = 0.1
"""Of the requests that may be late, those that may be late in encode."""
ROWS = [Row(Strategy(), 0, 0, 1)]
"""Layouts of an encode instance: one device. Nothing of a picture is gained by more, for it stays on one."""


class Ways(NamedTuple):
    """Shares of the TTFT limit that encode instances may have, 0: there are none; and why an engine has none."""

    shares: tuple[float, ...]
    broken: Broken | None


def ways_to_encode(question: Question, shape: ShapeName) -> Ways:
    """Return the ways to encode the pictures of a question, as it asks, that its engine has before a shape."""
    if question.encode != "separate":
        return Ways((0.0,), None)
    broken = None if question.engine == "reference" else broken_encoder(load_engine(question.engine), shape)
    return Ways(() if broken else SHARES, broken)


def apart(question: Question, share: float) -> Question:
    """Return the question of what stands behind encode instances; as it is where the share is 0."""
    return replace(_seeing(question, "apart"), encode_share=share) if share else question


def behind(question: Question) -> Question:
    """Return the question with the part of its TTFT limit, and of late requests, that encode leaves the instances."""
    if not question.encode_share:
        return question
    late = (100 - question.percentile) * (1 - LATE)
    left = question.ttft_seconds * (1 - question.encode_share)
    return replace(question, ttft_seconds=left, percentile=100 - late)


def before(question: Question) -> Question:
    """Return the question that encode instances of another answer: the encoder alone, in its part of the limit.

    Their limit is the share less the transfer of embeddings. Requests have the pictures alone for a prompt.
    """
    pictures = question.workload.pictures
    assert pictures is not None, "only questions with pictures have encode instances"
    asked = _seeing(question, "alone")
    workload = replace(
        asked.workload, input_tokens=Lengths(mean=float(pictures.tokens)), prefix_reuse=0.0, prompts=None
    )
    limit = question.ttft_seconds * question.encode_share - embedding_seconds(question)
    late, pin = (100 - question.percentile) * LATE, Pin(instances=question.pin("encode").instances)
    return replace(
        asked,
        workload=workload,
        ttft_seconds=limit,
        percentile=100 - late,
        encode_share=0.0,
        prefix_pool=None,
        pins=(("encode", pin),),
        microbatches=(1,),
    )


def embedding_seconds(question: Question) -> float:
    """Seconds in which the embeddings of a request's pictures, BF16, cross the plane of KV, over one link."""
    pictures, (rate, latency) = question.workload.pictures, kv_plane(question)
    assert pictures is not None, "only questions with pictures have embeddings"
    return 2.0 * pictures.tokens * question.model.hidden_size / rate + latency


def _seeing(question: Question, encoding: Encoding) -> Question:
    return replace(question, workload=replace(question.workload, encoding=encoding))
