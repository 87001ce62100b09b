"""A pool of decode instances under requests whose prompts end at known times, and the links that bring their KV.

The rule: a request takes room on a DP rank when its prompt ends, first come first served: the rank with least KV set
aside, with fewest requests, or whose turn is longest ago, among those with a free slot and enough KV. Its KV then
crosses the links of both ends, each first come first served, and it joins the next iteration. All ranks of an instance
end an iteration together; it lasts as long as the fullest rank takes. Every running request advances by one iteration,
and leaves with the one that gives its last token.

Ref: xDeepServe (arXiv 2508.02520) section 4.3, least KV; CloudMatrix384 (arXiv 2506.12708) section 4.3.3, links.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.serving.streams import Floats, Ints
from planner.serving.tables import TableArrays

RankPolicy = Literal["least_kv", "least_requests", "round_robin"]
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodePool:
    """Instances that are alike, their links, and how requests are placed."""

    times: TableArrays
    ranks: int
    slots: int
    """Requests of a DP rank."""
    capacity_tokens: float
    """KV of a DP rank."""
    instances: int = 1
    policy: RankPolicy = "least_kv"
    tokens_per_iteration: float = 1.0
    source_groups: int = 1
    """Attention groups of the prefill pool."""
    source_channels: int = 1
    """Transfers that a prefill group sends at once."""
    target_channels: int = 1
    """Transfers that a decode rank gets at once."""
    latency_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeRequests:
    """Requests that are handed over, [requests] each, in any order."""

    ready_seconds: Floats
    """When the first token is out."""
    cached_tokens: Floats
    """KV with which decode begins."""
    answer_tokens: Ints
    """Tokens after the first, at least 1."""
    reserved_tokens: Floats
    """KV that is set aside."""
    transfer_seconds: Floats
    """For which the transfer keeps its links."""
    source: Ints
    """Prefill group that holds the KV."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """What became of every request, [requests]."""

    left_seconds: Floats
    there_seconds: Floats
    """When its KV is there."""
    link_wait_seconds: Floats
    """From its place in decode until its links were free."""
    busy_seconds: float
    """Of all instances."""


def play_decode(pool: DecodePool, requests: DecodeRequests) -> Decoded:
    """Return when every request has its last token."""
    from planner.serving import decode_loop as loop

    order = np.argsort(requests.ready_seconds, kind="stable")
    count, shape = order.size, (pool.instances, pool.ranks)
    steps = np.ceil(requests.answer_tokens[order] / pool.tokens_per_iteration - _ROUNDING).astype(np.int64)
    steps = np.maximum(steps, 1)
    jobs = loop.Jobs(
        ready=requests.ready_seconds[order],
        kv=requests.cached_tokens[order],
        need=requests.reserved_tokens[order],
        steps=steps,
        growth=requests.answer_tokens[order] / steps,
        held=requests.transfer_seconds[order],
        source=requests.source[order],
        behind=np.full(count, -1),
        rank=np.full(count, -1),
        there=np.zeros(count),
        left=np.zeros(count),
        waited=np.zeros(count),
    )
    ranks = loop.Ranks(
        taken=np.zeros(shape, dtype=np.int64),
        reserved=np.zeros(shape),
        running=np.zeros(shape, dtype=np.int64),
        cached=np.zeros(shape),
        growth=np.zeros(shape),
        turns=np.zeros(shape, dtype=np.int64),
    )
    each = pool.instances
    clocks = loop.Clocks(
        free=np.full(each, np.inf),
        start=np.zeros(each),
        first=np.zeros(each),
        more=np.zeros(each),
        steps=np.zeros(each, dtype=np.int64),
        done=np.zeros(each, dtype=np.int64),
        total=np.zeros(each, dtype=np.int64),
        coming=np.full(each, -1),
        leaving=np.full((each, int(steps.max(initial=1)) + 1), -1),
        busy=np.zeros(each),
    )
    links = loop.Links(
        source=np.zeros((pool.source_groups, pool.source_channels)),
        target=np.zeros((pool.instances * pool.ranks, pool.target_channels)),
        latency=np.array([pool.latency_seconds]),
    )
    policy = {"least_kv": loop.LEAST_KV, "least_requests": loop.LEAST_REQUESTS, "round_robin": loop.IN_TURN}
    loop.play(jobs, ranks, clocks, links, policy[pool.policy], pool.slots, pool.capacity_tokens, pool.times)

    def back(column: Floats) -> Floats:
        found = np.empty(count)
        found[order] = column
        return found

    return Decoded(
        left_seconds=back(jobs.left),
        there_seconds=back(jobs.there),
        link_wait_seconds=back(jobs.waited),
        busy_seconds=float(clocks.busy.sum()),
    )
