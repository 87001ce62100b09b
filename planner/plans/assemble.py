"""A plan made complete: every instance on its devices, every expert in its slots, every step cost in numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ground.prefix_cache import POOL_BLOCK_TOKENS
from ground.version import VERSION
from planner.balance.counts import longest_first, replica_counts
from planner.balance.imbalance import MIXED, LoadDistribution, sample_expert_loads
from planner.costs.cache import Cache, device_cache, loading_seconds, model_cache, pool_rate
from planner.costs.deployment import Deployment
from planner.costs.latency import balanced_cost
from planner.costs.memory import BLOCK_TOKENS, kv_capacity_tokens
from planner.instances.alignment import Places
from planner.instances.kv_links import kv_plane
from planner.manifest.checks import spec_hash
from planner.manifest.costs import StepCostModel
from planner.manifest.layout import (
    Degrees,
    ExpertLayers,
    ExpertMap,
    Instance,
    ShardRule,
    group_rules,
    rank_table,
    shard_rules,
)
from planner.manifest.schema import (
    Answer,
    AnswerKinds,
    BatchLimits,
    CachingPool,
    Cluster,
    Drafts,
    EmbeddedModel,
    EmbeddingTransfer,
    Engine,
    KvCache,
    KvTransfer,
    LinkMapping,
    MadeBy,
    Manifest,
    ManifestWorkload,
    MemoryBytes,
    OfflineWork,
    PhaseName,
    Pool,
    PoolPrediction,
    Prediction,
    PromptKinds,
    Recovery,
    Routing,
    ServiceLevels,
    SessionShape,
    ShownPictures,
)
from planner.manifest.stepcost import layers_per_stage
from planner.plans.aggregated import AggregatedPlan, PlannedAggregated
from planner.plans.expectation import aggregated_prediction, open_prediction
from planner.plans.places import clusters_of
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.pools import PlannedDecode, PlannedEncode, PlannedPool, PlannedPrefill
from planner.plans.servers import deviation_of
from planner.question import Question
from planner.serving.rules import engine_rule
from planner.serving.streams import prompts_of
from planner.strategy import Strategy, format_strategy
from planner.workload import Workload, running_kv_tokens

SEED = 0


def pool_content(pool: PlannedPool, cluster: str, instances: list[Instance], seed: int) -> Pool:
    """Return a pool of a manifest; ``seed`` draws the expert loads that placement assumes."""
    question, candidate, machines = pool.question, pool.candidate, pool.machines
    model, deployment, strategy = question.model, candidate.deployment, candidate.row.strategy
    tower = model.vision if isinstance(pool, PlannedEncode) else None
    degrees = Degrees(**strategy._asdict())
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
        mtp=Drafts(
            drafts=pool.drafts, acceptance=question.acceptance, beams=deployment.beams, loaded=deployment.loaded_drafts
        ),
        weights_dtype="bf16" if tower else machines.weights,
        kv_dtype=question.kv_dtype,
        memory_bytes_per_device=MemoryBytes.model_validate(memory, from_attributes=True),
        kv=KvCache(
            block_tokens=BLOCK_TOKENS,
            bytes_per_token_per_device=float(device_cache(deployment).token_bytes),
            capacity_tokens_per_rank=capacity,
            **cache_shape(device_cache(deployment)),
        ),
        step_costs=step_costs(pool),
        predicted=_pool_prediction(pool),
    )


def step_costs(pool: PlannedPool) -> dict[PhaseName, StepCostModel]:
    """Return the step costs of both phases, so that an instance can change its role; a mixed one has one phase.

    The phase that the pool was not planned for keeps ranks and expert places. Prefill has no drafts. Decode has too few
    tokens per device for staging; the whole weights that staging stores serve plain TP as well.
    """
    planned, costs = pool.candidate.deployment, {}
    if isinstance(pool, PlannedEncode) or planned.phase == "mixed":
        return {planned.phase: StepCostModel.from_step_cost(balanced_cost(planned, pool.question.balance))}
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
    if isinstance(pool, PlannedPrefill):
        held = device_cache(pool.candidate.deployment).charged(running_kv_tokens(workload).mean_tokens, 1.0)
        requests = int(capacity_tokens // held)
        return BatchLimits(requests_per_dp_rank=max(requests, 1), tokens_per_device=pool.candidate.tokens_per_device)
    if isinstance(pool, PlannedAggregated):
        share = pool.candidate.batched_tokens // (strategy.attention_tp * strategy.pp)
        return BatchLimits(requests_per_dp_rank=pool.candidate.batch, tokens_per_device=share)
    assert isinstance(pool, PlannedDecode)
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
        deviation=deviation_of(pool),
    )


def assemble(plan: Plan, question_answers: Mapping[str, Answer], places: Places | None = None) -> Manifest:
    """Return the manifest of a plan; the same arguments give the same manifest.

    Args:
        plan: the plan of ``search.search``.
        question_answers: the question, as it appears under ``made_by``.
        places: first device of every instance, by role, where other models share the machines.
    """
    question = plan.question
    names, specs = clusters_of(plan.pools())
    places = plan.places if places is None else places
    placing: dict[str, list[Instance]] = {
        role: standing(role, pool.candidate.devices, pool.machines.devices_per_node, places[role])
        for role, pool in plan.pools()
    }
    pools = [pool_content(pool, names[role], placing[role], SEED) for role, pool in reversed(plan.pools())]
    limits = stated_levels(question)
    engine, _, version = question.engine.partition("@")
    return Manifest(
        manifest_version=1,
        made_by=MadeBy(podplan=VERSION, question=dict(question_answers), seed=SEED),
        clusters={
            name: Cluster(nodes=_nodes_used(name, names, placing), sha256=spec_hash(spec), spec=spec)
            for name, spec in specs.items()
        },
        model=EmbeddedModel(sha256=spec_hash(question.model), spec=question.model),
        engine=Engine(id=engine, version=version or VERSION),  # the reference engine is podplan's own
        workload=stated_workload(question, plan.requests_per_second),
        service_levels=limits,
        pools=sorted(pools, key=lambda pool: ("encode", "prefill", "decode", "mixed").index(pool.role)),
        kv_transfer=_kv_transfer(plan) if isinstance(plan, DisaggregatedPlan) else None,
        embedding_transfer=_embedding_transfer(plan),
        caching=_caching(plan),
        routing=_routing(plan),
        recovery=_recovery(plan),
        predicted=predicted(plan, limits),
        told_requests=plan.played.asked_requests if plan.played else None,
    )


def standing(role: str, devices: int, per_node: int, firsts: Sequence[int]) -> list[Instance]:
    """Return instances of a role that begin at given devices, counted node by node."""
    return [
        Instance(
            name=f"{role}-{number}",
            nodes=list(range(first // per_node, (first + devices - 1) // per_node + 1)),
            first_device=first % per_node,
        )
        for number, first in enumerate(firsts)
    ]


def _nodes_used(name: str, names: Mapping[str, str], placing: Mapping[str, list[Instance]]) -> int:
    """Return the nodes of a cluster up to the last one that an instance stands on."""
    return 1 + max(
        node for role, instances in placing.items() if names[role] == name for one in instances for node in one.nodes
    )


def stated_levels(question: Question) -> ServiceLevels:
    """Return the limits of a question as a manifest states them."""
    return ServiceLevels.model_validate(question, from_attributes=True)


def stated_workload(question: Question, requests_per_second: float) -> ManifestWorkload:
    """Return the traffic of a question as a manifest states it."""
    traffic = question.workload
    return ManifestWorkload(
        input_tokens=traffic.input_tokens.mean,
        output_tokens=traffic.output_tokens.mean,
        input_cv2=traffic.input_tokens.squared_cv,
        output_cv2=traffic.output_tokens.squared_cv,
        requests_per_second=requests_per_second,
        arrival_cv2=traffic.arrival_squared_cv,
        prefix_reuse=traffic.prefix_reuse,
        prompt_kinds=_prompt_kinds(traffic),
        answer_kinds=_answer_kinds(traffic),
        sessions=_sessions(traffic),
        picture_tokens=float(traffic.pictures.tokens) if traffic.pictures else 0.0,
        pictures=ShownPictures(**asdict(traffic.pictures.shown)) if traffic.pictures else None,
        offline=OfflineWork(**question.offline.beside_rate(requests_per_second)) if question.offline else None,
    )


def _prompt_kinds(traffic: Workload) -> PromptKinds | None:
    """Return the prompt kinds of a histogram, trace or gamma distribution; moments determine a log-normal one."""
    if traffic.prompts is None and (traffic.input_tokens.shape == "lognormal" or not traffic.input_tokens.squared_cv):
        return None
    kinds = prompts_of(traffic)
    return PromptKinds(tokens=kinds.tokens.tolist(), reused=kinds.reused.tolist(), weights=kinds.weights.tolist())


def _sessions(traffic: Workload) -> SessionShape | None:
    shape = traffic.sessions
    if shape is None:
        return None
    return SessionShape(
        turns=shape.turns,
        new_tokens=shape.new_tokens.mean,
        new_cv2=shape.new_tokens.squared_cv,
        think_seconds=shape.think_seconds,
        branches=shape.branches,
        keeps_answers=shape.keeps_answers,
    )


def _answer_kinds(traffic: Workload) -> AnswerKinds | None:
    if traffic.answers is None:
        return None
    tokens, weights = zip(*traffic.answers, strict=True)
    return AnswerKinds(tokens=list(tokens), weights=list(weights))


def _routing(plan: Plan) -> Routing:
    """Return the routing policies that the queues of the plan assume.

    With elastic passes the least loaded instance is often the one whose pass has just begun, where a request waits
    longest. Dealt in turn, requests arrive evenly and wait half a pass on average. Aggregated instances deal requests
    to ranks, and order steps, as their engine does.
    """
    own = plan.question.prefix_routing
    kept: dict[str, Any] = {"prefill": own or "round_robin", "prefixes": "instance" if own else "shared"}
    if isinstance(plan, AggregatedPlan):
        rule = engine_rule(plan.question.engine)
        kept |= {"decode": rule.dealing} | ({"chunks": "prefill_first"} if rule.order == "prompts_first" else {})
    return Routing(**kept)


def _kv_transfer(plan: DisaggregatedPlan) -> KvTransfer:
    """Return the links between the pools: the slower of both machines' KV planes.

    ratio = prefill TP / decode TP, group size = decode DP (of all domains) / ratio (CloudMatrix384 section 4.3.3).
    """
    first, second = plan.prefill, plan.decode
    rate, latency = kv_plane(plan.question)
    source, target = first.candidate.row.strategy, second.candidate.row.strategy
    ratio = source.attention_tp / target.attention_tp
    cache = model_cache(first.candidate.deployment)
    return KvTransfer(
        plane=first.machines.hardware.kv_plane,
        bandwidth_bytes_per_second=rate,
        latency_seconds=latency,
        bytes_per_token=float(cache.token_bytes),
        **cache_shape(cache),
        mapping=LinkMapping(ratio=ratio, group_size=target.attention_groups / ratio),
    )


def _embedding_transfer(plan: Plan) -> EmbeddingTransfer | None:
    """Return the transfer of embeddings from encode instances to the next role, over the KV plane."""
    if plan.encode is None:
        return None
    rate, latency = kv_plane(plan.question)
    return EmbeddingTransfer(
        plane=plan.encode.machines.hardware.kv_plane,
        bandwidth_bytes_per_second=rate,
        latency_seconds=latency,
        bytes_per_token=float(model_cache(plan.encode.candidate.deployment).token_bytes),
    )


def _recovery(plan: Plan) -> Recovery:
    """Return the source of weights: pooled host memory over the plane that was asked for, or a store."""
    plane = plan.question.model_cache
    if plane is None:
        return Recovery()
    machines = [pool.machines.hardware for _, pool in plan.pools()]
    return Recovery(pool_bytes_per_second=min(pool_rate(spec, spec.plane(plane)) for spec in machines))


def _caching(plan: Plan) -> CachingPool | None:
    """Return the prefix cache pool with its effective read rates, latencies of blocks included."""
    pool = plan.question.prefix_pool
    if pool is None:
        return None
    first = plan.language_pools()[0][1]
    own = replace(first.candidate.deployment, phase="prefill", prefix_plane=pool.plane)
    each = device_cache(own).token_bytes
    dram, ssd = (float(each / loading_seconds(replace(own, prefix_ssd_share=share))) for share in (0.0, 1.0))
    return CachingPool(
        plane=pool.plane,
        capacity_bytes=pool.capacity_bytes,
        bandwidth_bytes_per_second=dram,
        block_tokens=POOL_BLOCK_TOKENS,
        ssd_capacity_bytes=pool.ssd_bytes,
        ssd_bandwidth_bytes_per_second=ssd if pool.ssd_bytes else None,
    )


def predicted(plan: Plan, limits: ServiceLevels) -> Prediction:
    """Return the plan's figures in the keys of a simulation's result."""
    if isinstance(plan, AggregatedPlan):
        tokens = plan.question.workload.output_tokens.mean
        return aggregated_prediction(plan.mixed.state, plan.requests_per_second, tokens, limits)
    assert isinstance(plan, DisaggregatedPlan)
    decode, question = plan.decode, plan.question
    rate = plan.requests_per_second * question.requests_each / decode.instances
    queue = plan.decoder(question).decoding.queue(0.0)
    return open_prediction(
        ttft=plan.ttft,
        tpot=plan.tpot,
        e2e=plan.e2e,
        requests_per_second=plan.requests_per_second,
        output_tokens=question.workload.output_tokens.mean,
        limits=limits,
        busy={"decode": queue.busy_share(rate) if question.workload.decodes else 0.0},
        links=plan.links,
    )
