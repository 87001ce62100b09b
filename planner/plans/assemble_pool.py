"""The content of one pool of a manifest: ranks, groups, shards, experts, limits, memory and step costs."""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.balance.counts import longest_first, replica_counts
from planner.balance.imbalance import MIXED, LoadDistribution, sample_expert_loads
from planner.costs.cache import Cache, device_cache
from planner.costs.deployment import Deployment
from planner.costs.latency import balanced_cost
from planner.costs.memory import BLOCK_TOKENS, kv_capacity_tokens
from planner.manifest.costs import StepCostModel
from planner.manifest.layout import Degrees, ExpertLayers, ExpertMap, Instance, ShardRule
from planner.manifest.ranks import group_rules, rank_table, shard_rules
from planner.manifest.schema import (
    BatchLimits,
    Drafts,
    KvCache,
    MemoryBytes,
    PhaseName,
    Pool,
    PoolPrediction,
)
from planner.manifest.stepcost import layers_per_stage
from planner.plans.aggregated import AggregatedPool
from planner.plans.pools import DecodePool, EncodePool, PlannedPool, PrefillPool
from planner.strategy import Strategy, format_strategy
from planner.workload import running_kv_tokens


def pool_content(pool: PlannedPool, cluster: str, instances: list[Instance], seed: int) -> Pool:
    """Return a pool of a manifest; ``seed`` draws the expert loads that placement assumes."""
    question, candidate, machines = pool.question, pool.candidate, pool.machines
    model, deployment, strategy = question.model, candidate.deployment, candidate.row.strategy
    tower = model.vision if isinstance(pool, EncodePool) else None
    degrees = _degrees(strategy)
    memory = pool.memory
    capacity = kv_capacity_tokens(deployment, memory)
    return Pool(
        role=pool.role,
        hardware=cluster,
        strategy=format_strategy(strategy, moe=model.moe is not None),
        degrees=degrees,
        devices_per_instance=strategy.devices,
        chips_per_instance=strategy.devices / machines.devices_per_chip,
        instances=instances,
        rank_table=rank_table(degrees, machines.devices_per_node),
        groups=group_rules(degrees),
        layers_per_stage=layers_per_stage(tower.layers if tower else model.layers, strategy.pp),
        weight_shards=[ShardRule(tensor="*", dtype="bf16")]
        if tower
        else shard_rules(model, degrees, machines.weights, pool.role, deployment.beside),
        expert_map=None if tower else expert_map(deployment, seed, pool.question.balance.distribution),
        limits=_limits(pool, capacity),
        microbatches=2 if candidate.microbatches == 2 else 1,
        mtp=Drafts(drafts=pool.drafts, acceptance=question.acceptance, beams=pool.candidate.deployment.beams),
        weights_dtype="bf16" if tower else machines.weights,
        kv_dtype=question.kv_dtype,
        memory_bytes_per_device=MemoryBytes(
            **{name: float(getattr(memory, name)) for name in MemoryBytes.model_fields}
        ),
        kv=KvCache(
            block_tokens=BLOCK_TOKENS,
            bytes_per_token_per_device=float(device_cache(deployment).token_bytes),
            capacity_tokens_per_rank=capacity,
            **cache_shape(device_cache(deployment)),
        ),
        step_costs=step_costs(pool),
        predicted=_pool_prediction(pool),
    )


def _degrees(strategy: Strategy) -> Degrees:
    return Degrees(**{name: getattr(strategy, name) for name in Degrees.model_fields})


