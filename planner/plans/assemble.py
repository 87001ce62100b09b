"""A plan made complete: every instance on its devices, every expert in its slots, every step cost in numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from ground.errors import Fault
from ground.prefix_cache import POOL_BLOCK_TOKENS
from ground.version import VERSION
from hardware.spec import HardwareSpec
from planner.costs.cache import device_cache, loading_seconds, model_cache, pool_rate
from planner.instances.alignment import Lot, Places, placed
from planner.instances.kv_links import kv_plane
from planner.instances.operating import DecodeServer
from planner.manifest.checks import spec_hash
from planner.manifest.layout import Instance
from planner.manifest.schema import (
    Answer,
    AnswerKinds,
    CachingPool,
    Cluster,
    EmbeddedModel,
    EmbeddingTransfer,
    Engine,
    KvTransfer,
    LinkMapping,
    MadeBy,
    Manifest,
    ManifestWorkload,
    Prediction,
    PromptKinds,
    Recovery,
    Routing,
    ServiceLevels,
    SessionShape,
    ShownPictures,
)
from planner.plans.aggregated import AggregatedPlan
from planner.plans.assemble_pool import cache_shape, pool_content
from planner.plans.expectation import aggregated_prediction, busy_share, open_prediction
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.question import Question
from planner.serving.prompts import prompts_of
from planner.serving.rules import engine_rule
from planner.workload import Workload

SEED = 0


def assemble(plan: Plan, question_answers: Mapping[str, Answer], places: Places | None = None) -> Manifest:
    """Return the manifest of a plan; the same arguments give the same manifest.

    Without ``places`` the largest instances take the first nodes, decode before prefill of the same size. An instance
    of at least a node starts at a node; smaller ones share nodes (``instances.alignment``).

    Args:
        plan: the plan of ``search.search``.
        question_answers: the question, as it appears under ``made_by``.
        places: first device of every instance, by role, where other models share the machines.
    """
    question = plan.question
    names, specs = _clusters(plan)
    places = _places(plan, names) if places is None else places
    placing: dict[str, list[Instance]] = {
        role: standing(role, pool.candidate.devices, pool.machines.devices_per_node, places[role])
        for role, pool in plan.pools()
    }
    pools = [pool_content(pool, names[role], placing[role], SEED) for role, pool in reversed(plan.pools())]
    limits = stated_levels(question)
    return Manifest(
        manifest_version=1,
        made_by=MadeBy(podplan=VERSION, question=dict(question_answers), seed=SEED),
        clusters={
            name: Cluster(nodes=_nodes_used(name, names, placing), sha256=spec_hash(spec), spec=spec)
            for name, spec in specs.items()
        },
        model=EmbeddedModel(sha256=spec_hash(question.model), spec=question.model),
        engine=_engine(question.engine),
        workload=stated_workload(question, plan.requests_per_second),
        service_levels=limits,
        pools=sorted(pools, key=lambda pool: ("encode", "prefill", "decode", "mixed").index(pool.role)),
        kv_transfer=_kv_transfer(plan) if isinstance(plan, DisaggregatedPlan) else None,
        embedding_transfer=_embedding_transfer(plan),
        caching=_caching(plan),
        routing=_routing(plan),
        recovery=_recovery(plan),
        predicted=predicted(plan, limits),
    )


def _engine(engine: str) -> Engine:
    """Return the engine's id and version; the reference engine is podplan's own."""
    name, _, version = engine.partition("@")
    return Engine(id=name, version=version or VERSION)


def _clusters(plan: Plan) -> tuple[dict[str, str], dict[str, HardwareSpec]]:
    """Return the cluster name of every role and the spec of every cluster.

    A cluster has the name of its spec, followed by the role where another spec has that name.
    """
    names: dict[str, str] = {}
    specs: dict[str, HardwareSpec] = {}
    for role, pool in reversed(plan.pools()):
        spec = pool.machines.hardware
        name = spec.name if specs.get(spec.name, spec) == spec else f"{spec.name}-{role}"
        names[role], specs[name] = name, spec
    return names, specs


def _places(plan: Plan, names: Mapping[str, str]) -> Places:
    """Return the first device of every instance of a plan that shares its machines with no other."""
    found: Places = {}
    for name in dict.fromkeys(names.values()):
        own = [(role, pool) for role, pool in reversed(plan.pools()) if names[role] == name]
        budgets = {pool.machines.budget: pool.machines for _, pool in own}
        devices = sum(machines.devices for machines in budgets.values())
        lots = [Lot(key=role, devices=pool.candidate.devices, instances=pool.instances) for role, pool in own]
        machines = replace(own[0][1].machines, devices=devices)
        placing = placed(lots, machines, devices)
        if placing is None:
            raise Fault(f"the instances of the plan have no place on {devices} devices of {name}")
        found |= placing
    return found


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
    return ServiceLevels(
        ttft_seconds=question.ttft_seconds, tpot_seconds=question.tpot_seconds, percentile=question.percentile
    )


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
    if isinstance(plan, AggregatedPlan):
        rule = engine_rule(plan.question.engine)
        routing = Routing(prefill="round_robin", decode=rule.dealing)
        return routing.model_copy(update={"chunks": "prefill_first"}) if rule.order == "prompts_first" else routing
    return Routing(prefill="round_robin")


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
    decoding = DecodeServer(question, decode.candidate, plan.transfer_seconds).decoding
    return open_prediction(
        ttft=plan.ttft,
        tpot=plan.tpot,
        e2e=plan.e2e,
        requests_per_second=plan.requests_per_second,
        output_tokens=question.workload.output_tokens.mean,
        limits=limits,
        busy={
            "decode": busy_share(
                decoding.table(), decoding.iterations.mean, plan.requests_per_second / decode.instances
            )
            if question.workload.decodes
            else 0.0
        },
        links=plan.links,
    )
