"""Encode instances: the vision encoder on devices of its own, before prefill or aggregated instances (E-P-D, E-PD).

A request passes two queues in a row under one TTFT limit. The search splits that limit: encode instances keep
``encode_share`` of it, the instances behind them the rest. Of the requests that may be late, a tenth may be late in
encode and nine tenths behind it. By the union bound both together keep the limit at its percentile, however the two
waits are correlated.

An encode instance is modelled as a prefill instance whose model is the encoder alone: its prompts are the picture
tokens of a request, its cache holds their embeddings, and embeddings cross to prefill as KV crosses to decode. Pictures
are never found in a cache (vLLM starts encoders without prefix caching).
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from models.parameters import Encoding
from planner.engines.loader import accelerator_of, broken_encoder, load_engine
from planner.engines.rules import Broken
from planner.engines.spec import ShapeName
from planner.instances.candidates import pass_seconds
from planner.instances.kv_links import kv_plane
from planner.instances.space import Row, built
from planner.question import Pin, Question
from planner.strategy import Strategy
from planner.workload import Lengths

SHARES = (0.25, 0.5)  # shares of the TTFT limit for encode instances that the search tries
LATE = 0.1  # share of the late requests that may be late in encode
ROWS = [Row(Strategy(), 0, 0, 1)]
"""Layouts of an encode instance: one device. A picture is encoded on one device, so more devices gain nothing."""


class Ways(NamedTuple):
    """Shares of the TTFT limit for encode instances (0: no encode instances), and why an engine supports none."""

    shares: tuple[float, ...]
    broken: Broken | None


def ways_to_encode(question: Question, shape: ShapeName) -> Ways:
    """Return the ways to encode the pictures of a question that the question allows and its engine supports."""
    if question.encode != "separate":
        return Ways((0.0,), None)
    kind, architecture = accelerator_of(question.prefill.hardware), question.model.architecture
    named = question.engine != "reference"
    broken = broken_encoder(load_engine(question.engine), shape, architecture, kind) if named else None
    return Ways(() if broken else SHARES, broken)


def apart(question: Question, share: float) -> Question:
    """Return the question for the instances behind encode instances; unchanged where the share is 0."""
    return replace(_seeing(question, "apart"), encode_share=share) if share else question


def behind(question: Question) -> Question:
    """Return the question with the parts of the TTFT limit and of late requests that remain behind encode."""
    if not question.encode_share:
        return question
    late = (100 - question.percentile) * (1 - LATE)
    left = question.ttft_seconds * (1 - question.encode_share)
    return replace(question, ttft_seconds=left, percentile=100 - late)


def before(question: Question) -> Question:
    """Return the question for encode instances: the encoder as the model, within its part of the TTFT limit.

    Their limit is the share less the transfer of embeddings. Their prompts are the pictures alone.
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
    """Seconds to send the BF16 embeddings of a request's pictures over one link of the KV plane."""
    pictures, (rate, latency) = question.workload.pictures, kv_plane(question)
    assert pictures is not None, "only questions with pictures have embeddings"
    return 2.0 * pictures.tokens * question.model.hidden_size / rate + latency


def encode_seconds(question: Question) -> float:
    """Seconds of a request in encode instances before the instances of a question, with nothing else to do."""
    asked = before(question)
    (own,) = built(asked, "prefill", ROWS)
    took = np.asarray(pass_seconds(own.cost, asked.workload, 1.0, 1.0, 1, 1))
    return float(took.ravel()[0]) + embedding_seconds(question)


def _seeing(question: Question, encoding: Encoding) -> Question:
    return replace(question, workload=replace(question.workload, encoding=encoding))
