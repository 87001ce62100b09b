"""A manifest as a deployment: its queues at any rate, on a trace, and the instances that each node holds."""

from collections.abc import Mapping
from dataclasses import replace

from ground.errors import BadInput
from planner.checks.deployed import Deployed, DeployedPool, Lost, Standing, played, standing_of
from planner.costs.breakdown import operators
from planner.costs.interval import interval
from planner.instances.space import Role
from planner.manifest.schema import Manifest, Pool
from planner.manifest.stepcost import evaluate_best
from planner.manifest.terms import StepLoad
from planner.plans.expectation import (
    decode_behind,
    encode_instances,
    encode_latency,
    mixed_pool,
    pool_mixed,
    pool_pair,
    pool_ttft,
    room_prompts,
)
from planner.plans.recorded import pools_on
from planner.plans.servers import deviation_behind
from planner.serving.aggregated import AggregatedPool
from planner.serving.decode import SeparatePools
from planner.serving.played import MANY
from planner.workload import TraceRows, Workload, running_kv_tokens


def manifest_on(manifest: Manifest, workload: Workload, trace: TraceRows | None) -> Deployed:
    """Return a manifest as a deployment, on a trace if there is one on which it can be played.

    Raises BadInput as ``from_manifest``.
    """
    deployed = from_manifest(manifest, workload)
    if trace is None or isinstance(pools_on(manifest), str):
        return deployed

    def left(counts: Mapping[Role, int]) -> SeparatePools | AggregatedPool:
        kept = [pool.model_copy(update={"instances": pool.instances[: counts[pool.role]]}) for pool in manifest.pools]
        pools = pools_on(manifest.model_copy(update={"pools": kept}))
        assert not isinstance(pools, str), "fewer instances follow the same rules"
        return pools

    return played(deployed, left, trace)


def from_manifest(manifest: Manifest, workload: Workload) -> Deployed:
    """Return a manifest as a deployment under some traffic.

    Raises BadInput where its roles are neither one prefill and one decode pool nor one aggregated pool.
    """
    planned, told = manifest.workload.requests_per_second, manifest.told_requests
    deployed = replace(_language(manifest, workload), planned_per_second=planned, told_requests=told)
    encode = encode_instances(manifest)
    if encode is None:
        return deployed
    tokens = float(encode.limits.tokens_per_device)
    pool = DeployedPool(
        role="encode",
        instances=len(encode.instances),
        at=lambda rate, count, *_: Standing(ttft=encode_latency(manifest, encode, workload, rate, count)),
        deviation=_step_deviation(encode, StepLoad(prefill_tokens=tokens, finishing_prompts=1.0, mean_tokens=tokens)),
    )
    losses = deployed.losses | {"instance": (*deployed.losses["instance"], Lost(encode=1))}
    return replace(deployed, pools=(pool, *deployed.pools), losses=losses)


def _language(manifest: Manifest, workload: Workload) -> Deployed:
    aggregated = mixed_pool(manifest)
    if aggregated is not None:
        return _aggregated_manifest(manifest, aggregated, workload)
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

    behind = decode_behind(manifest, pools, workload)

    def prefill_at(rate_per_second: float, count: int, requests: int | None = MANY) -> Standing:
        return Standing(ttft=pool_ttft(manifest, prefill, workload, rate_per_second, count, requests))

    def decode_at(rate_per_second: float, count: int, requests: int | None = MANY) -> Standing:
        _, state = behind(rate_per_second, count, requests or MANY)
        return Standing(tpot=state.tpot, line=state) if state else Standing()

    return Deployed(
        pools=(
            DeployedPool(
                role="prefill",
                instances=len(prefill.instances),
                at=prefill_at,
                deviation=_step_deviation(prefill, full_pass),
                room_prompts=room_prompts(prefill, workload),
            ),
            DeployedPool(
                role="decode",
                instances=len(decode.instances),
                at=decode_at,
                deviation=_step_deviation(decode, full_batch),
            ),
        ),
        losses={"instance": (Lost(prefill=1), Lost(decode=1)), "node": _nodes(manifest)},
    )


def _aggregated_manifest(manifest: Manifest, pool: Pool, workload: Workload) -> Deployed:
    batch, kv = float(pool.limits.requests_per_dp_rank), running_kv_tokens(workload).mean_tokens
    queries = pool.step_costs["mixed"].queries_per_sequence
    full_batch = StepLoad(decode_sequences=batch, decode_kv_tokens=batch * kv, mean_tokens=batch * queries)

    def at(rate_per_second: float, count: int, requests: int | None = MANY) -> Standing:
        return standing_of(pool_mixed(manifest, pool, workload, rate_per_second, count, requests))

    deviation = _step_deviation(pool, full_batch)
    mixed = DeployedPool(role="mixed", instances=len(pool.instances), at=at, deviation=deviation)
    return Deployed(pools=(mixed,), losses={"instance": (Lost(mixed=1),), "node": _nodes(manifest)})


def _step_deviation(pool: Pool, load: StepLoad) -> float:
    """Relative standard deviation of the predicted duration of a step, as the manifest states it or of this one."""
    if pool.predicted is not None and pool.predicted.deviation is not None:
        return pool.predicted.deviation
    cost = pool.step_costs[pool.phase].to_step_cost()
    timed = evaluate_best(cost, load, pool.microbatches)
    seconds = float(timed.seconds)
    return deviation_behind(interval(seconds, operators(cost, load, timed), phase=pool.phase), seconds)


def _nodes(manifest: Manifest) -> tuple[Lost, ...]:
    """Return the instances that the loss of each node takes along, each combination once."""
    gone: dict[tuple[str, int], dict[str, int]] = {}
    for pool in manifest.pools:
        for instance in pool.instances:
            for node in instance.nodes:
                taken = gone.setdefault((pool.hardware, node), {})
                taken[pool.role] = taken.get(pool.role, 0) + 1
    return tuple(sorted({Lost(*(taken.get(role, 0) for role in Lost._fields)) for taken in gone.values()}))
