"""The manifest: everything that runtime and exporters need, and nothing outside it.

Content that instances share stands once, in their pool; instances say where they are.
"""

from typing import Annotated, Literal

from pydantic import Field

from ground.prefix_cache import PrefixCache
from ground.records import Name
from ground.strict import Strict
from hardware.formats import KvDtype
from hardware.spec import Dtype, HardwareSpec
from models.spec import ModelSpec
from planner.manifest.costs import Amount, Natural, Positive, Rate, Result, Share, StepCostModel
from planner.manifest.curves import Number, charged_tokens
from planner.manifest.layout import MOST_INSTANCES, Degrees, ExpertMap, GroupRule, Instance, RankTable, ShardRule
from planner.manifest.loading import (
    STARTUP_SECONDS,
    STORAGE_BYTES_PER_SECOND,
    checkpoint_bytes,
    slowest_plane,
    stored_seconds,
)

MANIFEST_VERSION = 1

Role = Literal["encode", "prefill", "decode", "mixed"]
PhaseName = Literal["prefill", "decode", "mixed"]
Scalar = bool | int | float | str | None
Answer = Scalar | list[Scalar] | dict[str, Scalar]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class MadeBy(Strict):
    """How the manifest came about: enough to make it again."""

    podplan: Name
    question: dict[str, Answer] = Field(default={}, max_length=200)
    seed: Natural = 0


class Cluster(Strict):
    """A machine's spec, embedded, with the number of nodes that the plan may use."""

    nodes: Positive
    sha256: Sha256
    spec: HardwareSpec


class EmbeddedModel(Strict):
    """The model's spec, embedded."""

    sha256: Sha256
    spec: ModelSpec


class BatchLimits(Strict):
    """What the scheduler may put into one step."""

    requests_per_dp_rank: Positive = Field(
        description="decode: running requests per DP rank, all microbatches together"
    )
    tokens_per_device: Positive = Field(
        description="prefill: prompt tokens of one pass per device of a DP rank; mixed: all tokens of a step; "
        "of both, each pipeline stage holds a part at a time"
    )


class Drafts(Strict):
    """Multi-token prediction: drafts per iteration, and the chance of each given those before it."""

    drafts: int = Field(strict=True, ge=0, le=16)
    acceptance: Share | Annotated[tuple[Share, ...], Field(min_length=1, max_length=16)] = Field(
        default=0.7, description="of each draft, or of the first, the second, ...; the last holds beyond"
    )
    beams: int = Field(strict=True, default=1, ge=1, le=1024, description="of a request, each with a token a step")
    loaded: int = Field(strict=True, default=0, ge=0, le=16, description="drafts whose layers prefill holds for decode")


class MemoryBytes(Strict):
    """Bytes per device by kind."""

    weights: Amount
    kv_cache: Amount
    activations: Amount
    buffers: Amount
    reserve: Amount
    capacity: Rate


class CacheShape(Strict):
    """How a request's cache grows where some layers keep only recent tokens, or a state instead of tokens."""

    reach_tokens: Natural = Field(default=0, description="tokens that windowed layers keep of a request")
    reach_share: Share = Field(default=0.0, description="share of a token's bytes that lies in windowed layers")
    sequence_tokens: Amount = Field(default=0.0, description="recurrent state of a request in tokens' worth of bytes")

    @property
    def shaped(self) -> bool:
        """Whether a request takes anything else than its tokens."""
        return bool(self.reach_share or self.sequence_tokens)

    def charged(self, tokens: Number, requests: float = 1) -> Number:
        """Tokens' worth of cache that ``requests`` requests of ``tokens`` tokens in all take."""
        if not self.shaped:
            return tokens
        share, state = self.reach_share, self.sequence_tokens
        return charged_tokens(tokens, requests, reach=self.reach_tokens, reach_share=share, sequence_tokens=state)


class KvCache(CacheShape):
    """Paged KV cache of one DP rank."""

    block_tokens: Positive
    bytes_per_token_per_device: Rate = Field(description="of a token within all windows")
    capacity_tokens_per_rank: Positive = Field(description="tokens of one DP rank, all its devices together")


class Statistics(Strict):
    """Mean and percentiles of a latency in seconds."""

    mean: Result
    p50: Result
    p90: Result
    p99: Result


