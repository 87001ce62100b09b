"""What a serving engine can run, as data: one profile per engine and range of versions."""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field

from ground.sourced import Sourced
from ground.strict import Strict
from hardware.spec import Dtype

Accelerator = Literal["nvidia", "ascend"]
RoleName = Literal["prefill", "decode", "mixed"]
Scope = Literal["rank", "instance"]
Degree = Literal["attention_dp", "moe_ep"]
PlatformKind = Literal["bare", "slurm", "lws", "statefulset", "volcano", "dynamo", "llm-d", "motor"]
Value = TypeVar("Value")
Source = Annotated[str, Field(min_length=4)]


class Fact(Strict, Generic[Value]):
    """One fact of an engine with where it was read."""

    value: Value
    source: Source
    note: str | None = None


class Versions(Strict):
    """Versions that a profile holds for: ``first`` up to, not including, ``before``; files are made for ``pinned``."""

    first: str = Field(pattern=r"^\d+(\.\d+)*$")
    before: str = Field(pattern=r"^\d+(\.\d+)*$")
    pinned: str = Field(pattern=r"^\d+(\.\d+)*$", description="the version whose flags were read")


class ExpertMode(Strict):
    """One way to lay experts over the devices of a stage; its EP and TP multiply to them.

    ``ep``: ``stage`` all of them, ``one`` none (experts are cut by TP alone), ``divisor`` any divisor.
    """

    name: str
    ep: Literal["stage", "one", "divisor"]
    exchange: Literal["all_to_all", "all_gather", "none"]
    redundancy: bool = Field(description="whether experts can have replicas in this mode")
    microbatches: bool = Field(description="whether two microbatches can overlap in this mode")
    architectures: list[str] | None = Field(default=None, description="model_type that have it; null: all MoE models")
    source: Source
    note: str | None = None


class Parallelism(Strict):
    """Degrees that an instance can have."""

    pipeline: Fact[bool]
    pipeline_drafts: Fact[bool] = Field(description="whether decode with pipeline stages can draft tokens")
    staged_attention: Fact[bool] = Field(description="SP-TP-SP prefill")
    domains: Fact[bool] = Field(description="attention and experts on different devices")
    dedicated_shared_experts: Fact[bool] = Field(description="ranks that hold nothing but the shared expert")
    tensor_scope: Fact[Literal["any", "node_or_stage"]] = Field(
        description="node_or_stage: TP lies inside a node or spans the stage"
    )
    powers_of_two: Fact[list[Degree]]
    whole_nodes: Fact[bool] = Field(description="whether every node of an instance must hold as many of its ranks")
    rank_over_nodes: Fact[bool] = Field(description="whether one of several attention DP ranks may span nodes")
    attention: Fact[Literal["tensor_or_data"]] | None = Field(
        default=None, description="tensor_or_data: a stage's ranks are all of one TP group or all DP ranks; null: any"
    )
    experts: list[ExpertMode] = Field(min_length=1)
    exchange_ranks: Fact[dict[RoleName, list[int]]] | None = Field(
        default=None, description="role -> EP that the all-to-all has kernels for; other roles and null: any"
    )
    exchange_node: Fact[int] | None = Field(
        default=None, description="devices that nodes must have where those kernels span nodes; null: any number"
    )


class Redundancy(Strict):
    """Replicas of experts: ``total`` slots beyond one per expert, or slots ``per_device``, or ``map`` file only."""

    unit: Fact[Literal["total", "per_device", "map"]]
    placement: Fact[Literal["none", "ascend_map", "sglang_map", "manifest"]] = Field(
        description="format of a static expert map that the engine loads"
    )
    without: Fact[Literal["ragged", "even"]] = Field(
        description="whether experts need not divide over EP ranks where there are no replicas"
    )


class Microbatching(Strict):
    """Two microbatches that overlap."""

    roles: Fact[list[RoleName]]
    attention_dp: Fact[bool] = Field(description="whether it needs several attention DP ranks")


class Drafting(Strict):
    """Multi-token prediction."""

    most: Fact[int] = Field(description="most drafts per iteration")
    prefill: Fact[Literal["one", "same", "none"]] = Field(
        description="drafts that a prefill instance must be started with where decode drafts"
    )


class BatchScopes(Strict):
    """What the engine's batch limits count: one attention DP rank or the whole instance."""

    sequences: Fact[Scope]
    tokens: Fact[Scope]


class CacheTypes(Strict):
    """Number formats of the KV cache and of weights."""

    kv: Fact[list[Dtype]]
    weights: Fact[list[Dtype]]


