"""What pools do with a recorded stream: its own arrivals, lengths and reuse, one request after the other.

A trace is no stationary stream. Its rate drifts, a window begins empty and may end with a backlog, a few long prompts
decide a minute. So its requests are played (``planner.serving``): through passes, links and iterations, or through the
steps of aggregated instances. What remains a model is what a pass, a transfer and an iteration, or a step, take.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.instances.aggregated import played_of
from planner.instances.kv_links import KvLinks
from planner.instances.space import Role
from planner.serving.deployed import AggregatedPools
from planner.serving.latency import Array
from planner.serving.separate import DecodeSide, PrefillSide, SeparatePools, play_separate, served
from planner.serving.streams import Stream
from planner.workload import Trace, Workload, running_kv_tokens

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """Transfers of those that go on to decode."""

    wait_seconds: Array
    """[requests], until its links were free."""
    utilisation: "dict[Role, float]"
    """Share of the time up to the end in which a link of each role carries KV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Every request of a trace, [requests]; TPOT is not a number where an answer has one token."""

    ttft_seconds: Array
    tpot_seconds: Array
    e2e_seconds: Array
    output_tokens: Array
    end_seconds: float
    """When the last answer is out, from 0 on as arrivals are counted."""
    busy: dict[Role, float]
    """Share of the time until then in which a role's instances work."""
    links: Crossed | None = None
    """None where nothing crosses links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """A prefill and a decode pool as they are played, and the links between them."""

    separate: SeparatePools
    links: KvLinks


def separate(
    prefill: PrefillSide,
    decode: DecodeSide,
    links: KvLinks,
    reserved_tokens: Callable[[Array], Array],
    workload: Workload,
) -> Pools:
    """Return both pools, ready to be played.

    Args: ``reserved_tokens`` of requests of so many tokens; the ``workload`` has the lengths of what is played.
    """
    longest = max((tokens for tokens, _, _ in workload.prompts or ()), default=prefill.budget_tokens)
    return Pools(
        separate=SeparatePools(
            prefill=prefill.pool(float(longest)),
            decode=decode.pool(
                running_kv_tokens(workload).mean_tokens,
                {
                    "source_groups": links.prefill.groups,
                    "source_channels": links.channels(links.prefill),
                    "target_channels": links.channels(links.decode),
                    "latency_seconds": links.latency_seconds,
                },
            ),
            transfer_seconds=links.held_seconds,
            reserved_tokens=reserved_tokens,
        ),
        links=links,
    )


def play(pools: Pools | AggregatedPools, trace: Trace) -> Recorded:
    """Return what happens to every request."""
    return _play_aggregated(pools, trace) if isinstance(pools, AggregatedPools) else _play_pair(pools, trace)


def _play_aggregated(pools: AggregatedPools, trace: Trace) -> Recorded:
    stream = Stream.from_trace(trace)
    played = played_of(pools.pool, pools.charged, stream)
    found = served(stream, played.first_token_seconds, played.left_seconds, busy_seconds={"mixed": played.busy_seconds})
    return Recorded(
        ttft_seconds=found.ttft_seconds,
        tpot_seconds=found.tpot_seconds,
        e2e_seconds=found.e2e_seconds,
        output_tokens=found.answer_tokens,
        end_seconds=found.end_seconds,
        busy={"mixed": played.busy_seconds / (pools.pool.instances * found.end_seconds)},
    )


def _play_pair(pools: Pools, trace: Trace) -> Recorded:
    found, prefill, decode = play_separate(pools.separate, Stream.from_trace(trace)), *_instances(pools.separate)
    end, links = found.end_seconds, None
    if found.link_wait_seconds is not None:
        sent = found.sent_seconds
        used: dict[Role, float] = {role: sent / (pools.links.servers(side) * end) for role, side in pools.links.sides}
        links = Crossed(wait_seconds=found.link_wait_seconds, utilisation=used)
    return Recorded(
        ttft_seconds=found.ttft_seconds,
        tpot_seconds=found.tpot_seconds,
        e2e_seconds=found.e2e_seconds,
        output_tokens=found.answer_tokens,
        end_seconds=end,
        busy={
            "prefill": found.busy_seconds["prefill"] / (prefill * end),
            "decode": found.busy_seconds["decode"] / (decode * end),
        },
        links=links,
    )


def _instances(pools: SeparatePools) -> tuple[int, int]:
    return pools.prefill.instances, pools.decode.instances


def within(ttft: Array, tpot: Array, ttft_seconds: float | None, tpot_seconds: float | None) -> Flags:
    """Return which requests keep both limits, [requests]; an answer of one token has no TPOT to miss."""
    kept = np.ones(ttft.size, dtype=bool)
    if ttft_seconds is not None:
        kept &= ttft <= ttft_seconds
    if tpot_seconds is not None:
        kept &= ~(tpot > tpot_seconds)
    return kept