class PoolPrediction(Strict):
    """What the cost model expects of one instance of a pool at the planned batch."""

    iteration_seconds: Result
    tokens_per_second_per_device: Result
    tokens_per_second_per_chip: Result
    requests_per_second: Result | None = None
    utilisation: Result | None = None
    bottleneck: Name | None = None
    deviation: Result | None = Field(default=None, description="standard deviation of step times, relative")


class Pool(Strict):
    """The content of one role and its instances."""

    role: Role
    hardware: Name = Field(description="key of clusters")
    strategy: Name
    degrees: Degrees
    devices_per_instance: Positive
    chips_per_instance: Rate
    instances: list[Instance] = Field(min_length=1, max_length=MOST_INSTANCES)
    rank_table: RankTable
    groups: list[GroupRule] = Field(default=[], max_length=16)
    layers_per_stage: list[Positive] = Field(
        min_length=1, max_length=1024, description="of the model; of encode pools those of its encoder"
    )
    weight_shards: list[ShardRule] = Field(min_length=1, max_length=256)
    expert_map: ExpertMap | None = None
    limits: BatchLimits
    microbatches: Literal[1, 2] = Field(description="most microbatches that a step may be cut into")
    mtp: Drafts = Drafts(drafts=0)
    weights_dtype: Dtype
    kv_dtype: KvDtype
    memory_bytes_per_device: MemoryBytes
    kv: KvCache
    step_costs: dict[PhaseName, StepCostModel] = Field(
        min_length=1, description="phase -> what a step takes; of encode pools that of a pass over pictures, as prefill"
    )
    predicted: PoolPrediction | None = None

    @property
    def phase(self) -> PhaseName:
        """The phase of the steps that the pool is planned for; a pass over pictures is one over prompts of theirs."""
        return "prefill" if self.role == "encode" else self.role


