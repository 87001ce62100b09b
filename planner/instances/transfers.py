"""KV transfers of a question's pools: which links they have, what those carry, and what a prompt waits for them."""

import numpy as np

from planner.costs.cache import Cache, model_cache
from planner.costs.deployment import Deployment
from planner.instances.kv_links import MOST_LINK_UTILISATION, KvLinks, LinkSide
from planner.manifest.terms import Number
from planner.question import Question
from planner.serving.latency import Array
from planner.serving.prompts import prompts_of
from planner.strategy import Strategy


def kv_plane(question: Question) -> tuple[float, float]:
    """Bytes per second of one link, one way, and latency: what large transfers reach on the slower machine's plane."""
    planes = [machines.hardware.plane(machines.hardware.kv_plane) for machines in (question.prefill, question.decode)]
    rate = min(plane.reached_bytes_per_second for plane in planes)
    return rate, max(plane.latency_seconds.value for plane in planes)


def transfer_seconds(question: Question, deployment: Deployment) -> Number:
    """Seconds to move one prompt's KV from prefill to decode over the slower machine's KV plane.

    Each device of the prompt's DP group sends its share over its own link (CloudMatrix384 section 4.3.3).
    """
    if not question.workload.decodes:
        return 0.0
    rate, latency = kv_plane(question)
    sent = float(model_cache(deployment).bytes(question.workload.input_tokens.mean, 1.0))
    return sent / (rate * deployment.strategy.attention_tp) + latency


def links_of(question: Question, cache: Cache, prefill: tuple[Strategy, int], decode: tuple[Strategy, int]) -> KvLinks:
    """Return the links between instances of two strategies, so many of each."""
    rate, latency = kv_plane(question)
    sides = [
        LinkSide(groups=count * strategy.attention_groups, devices=strategy.attention_tp * strategy.pp)
        for strategy, count in (prefill, decode)
    ]
    return KvLinks(
        prefill=sides[0],
        decode=sides[1],
        link_bytes_per_second=rate,
        latency_seconds=latency,
        cache=cache,
    )


def most_linked(question: Question, deployment: Deployment) -> Array:
    """Requests per second whose KV the links of one instance carry, [instances] where degrees are arrays.

    Every attention device has a link of its own on the KV plane; up to ``MOST_LINK_UTILISATION`` of them.
    """
    prompts, strategy = prompts_of(question.workload), deployment.strategy
    sent = float(np.asarray(model_cache(deployment).bytes(prompts.tokens, 1.0)) @ prompts.weights)
    links = np.asarray(strategy.attention_groups * strategy.attention_tp * strategy.pp, dtype=np.float64)
    return links * (MOST_LINK_UTILISATION * kv_plane(question)[0] / sent if question.workload.decodes else np.inf)
