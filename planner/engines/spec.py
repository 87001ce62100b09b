"""What a serving engine can run, as data: one profile per engine and range of versions."""

from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

from ground.records import Limits, Source, Sourced
from hardware.formats import KvDtype
from hardware.spec import Dtype

Accelerator = Literal["nvidia", "amd", "ascend"]
ACCELERATORS: dict[Accelerator, str] = {"nvidia": "NVIDIA", "amd": "AMD", "ascend": "Ascend"}  # how sentences name them
ShapeName = Literal["disaggregated", "aggregated"]
RoleName = Literal["encode", "prefill", "decode", "mixed"]
Scope = Literal["rank", "instance"]
Degree = Literal["attention_dp", "moe_ep"]
PlatformKind = Literal["bare", "slurm", "lws", "statefulset", "volcano", "dynamo", "llm-d", "motor"]
Value = TypeVar("Value")
Number = Annotated[str, Limits(pattern=r"^\d+(\.\d+)*$")]


class Fact(NamedTuple, Generic[Value]):
    """One fact of an engine with where it was read."""

    value: Value
    source: Source
    note: str | None = None
    on: dict[Accelerator, Value] | None = None  # of devices where it is another

    def of(self, accelerator: Accelerator | None) -> Value:
        """Return the value on a kind of devices."""
        return self.value if self.on is None or accelerator is None else self.on.get(accelerator, self.value)


class Versions(NamedTuple):
    """Versions that a profile holds for: ``first`` up to, not including, ``before``; files are made for ``pinned``."""

    first: Number
    before: Number
    pinned: Number  # the version whose flags were read


class ExpertMode(NamedTuple):
    """One way to lay experts over the devices of a stage; its EP and TP multiply to them.

    ``ep``: ``stage`` all of them, ``one`` none (experts are cut by TP alone), ``divisor`` any divisor.
    """

    name: str
    ep: Literal["stage", "one", "divisor"]
    exchange: Literal["all_to_all", "all_gather", "none"]
    redundancy: bool  # whether experts can have replicas in this mode
    microbatches: bool  # whether two microbatches can overlap in this mode
    source: Source
    architectures: list[str] | None = None  # ``model_type`` that have it; None: all MoE models
    roles: list[RoleName] | None = None  # roles of instances that have the feature; None: all
    accelerators: list[Accelerator] | None = None  # kinds of devices that it runs on; None: all of the engine's
    pcie: bool | None = None  # whether it is of nodes whose devices PCIe alone joins, or of all others; None: of both
    note: str | None = None

    def serves(self, role: RoleName, architecture: str, accelerator: Accelerator | None, pcie: bool) -> bool:
        """Whether instances of a role have it for a model on a kind of devices, None for any, in such nodes."""
        if self.pcie is not None and self.pcie != pcie:
            return False
        named = self.architectures is None or architecture in self.architectures
        known = accelerator is None or self.accelerators is None or accelerator in self.accelerators
        return named and known and (self.roles is None or role in self.roles)


class Parallelism(NamedTuple):
    """Degrees that an instance can have."""

    pipeline: Fact[bool]
    pipeline_drafts: Fact[bool]  # whether decode with pipeline stages can draft tokens
    staged_attention: Fact[bool]  # SP-TP-SP prefill
    domains: Fact[bool]  # attention and experts on different devices
    dedicated_shared_experts: Fact[bool]  # ranks that hold nothing but the shared expert
    tensor_scope: Fact[Literal["any", "node_or_stage"]]  # ``node_or_stage``: TP lies inside a node or spans the stage
    powers_of_two: Fact[list[Degree]]
    whole_nodes: Fact[bool]  # whether every node of an instance must hold as many of its ranks
    rank_over_nodes: Fact[bool]  # whether one of several attention DP ranks may span nodes
    experts: Annotated[list[ExpertMode], Limits(min_length=1)]
    attention: Fact[Literal["tensor_or_data"]] | None = None
    """``tensor_or_data``: a stage's ranks are all of one TP group or all DP ranks; None: any."""
    exchange_ranks: Fact[dict[RoleName, list[int]]] | None = None
    """By role the EP that the all-to-all has kernels for; other roles and None: any."""
    exchange_node: Fact[int] | None = None  # devices that nodes must have where those kernels span them; None: any


