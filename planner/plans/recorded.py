"""What pools do with a recorded stream: its own arrivals, lengths and reuse, one request after the other.

A trace is no stationary stream. Its rate drifts, a window begins empty and may end with a backlog, a few long prompts
decide a minute. So instead of a rate and moments its requests go through three recursions: passes
(``queues.recorded_prefill``), the links that KV crosses (``instances.kv_links``) and iterations
(``queues.recorded_decode``); at aggregated instances through one, their steps (``mixed.recorded``). What remains a
model is what a pass, a transfer and an iteration, or a step, take.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.instances.kv_links import KvLinks, Pulled, pulled
from planner.instances.space import Role
from planner.mixed.recorded import MixedMachines, serve_recorded
from planner.queues.machine import Machine
from planner.queues.prefill_queue import Policy
from planner.queues.queueing import Array
from planner.queues.recorded_decode import Decoded, decode_recorded
from planner.queues.recorded_prefill import Prefilled, prefill_recorded
from planner.workload import Trace

Flags = NDArray[np.bool_]


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
    links: Pulled | None = None
    """Transfers of those that go on to decode; None where that is the same instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """A prefill and a decode pool as the recursions see them."""

    machine: Machine
    prefill_instances: int
    policy: Policy
    links: KvLinks
    iteration_seconds: Array
    """[slots of a decode instance], with 1, 2, ... running requests."""
    decode_instances: int
    tokens_per_iteration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPools:
    """A pool of aggregated instances as the recursion sees it."""

    machines: MixedMachines
    charged: Callable[[float], float]
    """KV tokens that a request of so many tokens is granted."""


def play(pools: Pools | MixedPools, trace: Trace) -> Recorded:
    """Return what happens to every request."""
    return _play_mixed(pools, trace) if isinstance(pools, MixedPools) else _play_pair(pools, trace)


def _play_mixed(pools: MixedPools, trace: Trace) -> Recorded:
    arrival, prompts, output = (
        np.asarray(each, dtype=np.float64) for each in (trace.arrival_seconds, trace.input_tokens, trace.output_tokens)
    )
    needs = np.array([pools.charged(tokens) for tokens in (prompts + output).tolist()])
    served = serve_recorded(pools.machines, trace, needs)
    end = float(served.left_seconds.max())
    return Recorded(
        ttft_seconds=served.first_token_seconds - arrival,
        tpot_seconds=(served.left_seconds - served.first_token_seconds) / np.where(output > 1, output - 1, np.nan),
        e2e_seconds=served.left_seconds - arrival,
        output_tokens=output,
        end_seconds=end,
        busy={"mixed": served.busy_seconds / (pools.machines.instances * end)},
    )


def _play_pair(pools: Pools, trace: Trace) -> Recorded:
    prefilled = prefill_recorded(pools.machine, pools.prefill_instances, pools.policy, trace)
    sent = np.asarray(trace.output_tokens) > 1  # answers of one token never reach decode
    prompts = np.asarray(trace.input_tokens, dtype=np.float64)
    links = pulled(pools.links, prefilled.first_token_seconds[sent], prefilled.origin[sent], prompts[sent])
    after = np.asarray(trace.output_tokens, dtype=np.float64)[sent] - 1
    iterations = after / pools.tokens_per_iteration
    decoded = decode_recorded(links.there_seconds, iterations, pools.iteration_seconds, pools.decode_instances)
    return _outcome(pools, trace, prefilled, links, decoded)


def _outcome(pools: Pools, trace: Trace, prefilled: Prefilled, links: Pulled, decoded: Decoded) -> Recorded:
    arrival = np.asarray(trace.arrival_seconds, dtype=np.float64)
    output = np.asarray(trace.output_tokens, dtype=np.float64)
    left, sent = prefilled.first_token_seconds.copy(), output > 1
    left[sent] = decoded.left_seconds
    after = np.where(sent, output - 1, np.nan)
    end = float(left.max())
    return Recorded(
        ttft_seconds=prefilled.first_token_seconds - arrival,
        tpot_seconds=(left - prefilled.first_token_seconds) / after,
        e2e_seconds=left - arrival,
        output_tokens=output,
        end_seconds=end,
        busy={
            "prefill": prefilled.busy_seconds / (pools.prefill_instances * end),
            "decode": decoded.busy_seconds / (pools.decode_instances * end),
        },
        links=links,
    )


def within(ttft: Array, tpot: Array, ttft_seconds: float | None, tpot_seconds: float | None) -> Flags:
    """Return which requests keep both limits, [requests]; an answer of one token has no TPOT to miss."""
    kept = np.ones(ttft.size, dtype=bool)
    if ttft_seconds is not None:
        kept &= ttft <= ttft_seconds
    if tpot_seconds is not None:
        kept &= ~(tpot > tpot_seconds)
    return kept
