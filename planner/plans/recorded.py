"""What pools do with a recorded stream: its own arrivals, lengths and reuse, one request after the other.

A trace is no stationary stream. Its rate drifts, a window begins empty and may end with a backlog, a few long prompts
decide a minute. So its requests are played (``planner.serving``): through passes, links and iterations, or through the
steps of aggregated instances. What remains a model is what a pass, a transfer and an iteration, or a step, take.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from planner.instances.aggregated import played_of
from planner.instances.kv_links import KvLinks
from planner.serving.deployed import AggregatedPools
from planner.serving.latency import Array
from planner.serving.separate import DecodeSide, PrefillSide, SeparatePools, Served, play_separate, served
from planner.serving.streams import Stream
from planner.workload import Trace, Workload, running_kv_tokens

Flags = NDArray[np.bool_]


def separate(
    prefill: PrefillSide,
    decode: DecodeSide,
    links: KvLinks,
    reserved_tokens: Callable[[Array], Array],
    workload: Workload,
) -> SeparatePools:
    """Return both pools, ready to be played.

    Args: ``reserved_tokens`` of requests of so many tokens; the ``workload`` has the lengths of what is played.
    """
    longest = max((tokens for tokens, _, _ in workload.prompts or ()), default=prefill.budget_tokens)
    return SeparatePools(
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
    )


def play(pools: SeparatePools | AggregatedPools, trace: Trace) -> Served:
    """Return what happens to every request."""
    stream = Stream.from_trace(trace)
    if isinstance(pools, SeparatePools):
        return play_separate(pools, stream)
    played = played_of(pools.pool, pools.charged, stream)
    own = played.busy_seconds, pools.pool.instances
    return served(stream, played.first_token_seconds, played.left_seconds, {"mixed": own})


def within(ttft: Array, tpot: Array, ttft_seconds: float | None, tpot_seconds: float | None) -> Flags:
    """Return which requests keep both limits, [requests]; an answer of one token has no TPOT to miss."""
    kept = np.ones(ttft.size, dtype=bool)
    if ttft_seconds is not None:
        kept &= ttft <= ttft_seconds
    if tpot_seconds is not None:
        kept &= ~(tpot > tpot_seconds)
    return kept
