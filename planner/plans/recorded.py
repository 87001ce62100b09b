"""Expected latencies of a manifest for individual requests, by playing its pools.

Requests of a trace arrive at their own times; in a closed loop of one, each arrives when the one before has left.
"""

from dataclasses import replace

import numpy as np

from ground.arrays import Floats
from ground.errors import BadInput
from planner.manifest.schema import Manifest, Prediction, Role, ServiceLevels, Statistics
from planner.plans.expectation import Expectation, mixed_pool, pool_pair
from planner.serving.aggregated import AggregatedPool, play_closed
from planner.serving.decode import SeparatePools, Served, play_separate, within
from planner.serving.deployed import aggregated_pool, aggregated_served, play, separate_pools
from planner.serving.streams import stationary
from planner.workload import TraceRows, Workload, trace_arrays

_ALONE = 2_500  # played requests of a closed loop of one; their lengths and accepted drafts are stratified
_FAR_SECONDS = 1e6  # a gap at which requests never meet


def expect_recorded(manifest: Manifest, trace: TraceRows, warmup_seconds: float = 0.0) -> Expectation:
    """Return the expected figures of a manifest for the requests of a trace, from an empty system until it is empty.

    A finite stream always has an answer: beyond saturation it includes the backlog. Reuse is that of the trace.
    Collaborative routing counts as least load.

    Args: ``warmup_seconds``: requests that arrive earlier load the system but do not count.

    Raises:
        BadInput: a trace that ``trace_arrays`` refuses, or a warm-up that leaves nothing of it.
    """
    arrival, *_ = trace_arrays(trace)
    pools = pools_on(manifest)
    if isinstance(pools, str):
        return Expectation(prediction=None, basis=pools)
    if arrival[-1] < warmup_seconds:
        raise BadInput(f"--warmup: {warmup_seconds:g} s is past the last arrival at {arrival[-1]:g} s")
    recorded = play(pools, trace)
    made_of = "steps" if isinstance(pools, AggregatedPool) else "passes and iterations"
    return Expectation(
        prediction=_prediction(recorded, arrival, manifest.service_levels, warmup_seconds),
        basis=f"the requests' own {made_of}, played with the manifest's step costs",
    )


def expect_alone(manifest: Manifest, workload: Workload) -> Expectation:
    """Return the expected figures for one request at a time: a closed loop of one, on instances of either shape.

    An aggregated instance whose engine schedules ahead runs a surplus step, for which the next request waits. Separate
    pools have none: their requests are played so far apart that they never meet.
    """
    aggregated, pair = mixed_pool(manifest), pool_pair(manifest)
    stream = stationary(workload, _ALONE, most_tokens=float(manifest.model.spec.max_position))
    if aggregated is not None:
        pool = aggregated_pool(manifest, aggregated)
        played = play_closed(pool, stream, 1)
        found, sent = aggregated_served(pool, played, stream), played.arrival_seconds
    elif isinstance(pair, str):
        return Expectation(prediction=None, basis=pair)
    else:
        pools, places = separate_pools(manifest, pair), np.arange(_ALONE, dtype=np.float64)
        far = play_separate(pools, replace(stream, arrival_seconds=_FAR_SECONDS * places))
        apart = 2 * far.e2e_seconds.max() * places  # smaller numbers keep more digits of what a request takes
        found = _end_to_end(play_separate(pools, replace(stream, arrival_seconds=apart)))
        sent = np.cumsum(found.e2e_seconds) - found.e2e_seconds
    return Expectation(
        prediction=_prediction(found, sent, manifest.service_levels, 0.0), basis="single requests, one by one"
    )


def _end_to_end(found: Served) -> Served:
    """Return requests that never meet with the gaps between them left out: each arrives when the one before leaves."""
    end = float(found.e2e_seconds.sum())

    def shares(of: dict[Role, float]) -> dict[Role, float]:
        return {role: min(share * found.end_seconds / end, 1.0) for role, share in of.items()}

    links = found.link_utilisation
    return replace(found, end_seconds=end, busy=shares(found.busy), link_utilisation=shares(links) if links else None)


def pools_on(manifest: Manifest) -> SeparatePools | AggregatedPool | str:
    """Return the pools of a manifest in the form that is played, or the reason why they cannot be played."""
    aggregated = mixed_pool(manifest)
    if aggregated is not None:
        return unlike_steps(manifest) or aggregated_pool(manifest, aggregated)
    pools = pool_pair(manifest)
    return pools if isinstance(pools, str) else separate_pools(manifest, pools)


def unlike_steps(manifest: Manifest) -> str | None:
    """Return the reason why a trace cannot be played with a manifest's routing; None where it can."""
    if manifest.routing.decode_reservation != "whole":
        return "a trace is played with KV reserved for whole answers"
    return None


def _prediction(recorded: Served, arrival: Floats, limits: ServiceLevels, warmup_seconds: float) -> Prediction:
    """Return the figures in the keys of a simulation's result; attainment is joint, request by request.

    Latencies are those of requests that arrive after the warm-up; rates count requests that complete after it.
    """
    counted = arrival >= warmup_seconds
    ttft, tpot, e2e = (
        values[counted] for values in (recorded.ttft_seconds, recorded.tpot_seconds, recorded.e2e_seconds)
    )
    kept = within(ttft, tpot, limits.ttft_seconds, limits.tpot_seconds)
    done = arrival + recorded.e2e_seconds >= warmup_seconds
    seconds = recorded.end_seconds - warmup_seconds
    known, waits = tpot[~np.isnan(tpot)], recorded.link_wait_seconds
    return Prediction(
        requests_per_second=float(done.sum()) / seconds,
        output_tokens_per_second=float(recorded.answer_tokens[done].sum()) / seconds,
        ttft_seconds=_statistics(ttft),
        tpot_seconds=_statistics(known) if known.size else None,
        e2e_seconds=_statistics(e2e),
        slo_attainment=float(kept.mean()),
        goodput_requests_per_second=float(kept.sum()) / seconds,
        utilisation=recorded.busy,
        mean_transfer_wait_seconds=None if waits is None else float(waits.mean()) if known.size else 0.0,
        link_utilisation=recorded.link_utilisation,
    )


def _statistics(seconds: Floats) -> Statistics:
    p50, p90, p99 = np.percentile(seconds, (50.0, 90.0, 99.0)).tolist()
    return Statistics(mean=float(seconds.mean()), p50=p50, p90=p90, p99=p99)