def step_costs(pool: PlannedPool) -> dict[PhaseName, StepCostModel]:
    """Return the step costs of both phases, so that an instance can change its role; a mixed one has one phase.

    The phase that the pool was not planned for keeps ranks and expert places. Prefill has no drafts. Decode has too few
    tokens per device for staging; the whole weights that staging stores serve plain TP as well.
    """
    planned, costs = pool.candidate.deployment, {}
    if isinstance(pool, EncodePool):
        return {"prefill": StepCostModel.from_step_cost(balanced_cost(planned, pool.question.balance))}
    if planned.phase == "mixed":
        return {"mixed": StepCostModel.from_step_cost(balanced_cost(planned, pool.question.balance))}
    for phase in ("prefill", "decode"):
        deployment = planned
        if phase != planned.phase:
            strategy = planned.strategy
            if isinstance(strategy, Strategy) and phase == "decode":
                strategy = strategy._replace(staged=False)
            deployment = replace(planned, phase=phase, strategy=strategy, drafts=0)
        costs[phase] = StepCostModel.from_step_cost(balanced_cost(deployment, pool.question.balance))
    return {"prefill": costs["prefill"], "decode": costs["decode"]}


def expert_map(deployment: Deployment, seed: int, distribution: LoadDistribution = MIXED) -> ExpertMap | None:
    """Return slots of every MoE layer for drawn loads: counts by water-filling, positions by longest first.

    The loads of a layer are drawn from the distribution that the balance assumes. ``plan place`` makes a map from
    measured loads. Dedicated shared-expert ranks are the last EP ranks.
    """
    if deployment.model.moe is None:
        return None
    model, ranks, dedicated = deployment.model, int(deployment.expert_ranks), int(deployment.shared_ranks)
    experts, slots = deployment.moe.experts, deployment.moe.experts + int(deployment.redundant)
    loads = sample_expert_loads(distribution, model.moe_layers, experts, seed)
    placements = []
    for layer, load in zip(model.moe_layer_numbers, loads, strict=True):
        held = longest_first(load, replica_counts(load, slots, ranks), ranks)
        placements.append(ExpertLayers(layers=[layer], slots=np.sort(held, axis=1).ravel().tolist()))
    return ExpertMap(
        expert_ranks=list(range(ranks)),
        shared_expert_ranks=list(range(ranks, ranks + dedicated)),
        placements=placements,
    )


def cache_shape(cache: Cache) -> dict[str, Any]:
    """Return the fields of a manifest's ``CacheShape``."""
    state = float(cache.sequence_tokens)
    return {"reach_tokens": cache.reach_tokens, "reach_share": float(cache.reach_share), "sequence_tokens": state}


def _limits(pool: PlannedPool, capacity_tokens: int) -> BatchLimits:
    """Return the planned batch; for the other phase, one prompt per DP group or the requests whose KV fits."""
    strategy, workload = pool.candidate.row.strategy, pool.question.workload
    if isinstance(pool, PrefillPool):
        held = device_cache(pool.candidate.deployment).charged(running_kv_tokens(workload).mean_tokens, 1.0)
        requests = int(capacity_tokens // held)
        return BatchLimits(requests_per_dp_rank=max(requests, 1), tokens_per_device=pool.candidate.tokens_per_device)
    if isinstance(pool, AggregatedPool):
        share = pool.candidate.batched_tokens // (strategy.attention_tp * strategy.pp)
        return BatchLimits(requests_per_dp_rank=pool.candidate.batch, tokens_per_device=share)
    assert isinstance(pool, DecodePool)
    tokens = -(-workload.input_tokens.mean // (strategy.attention_tp * strategy.pp))
    return BatchLimits(requests_per_dp_rank=pool.candidate.batch, tokens_per_device=int(tokens))


def _pool_prediction(pool: PlannedPool) -> PoolPrediction:
    """Return the prediction of the planned batch on one instance."""
    prediction = pool.prediction
    return PoolPrediction(
        iteration_seconds=prediction.iteration_seconds,
        tokens_per_second_per_device=prediction.tokens_per_second / prediction.devices,
        tokens_per_second_per_chip=prediction.tokens_per_second / prediction.chips,
        requests_per_second=pool.capacity_per_second / pool.instances,
        utilisation=pool.utilisation,
        bottleneck=prediction.bottleneck,
    )
