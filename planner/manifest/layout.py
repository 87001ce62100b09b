"""Where things stand: instances, ranks, groups, weight shards and experts of one pool.

Degrees -> rank table, communication groups and weight shards.

Rank order is stage, then (disaggregated) domain, then DP, then TP; the same ranks in that order are
cut into EP ranks of ``moe_tp`` consecutive ones. Disaggregated expert ranks follow the attention ranks.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ground.records import Name
from ground.strict import Strict
from hardware.formats import attention_dtype, feed_forward_dtype
from hardware.spec import Dtype
from models.spec import MLA, ModelSpec
from planner.manifest.costs import Natural, Positive

MOST_RANKS = 65_536
MOST_INSTANCES = 4_096

GroupKind = Literal["tp", "dp", "ep", "moe_tp", "pp"]
Row = Annotated[list[Annotated[int, Field(strict=True, ge=-1, le=2**31)]], Field(min_length=9, max_length=9)]
RankList = Annotated[list[Natural], Field(max_length=MOST_RANKS)]


class Place(NamedTuple):
    """The coordinates of a rank, a row of the rank table; -1 where it has none."""

    rank: int
    node: int
    device: int
    tp: int
    dp: int
    ep: int
    moe_tp: int
    pp: int
    domain: int


RANK_COLUMNS = Place._fields


class Degrees(Strict):
    """Degrees of parallelism, all counting devices; see ``planner.strategy.Strategy``."""

    attention_tp: Positive
    attention_dp: Positive
    staged: bool = False
    moe_tp: Positive = 1
    moe_ep: Positive = 1
    pp: Positive = 1
    domains: Natural = 0

    @property
    def attention_groups(self) -> int:
        """DP groups of an instance, of all its domains."""
        return self.attention_dp * max(self.domains, 1)

    @property
    def devices(self) -> int:
        """Devices of one instance: stages x attention ranks, and expert ranks beside them with domains."""
        attention, experts = self.attention_tp * self.attention_dp, self.moe_tp * self.moe_ep
        return (self.domains * attention + experts if self.domains else attention) * self.pp


class Instance(Strict):
    """One copy of the pool's content.

    Rank r stands on linear device ``first_device + node * devices_per_node + device`` counted
    from the start of ``nodes[0]`` over ``nodes`` in order, with (node, device) of its row.
    """

    name: Name
    nodes: list[Natural] = Field(min_length=1, max_length=MOST_RANKS, description="node numbers in the cluster")
    first_device: Natural = 0

    def where(self, place: Place, devices_per_node: int) -> tuple[int, int]:
        """Return the node of the cluster on which a rank stands, and its device there."""
        linear = self.first_device + place.node * devices_per_node + place.device
        return self.nodes[linear // devices_per_node], linear % devices_per_node


class RankTable(Strict):
    """One row per rank, in the order of ``columns``; a coordinate that a rank has not is -1.

    ``node`` counts within the instance, ``domain`` is the attention domain and -1 on the expert
    ranks of a disaggregated instance.
    """

    columns: tuple[
        Literal["rank"],
        Literal["node"],
        Literal["device"],
        Literal["tp"],
        Literal["dp"],
        Literal["ep"],
        Literal["moe_tp"],
        Literal["pp"],
        Literal["domain"],
    ] = ("rank", "node", "device", "tp", "dp", "ep", "moe_tp", "pp", "domain")
    rows: list[Row] = Field(min_length=1, max_length=MOST_RANKS)

    @property
    def places(self) -> list[Place]:
        """The rows by name."""
        return [Place(*row) for row in self.rows]


class GroupRule(Strict):
    """Communication groups of one kind: a group per start, of ranks start + i * stride, i < size."""

    kind: GroupKind
    size: Annotated[int, Field(strict=True, ge=2, le=MOST_RANKS)]
    stride: Annotated[int, Field(strict=True, ge=1, le=MOST_RANKS)]
    starts: RankList = Field(min_length=1)

    def groups(self) -> list[range]:
        """Return the ranks of every group."""
        return [range(start, start + self.size * self.stride, self.stride) for start in self.starts]


class ShardRule(Strict):
    """Which part of a tensor a rank holds.

    ``tensor`` is a glob over checkpoint names, the first match counts. The tensor is cut into
    ``degree`` equal parts along ``axis`` (0 = output features as stored); a rank with coordinate c of a
    group of n holds part c * degree // n. ``axis`` None: every holder has all of it. ``held_by``: the ranks
    with attention coordinates of the layer's, the first or the last pipeline stage; the EP ranks that the
    expert map names; or those that hold the shared expert.
    """

    tensor: Name
    axis: Literal[0, 1] | None = None
    degree: Positive = 1
    coordinate: Literal["tp", "moe_tp"] | None = None
    held_by: Literal["attention", "first_stage", "last_stage", "expert_map", "shared_expert"] = "attention"
    dtype: Dtype


class ExpertLayers(Strict):
    """The slots of layers that share one map: rank g of ``expert_ranks`` owns the g-th run of slots."""

    layers: list[Natural] = Field(min_length=1, max_length=2048, description="layer numbers as in the checkpoint")
    slots: RankList = Field(min_length=1, description="logical expert per slot")


class ExpertMap(Strict):
    """Experts and replicas on EP ranks; ``shared_expert_ranks`` empty means a local copy on every rank."""

    expert_ranks: RankList = Field(min_length=1, description="EP ranks with routed experts, in slot order")
    shared_expert_ranks: RankList = Field(default=[])
    placements: list[ExpertLayers] = Field(min_length=1, max_length=2048)


def rank_table(degrees: Degrees, devices_per_node: int) -> RankTable:
    """Return one row per rank of an instance that fills node after node.

    MixServe (arXiv 2601.08800) section 3: attention TP inside a node, ranks consecutive; EP rank =
    rank in stage // moe_tp.
    """
    rows = [
        [rank, rank // devices_per_node, rank % devices_per_node, *coordinates]
        for rank, coordinates in enumerate(_coordinates(degrees))
    ]
    return RankTable(rows=rows)


def _coordinates(degrees: Degrees) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield (tp, dp, ep, moe_tp, pp, domain) of every rank in order; -1 where a rank has none."""
    tp, moe_tp = degrees.attention_tp, degrees.moe_tp
    attention, experts = tp * degrees.attention_dp, moe_tp * degrees.moe_ep
    shared = experts == attention and not degrees.domains
    for stage in range(degrees.pp):
        for domain in range(max(degrees.domains, 1)):
            for rank in range(attention):
                ep, inner = (rank // moe_tp, rank % moe_tp) if shared else (-1, -1)
                yield rank % tp, rank // tp, ep, inner, stage, domain
        for rank in range(experts if degrees.domains else 0):
            yield -1, -1, rank // moe_tp, rank % moe_tp, stage, -1


def group_rules(degrees: Degrees) -> list[GroupRule]:
    """Return the communication groups of more than one rank, as rules over ranks in the order of ``rank_table``."""
    tp, dp, moe_tp, ep = degrees.attention_tp, degrees.attention_dp, degrees.moe_tp, degrees.moe_ep
    stage = degrees.devices // degrees.pp
    attention, domains = tp * dp, max(degrees.domains, 1)
    blocks = [s * stage + d * attention for s in range(degrees.pp) for d in range(domains)]
    experts = [s * stage + degrees.domains * attention for s in range(degrees.pp)]
    if not degrees.domains and moe_tp * ep != attention:
        experts = []
    rules: list[tuple[GroupKind, int, int, list[int]]] = [
        ("tp", tp, 1, [block + i * tp for block in blocks for i in range(dp)]),
        ("dp", dp, tp, [block + i for block in blocks for i in range(tp)]),
        ("ep", ep, moe_tp, [start + i for start in experts for i in range(moe_tp)]),
        ("moe_tp", moe_tp, 1, [start + i * moe_tp for start in experts for i in range(ep)]),
        ("pp", degrees.pp, stage, list(range(stage))),
    ]
    return [
        GroupRule(kind=kind, size=size, stride=stride, starts=starts)
        for kind, size, stride, starts in rules
        if size > 1 and starts
    ]


def shard_rules(
    model: ModelSpec, degrees: Degrees, weights: Dtype, role: str, beside: Dtype = "bf16"
) -> list[ShardRule]:
    """Return the weight shards of an instance, most particular rule first.

    Column-parallel projections are cut along output features, row-parallel ones along input
    features (Megatron-LM, arXiv 1909.08053, section 3). MLA's down projections are whole on every rank;
    W_kv_b stays in BF16 under INT8 (xDeepServe section 4.7) and where decode absorbs it. SP-TP-SP runs the
    output projection and the dense feed-forward on whole weights. ``beside`` is the type beside four-bit experts.
    """
    tp = degrees.attention_tp
    row_tp = 1 if degrees.staged else tp
    experts, weights = weights, attention_dtype(weights, model.moe is not None, beside)
    feed_forward = feed_forward_dtype(experts, model.moe is not None, beside)
    tables = [
        _rule("*.layers.*.embed_tokens.weight", "bf16", 0, tp, "last_stage"),
        _rule("*.layers.*.shared_head.head.weight", "bf16", 0, tp, "last_stage"),
        _rule("*.layers.*.eh_proj.weight*", weights, held_by="last_stage"),
        _rule("*embed_tokens.weight", "bf16", 0, tp, "first_stage"),
        _rule("lm_head.weight", "bf16", 0, tp, "last_stage"),
        _rule("model.norm.weight", "bf16", held_by="last_stage"),
    ]
    latent_up: Dtype = "bf16" if weights == "int8" or role != "prefill" else weights
    attention = (
        _mla_rules(tp, weights, latent_up) if isinstance(model.attention, MLA) else _gqa_rules(model, tp, weights)
    )
    return [
        *tables,
        *attention,
        *(_linear_rules(tp, weights) if model.linear_attention else []),
        _rule("*.self_attn.o_proj.weight*", weights, 1, row_tp),
        *_expert_rules(model, degrees, experts, feed_forward),
        _rule("*.mlp.gate_proj.weight*", feed_forward, 0, row_tp),
        _rule("*.mlp.up_proj.weight*", feed_forward, 0, row_tp),
        _rule("*.mlp.down_proj.weight*", feed_forward, 1, row_tp),
        _rule("*", "bf16"),
    ]


def _rule(
    tensor: str,
    dtype: Dtype,
    axis: int | None = None,
    degree: int = 1,
    held_by: str = "attention",
    coordinate: str = "tp",
) -> ShardRule:
    """Return a rule; a degree of 1 is no cut."""
    cut = {"axis": axis, "degree": degree, "coordinate": coordinate} if degree > 1 else {}
    return ShardRule.model_validate({"tensor": tensor, "dtype": dtype, "held_by": held_by, **cut})


def _mla_rules(tp: int, weights: Dtype, latent_up: Dtype) -> list[ShardRule]:
    """Heads are split, latents are not."""
    return [
        _rule("*.self_attn.q_a_proj.weight*", weights),
        _rule("*.self_attn.kv_a_proj_with_mqa.weight*", weights),
        _rule("*.self_attn.q_b_proj.weight*", weights, 0, tp),
        _rule("*.self_attn.q_proj.weight*", weights, 0, tp),
        _rule("*.self_attn.kv_b_proj.weight*", latent_up, 0, tp),
        _rule("*.self_attn.wo_a.weight*", weights, 0, tp),
        _rule("*.self_attn.wo_b.weight*", weights, 1, tp),
    ]


def _linear_rules(tp: int, weights: Dtype) -> list[ShardRule]:
    """Heads of linear attention are split; the decay and step-size parameters with them."""
    return [
        _rule("*.linear_attn.in_proj*.weight*", weights, 0, tp),
        _rule("*.linear_attn.conv1d.weight", "bf16", 0, tp),
        _rule("*.linear_attn.out_proj.weight*", weights, 1, tp),
        _rule("*.linear_attn.A_log", "bf16", 0, tp),
        _rule("*.linear_attn.dt_bias", "bf16", 0, tp),
    ]


def _gqa_rules(model: ModelSpec, tp: int, weights: Dtype) -> list[ShardRule]:
    """KV heads are split up to their number and repeated beyond it."""
    assert not isinstance(model.attention, MLA), "asked for the KV heads of a latent cache"
    kv = min(tp, model.attention.kv_heads)
    return [
        _rule("*.self_attn.q_proj.*", weights, 0, tp),
        _rule("*.self_attn.k_proj.*", weights, 0, kv),
        _rule("*.self_attn.v_proj.*", weights, 0, kv),
        *([_rule("*.self_attn.sinks", "bf16", 0, tp)] if model.attention.sinks else []),
    ]


def _expert_rules(model: ModelSpec, degrees: Degrees, weights: Dtype, feed_forward: Dtype) -> list[ShardRule]:
    """Routed experts by the map and MoE TP; the shared one whole unless MoE runs by TP alone."""
    if model.moe is None:
        return []
    shared = degrees.moe_tp if degrees.moe_ep == 1 else 1
    names = (("w1", 0), ("w3", 0), ("w2", 1), ("gate_proj", 0), ("up_proj", 0), ("down_proj", 1))
    routed = [
        _rule(f"*.experts.*.{n}.weight*", weights, axis, degrees.moe_tp, "expert_map", "moe_tp") for n, axis in names
    ]
    common = [
        _rule(f"*.shared_expert*.{name}.weight*", feed_forward, axis, shared, "shared_expert", "moe_tp")
        for name, axis in names[3:]
    ]
    return [*(common if model.moe.shared_experts else ()), *routed, _rule("*.gate.weight", "bf16")]
