"""What a manifest is expected to do with a recorded stream: its own arrivals, lengths and reuse, one after the other.

A trace is no stationary stream. Its rate drifts, a window begins empty and may end with a backlog, a few long prompts
decide a minute. So instead of a rate and moments its requests go through three recursions: passes
(``queues.recorded_prefill``), the links that KV crosses (``instances.kv_links``) and iterations
(``queues.recorded_decode``); at aggregated instances through one, their steps (``mixed.recorded``). What remains a
model is what a pass, a transfer and an iteration, or a step, take.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from planner.costs.latency import tokens_per_iteration
from planner.instances.kv_links import KvLinks, Pulled, pulled
from planner.instances.operating import dealt_iteration_seconds
from planner.manifest.schema import Manifest, Pool, Prediction, Role, ServiceLevels, Statistics
from planner.mixed.recorded import MixedMachines, serve_recorded
from planner.mixed.step_times import StepTimes
from planner.plans.expectation import (
    Expectation,
    group_budget,
    iteration_dealing,
    mixed_pool,
    pool_aggregate,
    pool_pair,
)
from planner.queues.machine import Machine
from planner.queues.prefill_queue import Policy
from planner.queues.queueing import Array
from planner.queues.recorded_decode import Decoded, decode_recorded
from planner.queues.recorded_prefill import Prefilled, prefill_recorded
from planner.workload import Trace, Traffic, Workload
from podplan.errors import BadInput
from podplan.records import dataclass

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


def expect_recorded(manifest: Manifest, trace: Trace, warmup_seconds: float = 0.0) -> Expectation:
    """Return what a manifest is expected to do with the requests of a trace, from an empty system until it is empty.

    A finite stream always has an answer: past saturation it is the backlog that the window builds up. Reuse is what
    stands in the trace. Collaborative routing counts as to the least load.

    Args: requests that arrive before ``warmup_seconds`` load the system and are not counted.

    Raises:
        BadInput: a trace that ``Traffic.from_trace`` refuses, or a warm-up that leaves nothing of it.
    """
    workload = Traffic.from_trace(trace).workload
    pools = pools_on(manifest, workload)
    if isinstance(pools, str):
        return Expectation(prediction=None, basis=pools)
    arrival = np.asarray(trace.arrival_seconds, dtype=np.float64)
    if arrival[-1] < warmup_seconds:
        raise BadInput(f"--warmup: {warmup_seconds:g} s is past the last arrival at {arrival[-1]:g} s")
    recorded = play(pools, trace)
    made_of = "steps" if isinstance(pools, MixedPools) else "passes and iterations"
    return Expectation(
        prediction=_prediction(recorded, arrival, manifest.service_levels, warmup_seconds),
        basis=f"a recursion over the requests' own {made_of} with the manifest's step costs",
    )


def pools_on(manifest: Manifest, workload: Workload) -> Pools | MixedPools | str:
    """Return the pools of a manifest as the recursions see them, or why they cannot be played."""
    aggregated = mixed_pool(manifest)
    if aggregated is not None:
        unlike = unlike_steps(manifest)
        return unlike or mixed_of_manifest(manifest, aggregated, workload)
    pools = pool_pair(manifest)
    return pools if isinstance(pools, str) else of_manifest(manifest, pools, workload)


def unlike_steps(manifest: Manifest) -> str | None:
    """Return why the recursion over steps does not have the rules of a manifest's routing; None where it has."""
    routing = manifest.routing
    if routing.chunks != "decode_first":
        return f"a trace is played with prompts beside running requests, not with routing.chunks {routing.chunks}"
    if routing.decode_reservation != "whole":
        return "a trace is played with KV reserved for whole answers"
    return None


def mixed_of_manifest(manifest: Manifest, pool: Pool, workload: Workload) -> MixedPools:
    """Return the aggregated instances of a manifest; the ``workload`` holds the moments of what is played."""
    routing, block = manifest.routing, pool.kv.block_tokens
    aggregate = pool_aggregate(pool, workload)
    return MixedPools(
        machines=MixedMachines(
            aggregate=aggregate,
            times=StepTimes(aggregate),
            instances=len(pool.instances),
            policy="round_robin" if routing.prefill == "round_robin" else "least_load",
            rank_policy=routing.decode,
            capacity_tokens=float(pool.kv.capacity_tokens_per_rank),
        ),
        charged=lambda tokens: math.ceil(pool.kv.charged(tokens) / block) * block,
    )


def of_manifest(manifest: Manifest, pools: tuple[Pool, Pool], workload: Workload) -> Pools:
    """Return the pools of a manifest; the ``workload`` holds the moments of what is played."""
    prefill, decode = pools
    assert manifest.kv_transfer is not None, "a manifest with prefill and decode pools has links"
    cost, ranks = prefill.step_costs["prefill"].to_step_cost(), prefill.degrees.attention_dp
    most = decode.limits.requests_per_dp_rank * decode.degrees.attention_groups
    return Pools(
        machine=Machine(cost, ranks, float(group_budget(prefill)), prefill.microbatches),
        prefill_instances=len(prefill.instances),
        policy="round_robin" if manifest.routing.prefill == "round_robin" else "least_load",
        links=KvLinks.between(manifest.kv_transfer, prefill, decode),
        iteration_seconds=dealt_iteration_seconds(iteration_dealing(decode, workload), np.arange(1.0, most + 1)),
        decode_instances=len(decode.instances),
        tokens_per_iteration=tokens_per_iteration(decode.mtp.drafts, decode.mtp.acceptance),
    )


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


def _prediction(recorded: Recorded, arrival: Array, limits: ServiceLevels, warmup_seconds: float) -> Prediction:
    """Return the figures in the keys of a simulation's result; attainment is joint, request by request.

    Latencies are of the requests that arrive from the end of the warm-up on, rates of what completes from then on.
    """
    counted = arrival >= warmup_seconds
    ttft, tpot, e2e = (
        values[counted] for values in (recorded.ttft_seconds, recorded.tpot_seconds, recorded.e2e_seconds)
    )
    kept = within(ttft, tpot, limits.ttft_seconds, limits.tpot_seconds)
    done = arrival + recorded.e2e_seconds >= warmup_seconds
    seconds = recorded.end_seconds - warmup_seconds
    known, links = tpot[~np.isnan(tpot)], recorded.links
    return Prediction(
        requests_per_second=float(done.sum()) / seconds,
        output_tokens_per_second=float(recorded.output_tokens[done].sum()) / seconds,
        ttft_seconds=_statistics(ttft),
        tpot_seconds=_statistics(known) if known.size else None,
        e2e_seconds=_statistics(e2e),
        slo_attainment=float(kept.mean()),
        goodput_requests_per_second=float(kept.sum()) / seconds,
        utilisation=recorded.busy,
        mean_transfer_wait_seconds=None if links is None else float(links.wait_seconds.mean()) if known.size else 0.0,
        link_utilisation=None if links is None else links.utilisation,
    )


def within(ttft: Array, tpot: Array, ttft_seconds: float | None, tpot_seconds: float | None) -> Flags:
    """Return which requests keep both limits, [requests]; an answer of one token has no TPOT to miss."""
    kept = np.ones(ttft.size, dtype=bool)
    if ttft_seconds is not None:
        kept &= ttft <= ttft_seconds
    if tpot_seconds is not None:
        kept &= ~(tpot > tpot_seconds)
    return kept


def _statistics(seconds: Array) -> Statistics:
    p50, p90, p99 = np.percentile(seconds, (50.0, 90.0, 99.0)).tolist()
    return Statistics(mean=float(seconds.mean()), p50=p50, p90=p90, p99=p99)
