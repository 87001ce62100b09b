"""KV transfers of a question's pools: which links they have, what those carry, and what a prompt waits for them."""

from dataclasses import replace

import numpy as np

from planner.costs.cache import Cache, model_cache
from planner.costs.deployment import Deployment
from planner.instances.kv_links import (
    MOST_LINK_UTILISATION,
    Departures,
    KvLinks,
    LinkSide,
    LinkState,
    departures,
    link_state,
)
from planner.question import Question
from planner.serving.closed_forms.pass_seconds import Passes
from planner.serving.latency import Array
from planner.serving.prompts import prompts_of
from planner.strategy import Strategy
from planner.workload import Workload


def link_bytes_per_second(question: Question) -> float:
    """Bytes per second of one link, one way: what large transfers reach on the slower machine's KV plane."""
    planes = (machines.hardware.plane(machines.hardware.kv_plane) for machines in (question.prefill, question.decode))
    return min(plane.bandwidth_bytes_per_second.value * plane.efficiency.value for plane in planes)


def links_of(question: Question, cache: Cache, prefill: tuple[Strategy, int], decode: tuple[Strategy, int]) -> KvLinks:
    """Return the links between instances of two strategies, so many of each."""
    planes = (machines.hardware.plane(machines.hardware.kv_plane) for machines in (question.prefill, question.decode))
    sides = [
        LinkSide(groups=count * strategy.attention_groups, devices=strategy.attention_tp * strategy.pp)
        for strategy, count in (prefill, decode)
    ]
    return KvLinks(
        prefill=sides[0],
        decode=sides[1],
        link_bytes_per_second=link_bytes_per_second(question),
        latency_seconds=max(plane.latency_seconds.value for plane in planes),
        cache=cache,
    )


def most_linked(question: Question, deployment: Deployment) -> Array:
    """Requests per second whose KV the links of one instance carry, [instances] where degrees are arrays.

    Every attention device has a link of its own on the KV plane; up to ``MOST_LINK_UTILISATION`` of them.
    """
    prompts, strategy = prompts_of(question.workload), deployment.strategy
    sent = float(np.asarray(model_cache(deployment).bytes(prompts.tokens, 1.0)) @ prompts.weights)
    links = np.asarray(strategy.attention_groups * strategy.attention_tp * strategy.pp, dtype=np.float64)
    return links * (MOST_LINK_UTILISATION * link_bytes_per_second(question) / sent)


def transfer_state(
    question: Question, links: KvLinks, leave: Departures, requests_per_second: float
) -> LinkState | None:
    """Return what prompts' KV takes at a rate of requests of all instances; None where the links cannot keep up."""
    return link_state(links, requests_per_second, prompts_of(question.workload), leave)


def leaving(
    passes: Passes, workload: Workload, rate_per_second: float, arrival_squared_cv: float, groups: int
) -> Departures:
    """How prompts leave the groups of one prefill instance at its rate.

    Passes have the size whose arrivals fill the next one; prompts of a pass are spread over the groups.

    Args: ``arrival_squared_cv`` of the gaps at the instance.
    """
    filled = np.flatnonzero(passes.prompts >= rate_per_second * passes.seconds)
    place = int(filled[0]) if filled.size else -1
    prompts, seconds = float(passes.prompts[place]), float(passes.seconds[place])
    spread = workload.input_tokens.squared_cv / prompts
    found = departures(arrival_squared_cv, spread, min(rate_per_second * seconds / prompts, 1.0), groups)
    return replace(found, together=max(prompts / groups, 1.0))
