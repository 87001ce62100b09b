"""Degrees -> rank table, communication groups and weight shards.

Rank order is stage, then (disaggregated) domain, then DP, then TP; the same ranks in that order are
cut into EP ranks of ``moe_tp`` consecutive ones. Disaggregated expert ranks follow the attention ranks.
"""

from collections.abc import Iterator

from hardware.formats import attention_dtype, feed_forward_dtype
from hardware.spec import Dtype
from models.spec import MLA, ModelSpec
from planner.manifest.layout import Degrees, GroupKind, GroupRule, RankTable, ShardRule


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