class LinkMapping(Strict):
    """Balanced prefill-decode links: ratio = prefill TP / decode TP, group_size = decode DP / ratio.

    CloudMatrix384 section 4.3.3.
    """

    ratio: Rate
    group_size: Rate

    def prefill_tp_rank(self, decode_dp_rank: int, decode_tp_rank: int, decode_tp: int) -> int:
        """Return the prefill TP rank that feeds a decode rank: group_id · decode_tp + decode_tp_rank."""
        return int(decode_dp_rank // self.group_size) * decode_tp + decode_tp_rank


class KvTransfer(CacheShape):
    """How KV goes from prefill to decode."""

    plane: Name
    bandwidth_bytes_per_second: Rate = Field(description="one way, per device, what large transfers reach")
    latency_seconds: Amount
    bytes_per_token: Rate = Field(description="whole model, each layer once, of a token within all windows")
    mapping: LinkMapping
    links: Literal["balanced", "first"] = Field(
        default="balanced", description="balanced: by the mapping; first: from the first ranks of a prefill TP group"
    )


class EmbeddingTransfer(Strict):
    """How embeddings of pictures go from encode instances to prefill or mixed ones, each over one link."""

    plane: Name
    bandwidth_bytes_per_second: Rate = Field(description="one way, per device, what large transfers reach")
    latency_seconds: Amount
    bytes_per_token: Rate = Field(description="of a token that a picture became")


class CachingPool(Strict):
    """Prefix cache behind the prefill instances."""

    plane: Name
    capacity_bytes: Rate
    bandwidth_bytes_per_second: Rate = Field(description="per device")
    block_tokens: Positive
    ssd_capacity_bytes: Amount = Field(default=0.0, description="behind the memory tier, which writes through to it")
    ssd_bandwidth_bytes_per_second: Rate | None = Field(default=None, description="per device; None: as memory")


class Routing(Strict):
    """Which instance and rank a request goes to, and what goes first; docs/simulate.md describes each policy."""

    prefill: Literal["least_load", "round_robin", "collaborative", "prefix_aware"] = "least_load"
    prefixes: Literal["shared", "instance"] = Field(
        default="shared", description="where blocks of prompts are found: in one cache of all, or in each instance too"
    )
    decode: Literal["least_kv", "least_requests", "round_robin"] = "least_kv"
    ranks: Literal["placed", "even"] = Field(
        default="placed",
        description="even: running requests move between the DP ranks of an instance (xLLM section 4.4)",
    )
    decode_reservation: Literal["whole", "prompt"] = Field(
        default="whole", description="KV set aside at admission: prompt and whole answer, or prompt and some of it"
    )
    reserved_output_tokens: Natural = Field(default=0, description="of the answer, with decode_reservation: prompt")
    chunks: Literal["decode_first", "prefill_first"] = Field(
        default="decode_first", description="mixed instances: what fills the token budget of a step first"
    )
    roles: Literal["fixed", "dynamic"] = Field(
        default="fixed", description="dynamic: instances flip between prefill and decode (xLLM section 3.2)"
    )
    offline: Literal["equal", "priority", "slo"] = Field(
        default="slo", description="how offline requests stand beside online ones (xLLM section 3.1)"
    )


class Recovery(Strict):
    """What happens when a device, a node or a link is lost (xDeepServe section 6, xLLM section 3.5)."""

    stage: Literal["restart", "failover", "recompute"] = Field(
        default="recompute",
        description="restart everything; fail roles over apart; or also roll back one iteration on a link's glitch",
    )
    kv: Literal["recompute", "migrate", "cheaper"] = Field(
        default="cheaper", description="KV that outlives its instance: computed again or moved"
    )
    heartbeat_seconds: Amount = Field(default=10.0, description="between probes; as plan deploy's readiness probes")
    missed_heartbeats: Positive = Field(default=3, description="after which a loss is known; meanwhile requests hang")
    restart_seconds: Amount | None = Field(default=None, description="of an instance; None: start-up and its weights")
    startup_seconds: Amount = Field(default=STARTUP_SECONDS, description="from weights in place to the first request")
    storage_bytes_per_second: Rate = Field(default=STORAGE_BYTES_PER_SECOND, description="of all that read weights")
    pool_bytes_per_second: Rate | None = Field(
        default=None, description="of each device off pooled host memory that keeps the weights; None: there is none"
    )
    reconfigure_seconds: Amount = Field(default=5.0, description="pause while a decode instance drops ranks; assumed")
    kill_prefill: bool = Field(default=False, description="a prefill instance takes the role of a lost decode instance")

    @property
    def detection_seconds(self) -> float:
        """Mean time until a loss is known: it comes half way between two probes (xDeepServe section 6)."""
        return (self.missed_heartbeats - 0.5) * self.heartbeat_seconds


class ServiceLevels(Strict):
    """Limits on each request; each holds on its own at the percentile."""

    ttft_seconds: Rate | None = None
    tpot_seconds: Rate | None = None
    percentile: float = Field(default=99.0, gt=0, lt=100)


class Engine(Strict):
    """The serving engine's profile that the plan was made for."""

    id: Name
    version: Name


MOST_TOKENS = 1_000_000_000
Weights = Annotated[list[Amount], Field(min_length=1, max_length=256)]
TokenCounts = Annotated[list[Annotated[float, Field(ge=1, le=MOST_TOKENS)]], Field(min_length=1, max_length=256)]


class ShownPictures(Strict):
    """The pictures of every prompt as they are sent; a video is one of several frames."""

    count: Positive
    width: Positive
    height: Positive
    frames: Positive = 1


class PromptKinds(Strict):
    """Lengths of prompts as a histogram or a trace had them, with what of each is reused; columns of equal length."""

    tokens: TokenCounts
    reused: Annotated[list[Amount], Field(min_length=1, max_length=256)]
    weights: Weights


class AnswerKinds(Strict):
    """Lengths of answers as a histogram had them; columns of equal length."""

    tokens: TokenCounts
    weights: Weights


class SessionShape(Strict):
    """Turns that follow each other; see ``planner.workload.Sessions``."""

    turns: Positive
    new_tokens: float = Field(ge=1)
    new_cv2: Amount = 0.0
    think_seconds: Amount = 0.0
    branches: Positive = 1
    keeps_answers: bool = True


class OfflineWork(Strict):
    """Requests beside the others for whose answers nobody waits."""

    requests_per_second: Rate
    input_tokens: float = Field(ge=1)
    output_tokens: float = Field(ge=1)


class ManifestWorkload(Strict):
    """The traffic that the plan was made for; lengths by mean and squared coefficient of variation (0: fixed).

    Kinds tell the lengths that means and variations only sum up; where they stand, requests are drawn from them.
    """

    input_tokens: float = Field(ge=1)
    output_tokens: float = Field(ge=1)
    input_cv2: Amount = 0.0
    output_cv2: Amount = 0.0
    requests_per_second: Rate | None = None
    arrival_cv2: float = Field(default=1.0, ge=0, description="of the gaps between arrivals; 1 = Poisson")
    prefix_reuse: float = Field(default=0.0, ge=0, lt=1, description="mean share of prompt tokens found in the cache")
    prefix_reuse_of_hits: float = Field(default=0.95, gt=0, lt=1, description="that share for a request that hits")
    prompt_kinds: PromptKinds | None = None
    answer_kinds: AnswerKinds | None = None
    sessions: SessionShape | None = None
    picture_tokens: Amount = Field(default=0.0, description="of a prompt, made by the model's encoder of pictures")
    pictures: ShownPictures | None = Field(default=None, description="what they are made from")
    offline: OfflineWork | None = None


class Prediction(Strict):
    """What the plan is expected to do; the keys of ``plan simulate --json``."""

    requests_per_second: Result | None = None
    output_tokens_per_second: Result | None = None
    ttft_seconds: Statistics | None = None
    tpot_seconds: Statistics | None = None
    e2e_seconds: Statistics | None = None
    slo_attainment: Share | None = None
    goodput_requests_per_second: Result | None = None
    utilisation: dict[Role, Result] | None = None
    mean_transfer_wait_seconds: Result | None = Field(default=None, description="of a prompt's KV for links")
    link_utilisation: dict[Role, Result] | None = Field(default=None, description="share of time they carry KV")


class Manifest(Strict):
    """One deployment, complete."""

    manifest_version: Literal[1]
    made_by: MadeBy
    clusters: dict[Name, Cluster] = Field(min_length=1, max_length=16)
    model: EmbeddedModel
    engine: Engine
    workload: ManifestWorkload
    service_levels: ServiceLevels
    pools: list[Pool] = Field(min_length=1, max_length=16)
    kv_transfer: KvTransfer | None = Field(description="None where every pool is mixed")
    embedding_transfer: EmbeddingTransfer | None = Field(
        default=None, description="None where no pool encodes pictures alone"
    )
    caching: CachingPool | None = None
    routing: Routing = Routing()
    recovery: Recovery = Recovery()
    predicted: Prediction = Prediction()
    told_requests: Positive | None = Field(
        default=None, description="of the stream that tells the predicted latencies; None: as many as the rate asks for"
    )

    def cache(self, block_tokens: int) -> PrefixCache:
        """Return its pool of prefixes, empty; without a limit where it has none, or requests no blocks.

        The KV of a token is counted as it crosses to decode, else on all devices of a DP rank.
        """
        if self.caching is None or not block_tokens:
            return PrefixCache(block_tokens)
        first = self.pools[0]
        each = first.kv.bytes_per_token_per_device * first.degrees.attention_tp * first.degrees.pp
        if self.kv_transfer is not None:
            each = self.kv_transfer.bytes_per_token
        return PrefixCache.of_bytes(block_tokens, each, self.caching.capacity_bytes, self.caching.ssd_capacity_bytes)

    def load_seconds(self, pool: Pool, together: int = 1) -> float:
        """Return how long weights take: off pooled memory where they stay there, else off a store that all share."""
        recovery, held = self.recovery, pool.memory_bytes_per_device.weights
        if recovery.pool_bytes_per_second is not None:
            return held / recovery.pool_bytes_per_second
        plane = slowest_plane(self.clusters[pool.hardware].spec)[1]
        checkpoint = checkpoint_bytes(self.model.spec, pool.weights_dtype)
        return stored_seconds(checkpoint, held, recovery.storage_bytes_per_second, plane, together)

    def start_seconds(self, pool: Pool, together: int = 1) -> float:
        """Return how long one of ``together`` instances takes from nothing to its first request."""
        recovery, stated = self.recovery, self.recovery.restart_seconds
        return recovery.startup_seconds + self.load_seconds(pool, together) if stated is None else stated

    def requests_held(self, pool: Pool) -> float:
        """Return the requests that an instance holds on average: the planned rate times how long they stay (Little);
        its slots, where the manifest predicts no rate or no latency.
        """
        first, whole = self.predicted.ttft_seconds, self.predicted.e2e_seconds
        rate = self.workload.requests_per_second or self.predicted.requests_per_second
        if first is None or whole is None or rate is None or pool.role == "encode":
            return float(pool.limits.requests_per_dp_rank * pool.degrees.attention_groups)
        stay = {"prefill": first.mean, "decode": whole.mean - first.mean, "mixed": whole.mean}[pool.role]
        return rate * stay / sum(len(other.instances) for other in self.pools if other.role == pool.role)