class PrefillDecode(Strict):
    """Which prefill and decode instances can work together."""

    tensor: Fact[Literal["any", "prefill_multiple_unless_latent"]]
    same: Fact[list[Literal["kv_dtype", "drafts_method", "device"]]]
    most_instances: Fact[int] | None = None
    pipeline: Fact[bool] = Field(description="whether the instances may have pipeline stages")


class Kind(Strict):
    """A form of deployment files: which accelerators it is possible on, or why it is not."""

    accelerators: list[Accelerator]
    source: Source
    reason: str | None = Field(default=None, description="why it is not possible on the others")


class HostOverhead(Strict):
    """Time that the host keeps the device waiting; null: not published, the hardware's own value holds."""

    decode_gap_seconds: Sourced | None


class Scheduling(Strict):
    """How an aggregated instance schedules; the words are those of ``planner.serving.rules``."""

    order: Fact[Literal["shared", "prompts_first", "mixed_chunk"]]
    whole_prompts: Fact[bool] | None = Field(default=None, description="whether prompts are not cut to fill a step")
    overlapped: Fact[bool] = Field(description="whether the next step is scheduled while one runs")
    receive_intervals: Fact[dict[str, list[tuple[int, int]]]] | None = Field(
        default=None,
        description="by machine, from how many open requests the scheduler looks for new ones every how many decode "
        "steps, as recipes set it; else at each",
    )
    admission: Fact[Literal["reserve", "need", "estimate"]]
    block_tokens: Fact[int]
    kept_blocks: Fact[int] | None = None
    dealing: Fact[Literal["round_robin", "least_requests", "least_kv"]] = Field(description="requests to DP ranks")
    initial_share: Fact[float] | None = Field(default=None, description="of what answers may take still; by estimate")
    least_share: Fact[float] | None = None
    falling_steps: Fact[int] | None = Field(default=None, description="decode iterations from the first to the least")
    retract_tokens: Fact[int] | None = None
    clip_tokens: Fact[int] | None = Field(default=None, description="longer answers are estimated at so many")
    fixed_lengths: Fact[bool] | None = Field(
        default=None, description="whether it looks ahead where no answer ends early, and nothing is cached"
    )


class Metrics(Strict):
    """Names of the Prometheus series that the engine serves on ``path``; None where it has none."""

    path: str
    ttft: str
    tpot: str
    running: str
    waiting: str
    cache: str = Field(description="share of the KV cache in use")
    prompt_tokens: str
    output_tokens: str
    requests: str | None = Field(default=None, description="requests that ended")
    prompt_lengths: str | None = Field(default=None, description="histogram of prompt tokens a request")
    output_lengths: str | None = Field(default=None, description="histogram of output tokens a request")
    cached_tokens: str | None = Field(default=None, description="prompt tokens found in the cache")


class Deployment(Strict):
    """What deployment files need beside degrees: images of the pinned version, memory and metrics."""

    images: dict[Literal["nvidia", "a2", "a3", "router"], Fact[str]]
    memory: Fact[float] = Field(
        description="share of device memory that the engine takes unless told; more only where a plan needs it"
    )
    metrics: Fact[Metrics] | None = None


class EngineProfile(Strict):
    """One engine over a range of versions."""

    schema_version: Literal[1]
    engine: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    title: str
    versions: Versions
    sources: dict[str, str] = Field(description="short name -> what was read; facts name one before a colon")
    accelerators: Fact[list[Accelerator]]
    parallelism: Parallelism
    redundancy: Redundancy
    microbatching: Microbatching
    drafting: Drafting
    batch: BatchScopes
    cache: CacheTypes
    prefill_decode: PrefillDecode
    kinds: dict[PlatformKind, Kind]
    host: HostOverhead
    scheduling: Scheduling | None = Field(default=None, description="null: not read; the reference rule is taken")
    deployment: Deployment | None = None


class Orchestrator(Strict):
    """What runs engines on a cluster: its resource, the engines that it takes and what it adds itself."""

    schema_version: Literal[1]
    name: str
    title: str
    version: str
    api: str
    sources: dict[str, str]
    engines: Fact[dict[str, str]] = Field(description="engine -> its version in this release; empty: any")
    images: dict[str, Fact[str]] = {}
    accelerators: Fact[list[Accelerator]]
    injected_flags: Fact[list[str]] = Field(
        description="flags that it adds to the engine's command, never to be emitted"
    )
    metrics: Fact[Metrics] | None = Field(default=None, description="of its front end")
