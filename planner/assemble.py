"""A plan made complete: every instance on its devices, every expert in its slots, every step cost in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hardware.spec import HardwareSpec
from planner.assemble_pool import cache_shape, pool_content
from planner.cache import model_cache
from planner.expectation import busy_share, open_prediction
from planner.manifest.checks import spec_hash
from planner.manifest.layout import Instance
from planner.manifest.schema import (
    Answer,
    Cluster,
    EmbeddedModel,
    Engine,
    KvTransfer,
    LinkMapping,
    MadeBy,
    Manifest,
    ManifestWorkload,
    Prediction,
    Routing,
    ServiceLevels,
)
from planner.operating import DecodeServer
from planner.plan import DisaggregatedPlan, Plan
from planner.pools import PlannedPool
from planner.question import Question
from podplan.version import VERSION

SEED = 0


def assemble(plan: Plan, question_answers: Mapping[str, Answer]) -> Manifest:
    """Return the manifest of a plan; the same arguments give the same manifest.

    Decode instances take the first nodes, prefill instances the next. An instance of at least a node starts
    at a node; smaller ones share nodes.

    Args:
        plan: what ``planner.search`` found.
        question_answers: what was asked, as it shall stand under ``made_by``.
    """
    question = plan.question
    floor = _Floor()
    pools = []
    for role, pool in reversed(plan.pools()):
        name = floor.cluster_name(pool.machines.hardware, role)
        instances = floor.place(name, role, pool)
        pools.append(pool_content(pool, name, instances, SEED))
    limits = ServiceLevels(
        ttft_seconds=question.ttft_seconds, tpot_seconds=question.tpot_seconds, percentile=question.percentile
    )
    return Manifest(
        manifest_version=1,
        made_by=MadeBy(podplan=VERSION, question=dict(question_answers), seed=SEED),
        clusters=floor.clusters(),
        model=EmbeddedModel(sha256=spec_hash(question.model), spec=question.model),
        engine=_engine(question.engine),
        workload=_workload(question, plan.requests_per_second),
        service_levels=limits,
        pools=sorted(pools, key=lambda pool: pool.role != "prefill"),
        kv_transfer=_kv_transfer(plan) if isinstance(plan, DisaggregatedPlan) else None,
        # Of elastic passes, the instance with least work is often the one whose pass has just begun: it would keep
        # a request waiting longest. In turn, requests come evenly and meet a pass half way on average.
        routing=Routing(prefill="round_robin"),
        predicted=predicted(plan, limits),
    )


def _engine(engine: str) -> Engine:
    """Return the engine's id and version; the reference engine is podplan's own."""
    name, _, version = engine.partition("@")
    return Engine(id=name, version=version or VERSION)


@dataclass(slots=True)
class _Floor:
    """Clusters by name, and the first device of each that is still free."""

    specs: dict[str, HardwareSpec] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)

    def cluster_name(self, spec: HardwareSpec, role: str) -> str:
        """Return the cluster of a spec: its name, with the role behind it where another spec has that name."""
        name = spec.name
        if name in self.specs and self.specs[name] != spec:
            name = f"{name}-{role}"
        self.specs[name] = spec
        self.free.setdefault(name, 0)
        return name

    def place(self, cluster: str, role: str, pool: PlannedPool) -> list[Instance]:
        """Return the instances of a pool on the next free devices, node-aligned."""
        per_node, devices = pool.machines.devices_per_node, pool.candidate.devices
        instances = []
        for number in range(pool.instances):
            first = self.free[cluster]
            if first % per_node and first % per_node + devices > per_node:
                first += -first % per_node
            last = first + devices - 1
            instances.append(
                Instance(
                    name=f"{role}-{number}",
                    nodes=list(range(first // per_node, last // per_node + 1)),
                    first_device=first % per_node,
                )
            )
            self.free[cluster] = last + 1
        return instances

    def clusters(self) -> dict[str, Cluster]:
        """Return the clusters with as many nodes as are used."""
        return {
            name: Cluster(
                nodes=-(-self.free[name] // int(spec.devices_per_node.value)), sha256=spec_hash(spec), spec=spec
            )
            for name, spec in self.specs.items()
        }


def _workload(question: Question, requests_per_second: float) -> ManifestWorkload:
    traffic = question.workload
    return ManifestWorkload(
        input_tokens=traffic.input_tokens.mean,
        output_tokens=traffic.output_tokens.mean,
        input_cv2=traffic.input_tokens.squared_cv,
        output_cv2=traffic.output_tokens.squared_cv,
        requests_per_second=requests_per_second,
        arrival_cv2=traffic.arrival_squared_cv,
        prefix_reuse=traffic.prefix_reuse,
    )


def _kv_transfer(plan: DisaggregatedPlan) -> KvTransfer:
    """Return the links between the pools: the slower of both machines' KV planes.

    ratio = prefill TP / decode TP, group size = decode DP (of all domains) / ratio (CloudMatrix384 section 4.3.3).
    """
    first, second = plan.prefill, plan.decode
    planes = [pool.machines.hardware.plane(pool.machines.hardware.kv_plane) for pool in (first, second)]
    source, target = first.candidate.row.strategy, second.candidate.row.strategy
    ratio = source.attention_tp / target.attention_tp
    cache = model_cache(first.candidate.deployment)
    return KvTransfer(
        plane=planes[0].name,
        bandwidth_bytes_per_second=min(p.bandwidth_bytes_per_second.value * p.efficiency.value for p in planes),
        latency_seconds=max(plane.latency_seconds.value for plane in planes),
        bytes_per_token=float(cache.token_bytes),
        **cache_shape(cache),
        mapping=LinkMapping(ratio=ratio, group_size=target.attention_groups / ratio),
    )


def predicted(plan: Plan, limits: ServiceLevels) -> Prediction:
    """Return the plan's figures in the keys of a simulation's result."""
    assert isinstance(plan, DisaggregatedPlan)
    decode, question = plan.decode, plan.question
    server = DecodeServer(question, decode.candidate, plan.transfer_seconds)
    return open_prediction(
        ttft=plan.ttft,
        tpot=plan.tpot,
        e2e=plan.e2e,
        requests_per_second=plan.requests_per_second,
        output_tokens=question.workload.output_tokens.mean,
        limits=limits,
        decode_busy=busy_share(
            server.iteration_table(), server.iterations.mean, plan.requests_per_second / decode.instances
        ),
    )