class Redundancy(NamedTuple):
    """Replicas of experts: ``total`` slots beyond one per expert, or slots ``per_device``, or ``map`` file only."""

    unit: Fact[Literal["total", "per_device", "map"]]
    placement: Fact[Literal["none", "ascend_map", "sglang_map", "manifest"]]  # format of a static map that it loads
    without: Fact[Literal["ragged", "even"]]  # whether experts need not divide over EP ranks without replicas
    architectures: Fact[list[str]] | None = None  # ``model_type`` whose experts can have replicas; None: all MoE models
    blackwell_blocks: Fact[bool] | None = None
    """Whether experts in FP8 with a scale per block can have replicas on Blackwell devices; None: they can."""


class Microbatching(NamedTuple):
    """Two microbatches that overlap."""

    roles: Fact[list[RoleName]]
    attention_dp: Fact[bool]  # whether it needs several attention DP ranks
    architectures: Fact[list[str]] | None = None  # ``model_type`` whose layers have it; None: all


class Drafting(NamedTuple):
    """Multi-token prediction."""

    most: Fact[int]  # most drafts per iteration
    prefill: Fact[Literal["one", "same", "none"]]  # drafts that prefill must be started with where decode drafts
    architectures: Fact[list[str]] | None = None  # ``model_type`` whose MTP layers it runs; None: all
    states: Fact[Literal["drafts", "window"]] | None = None
    """What a request has recurrent states of besides its own: each draft, or each token that decode verifies."""

    def in_prefill(self, drafts: int) -> int:
        """Return the drafts of a prefill instance beside decode with so many."""
        return {"one": min(drafts, 1), "same": drafts, "none": 0}[self.prefill.value]


class BatchScopes(NamedTuple):
    """What the engine's batch limits count: one attention DP rank or the whole instance."""

    sequences: Fact[Scope]
    tokens: Fact[Scope]


class CacheTypes(NamedTuple):
    """Number formats of the KV cache and of weights."""

    kv: Fact[list[KvDtype]]
    weights: Fact[list[Dtype]]
    expert_columns: Fact[int] | None = None
    """Of an expert that ships in FP8 with a scale per block, TP cuts a multiple of so many; None: any number."""
    fp8_unasked: Fact[dict[str, Literal["gpus", "blackwell"]]] | None = None
    """Where the cache of a ``model_type`` is FP8 unless a flag says otherwise."""
    fp8_alone: Fact[list[str]] | None = None  # ``model_type`` whose cache is FP8 in any case
    fp8_in_parts: Fact[bool] | None = None
    """Whether FP8 caches of sparse attention hold a BF16 rotary key and scales, but on Blackwell; None: one scale."""

    def kv_of(self, architecture: str) -> list[KvDtype]:
        """Return the formats in which a model's keys and values are cached, the first that is planned with unasked."""
        return ["fp8"] if self.fp8_alone and architecture in self.fp8_alone.value else self.kv.value

    def unasked(self, architecture: str, accelerator: Accelerator | None, *, blackwell: bool) -> KvDtype:
        """Return the format of a model's cache where no flag tells it."""
        where = self.fp8_unasked.value.get(architecture) if self.fp8_unasked else None
        if (where == "gpus" and accelerator != "ascend") or (where == "blackwell" and blackwell):
            return "fp8"
        return self.kv_of(architecture)[0]


class PrefillDecode(NamedTuple):
    """Which prefill and decode instances can work together."""

    tensor: Fact[Literal["any", "prefill_multiple_unless_latent"]]
    same: Fact[list[Literal["kv_dtype", "drafts_method", "device"]]]
    pipeline: Fact[bool]  # whether the instances may have pipeline stages
    prefixes: Fact[bool] | None = None  # whether prefill caches prefixes; None: it does
    most_instances: Fact[int] | None = None
    most_nodes: Fact[dict[RoleName, int]] | None = None  # of an instance, by role; None: any number


class Kind(NamedTuple):
    """A form of deployment files: which accelerators it is possible on, or why it is not."""

    accelerators: list[Accelerator]
    source: Source
    reason: str | None = None  # why it is not possible on the others


class HostOverhead(NamedTuple):
    """Time that the host keeps the device waiting; None: not published, the hardware's own value holds."""

    decode_gap_seconds: Sourced | None


