"""A deployment whose queues can be asked at any rate, with service times longer than predicted, and after losses.

All service times of a pool times f at a rate R make the queue of the predicted times at the rate f·R, seen through a
clock that runs f times as slow. So nothing is costed again: latency(R; f) = f · latency(f·R; 1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from planner.breakdown import operators
from planner.decode_queue import DecodeState
from planner.expectation import pool_decode, pool_pair, pool_ttft
from planner.interval import interval
from planner.manifest.schema import Manifest, Pool
from planner.manifest.stepcost import evaluate_best
from planner.manifest.terms import StepLoad
from planner.operating import DecodeServer, PrefillServer
from planner.plan import Plan
from planner.predict import Prediction
from planner.queueing import Latency
from planner.survival import Loss, lost_instances
from planner.workload import Workload, running_kv_tokens
from podplan.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Instances of each role that are gone."""

    prefill: int = 0
    decode: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """Instances of both roles and their queues."""

    prefill_instances: int
    decode_instances: int
    ttft_at: Callable[[float, int], Latency | None]
    """TTFT of one of so many instances, by its own rate."""
    decode_at: Callable[[float], DecodeState | None]
    """One decode instance by its own rate."""
    prefill_deviation: float
    """Relative standard deviation of the predicted pass time."""
    decode_deviation: float
    losses: dict[Loss, tuple[Lost, ...]]
    """What may go together, by kind of loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a deployment does at a rate; None where a pool cannot keep up."""

    ttft: Latency | None
    tpot: Latency | None


def standing(deployed: Deployed, rate_per_second: float, confidence: float = 0.5, lost: Lost | None = None) -> Standing:
    """Return latencies that are not exceeded with that confidence in the predicted service times.

    Service times are taken as normal, so both pools' are 1 + z·deviation times the predicted ones; 0.5 takes them as
    predicted.
    """
    score, lost = NormalDist().inv_cdf(confidence), lost or Lost()
    slow = max(1 + score * deployed.prefill_deviation, 0.05)
    slower = max(1 + score * deployed.decode_deviation, 0.05)
    first, second = deployed.prefill_instances - lost.prefill, deployed.decode_instances - lost.decode
    ttft = deployed.ttft_at(slow * rate_per_second / first, first) if first > 0 else None
    state = deployed.decode_at(slower * rate_per_second / second) if second > 0 else None
    return Standing(ttft=ttft and ttft.scaled(slow), tpot=state.tpot.scaled(slower) if state else None)


def from_plan(plan: Plan) -> Deployed:
    """Return a plan as it would be deployed."""
    prefill, decode = plan.prefill, plan.decode
    server = PrefillServer(plan.question, prefill.candidate)
    decoder = DecodeServer(plan.question, decode.candidate, plan.transfer_seconds)
    machines = ((prefill.candidate.devices, prefill.machines), (decode.candidate.devices, decode.machines))
    shared = prefill.machines.budget == decode.machines.budget
    losses: dict[Loss, tuple[Lost, ...]] = {}
    for loss in ("instance", "node"):
        gone = [lost_instances(loss, devices, part.devices_per_node) for devices, part in machines]
        each = (Lost(prefill=gone[0]), Lost(decode=gone[1]))
        # Instances of both roles may stand on one node where both are smaller than it.
        mixed = loss == "node" and shared and all(devices < part.devices_per_node for devices, part in machines)
        losses[loss] = (Lost(prefill=gone[0], decode=gone[1]),) if mixed else each
    return Deployed(
        prefill_instances=prefill.instances,
        decode_instances=decode.instances,
        ttft_at=server.ttft,
        decode_at=decoder.state,
        prefill_deviation=_deviation(prefill.prediction, prefill.prediction.ttft_seconds),
        decode_deviation=_deviation(decode.prediction, decode.prediction.tpot_seconds),
        losses=losses,
    )


def _deviation(prediction: Prediction, seconds: float | None) -> float:
    """Relative standard deviation behind a central interval."""
    known = prediction.interval
    score = NormalDist().inv_cdf(0.5 + known.level / 2)
    return (known.high / (seconds or prediction.iteration_seconds) - 1) / score


def from_manifest(manifest: Manifest, workload: Workload) -> Deployed:
    """Return what a manifest deploys, under some traffic.

    Raises BadInput where its roles are not one prefill and one decode pool, which alone have closed forms.
    """
    pools = pool_pair(manifest)
    if isinstance(pools, str):
        raise BadInput(f"--manifest: {pools}")
    prefill, decode = pools
    prompt, kv = workload.input_tokens.mean, running_kv_tokens(workload).mean_tokens
    share = float(prefill.limits.tokens_per_device * prefill.degrees.attention_tp * prefill.degrees.pp)
    tokens = min(share, prompt) if share < prompt else share // prompt * prompt
    full_pass = StepLoad(
        prefill_tokens=tokens,
        prefill_pairs=tokens * (min(prompt, share) + 1) / 2,
        finishing_prompts=max(tokens // prompt, 1.0),
        mean_tokens=tokens,
    )
    batch = float(decode.limits.requests_per_dp_rank)
    queries = decode.step_costs["decode"].queries_per_sequence
    full_batch = StepLoad(decode_sequences=batch, decode_kv_tokens=batch * kv, mean_tokens=batch * queries)

    def decode_at(rate_per_second: float) -> DecodeState | None:
        found = pool_decode(manifest, pools, workload, rate_per_second)
        return found[0] if found else None

    return Deployed(
        prefill_instances=len(prefill.instances),
        decode_instances=len(decode.instances),
        ttft_at=lambda rate, count: pool_ttft(manifest, prefill, workload, rate, count),
        decode_at=decode_at,
        prefill_deviation=_step_deviation(prefill, full_pass),
        decode_deviation=_step_deviation(decode, full_batch),
        losses={"instance": (Lost(prefill=1), Lost(decode=1)), "node": _nodes(manifest)},
    )


def _step_deviation(pool: Pool, load: StepLoad) -> float:
    """Relative standard deviation of the predicted duration of a step."""
    cost = pool.step_costs[pool.role].to_step_cost()
    timed = evaluate_best(cost, load, pool.microbatches)
    known = interval(float(timed.seconds), operators(cost, load, timed), phase=pool.role)
    return (known.high / float(timed.seconds) - 1) / NormalDist().inv_cdf(0.5 + known.level / 2)


def _nodes(manifest: Manifest) -> tuple[Lost, ...]:
    """Return what each node of a manifest takes with it, each combination once."""
    gone: dict[tuple[str, int], dict[str, int]] = {}
    for pool in manifest.pools:
        for instance in pool.instances:
            for node in instance.nodes:
                taken = gone.setdefault((pool.hardware, node), {})
                taken[pool.role] = taken.get(pool.role, 0) + 1
    found = {(taken.get("prefill", 0), taken.get("decode", 0)) for taken in gone.values()}
    return tuple(Lost(prefill=first, decode=second) for first, second in sorted(found))