class Scheduling(NamedTuple):
    """How an aggregated instance schedules; the words are those of ``planner.serving.rules``."""

    order: Fact[Literal["shared", "prompts_first", "mixed_chunk"]]
    overlapped: Fact[bool]  # whether the next step is scheduled while one runs
    admission: Fact[Literal["reserve", "need", "estimate"]]
    block_tokens: Fact[int]
    dealing: Fact[Literal["round_robin", "least_requests", "least_kv"]]  # requests to DP ranks
    whole_prompts: Fact[bool] | None = None  # whether prompts are not cut to fill a step
    overlapped_stages: Fact[bool] | None = None  # whether that holds with pipeline stages, too
    batch_slots: Fact[bool] | None = None
    """Whether each batch that pipeline stages keep in flight has its part of the batch slots."""
    receive_intervals: Fact[dict[str, list[tuple[int, int]]]] | None = None
    """By machine, from how many open requests the scheduler looks for new ones every how many decode steps, as
    recipes set it; else at each."""
    kept_blocks: Fact[int] | None = None
    initial_share: Fact[float] | None = None  # of what answers may take still; by estimate
    least_share: Fact[float] | None = None
    falling_steps: Fact[int] | None = None  # decode iterations from the first to the least
    retract_tokens: Fact[int] | None = None
    clip_tokens: Fact[int] | None = None  # longer answers are estimated at so many
    fixed_lengths: Fact[bool] | None = None  # whether it looks ahead where no answer ends early, and nothing is cached


class Metrics(NamedTuple):
    """Names of the Prometheus series that the engine serves on ``path``; None where it has none."""

    path: str
    ttft: str
    tpot: str
    running: str
    waiting: str
    cache: str  # share of the KV cache in use
    prompt_tokens: str
    output_tokens: str
    requests: str | None = None  # requests that ended
    prompt_lengths: str | None = None  # histogram of prompt tokens a request
    output_lengths: str | None = None  # histogram of output tokens a request
    cached_tokens: str | None = None  # prompt tokens found in the cache


class Deployment(NamedTuple):
    """What deployment files need beside degrees: images of the pinned version, memory and metrics."""

    images: dict[Literal["nvidia", "mi30x", "mi35x", "a2", "a3", "router"], Fact[str]]
    memory: Fact[float]  # share of device memory that the engine takes unless told; more only where a plan needs it
    metrics: Fact[Metrics] | None = None


class EngineProfile(NamedTuple):
    """One engine over a range of versions."""

    schema_version: Literal[1]
    engine: Annotated[str, Limits(pattern=r"^[a-z][a-z0-9-]*$")]
    title: str
    versions: Versions
    sources: dict[str, str]  # what was read, by short name; facts name one before a colon
    accelerators: Fact[list[Accelerator]]
    lacks: Fact[list[str]]  # ``model_type`` of models that the pinned release has no code for
    parallelism: Parallelism
    redundancy: Redundancy
    microbatching: Microbatching
    drafting: Drafting
    batch: BatchScopes
    cache: CacheTypes
    prefill_decode: PrefillDecode
    encode_pools: Fact[list[ShapeName]]
    """Shapes before which instances may stand that run the encoder of pictures alone, in a way that files can start."""
    kinds: dict[PlatformKind, Kind]
    host: HostOverhead
    encode_lacks: Fact[list[str]] | None = None
    """``model_type`` of models whose pictures those instances cannot encode; None: of none that the release runs."""
    scheduling: Scheduling | None = None  # none: not read; the reference rule is taken
    deployment: Deployment | None = None
    one_node: Fact[list[PlatformKind]] | None = None
    """Kinds of files whose instances lie on one node each, and why; None: no kind."""


class Orchestrator(NamedTuple):
    """What runs engines on a cluster: its resource, the engines that it takes and what it adds itself."""

    schema_version: Literal[1]
    name: str
    title: str
    version: str
    api: str
    sources: dict[str, str]
    engines: Fact[dict[str, str]]  # version of each engine in this release; empty: any
    accelerators: Fact[list[Accelerator]]
    injected_flags: Fact[list[str]]  # flags that it adds to the engine's command, never to be emitted
    images: dict[str, Fact[str]] = {}
    metrics: Fact[Metrics] | None = None  # metrics of the front end
