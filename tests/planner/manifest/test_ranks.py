"""Rank tables, groups and shards from degrees."""

from fnmatch import fnmatch

import pytest
from hypothesis import given, settings, strategies as st

from planner.manifest.checks import check_manifest
from planner.manifest.layout import RANK_COLUMNS, Degrees, group_rules, rank_table, shard_rules
from planner.manifest.stepcost import layers_per_stage
from tests.manifests import manifest, small_model

GROUPS = {
    "tp": ("pp", "domain", "dp"),
    "dp": ("pp", "domain", "tp"),
    "ep": ("pp", "moe_tp"),
    "moe_tp": ("pp", "ep"),
    "pp": ("domain", "tp", "dp", "ep", "moe_tp"),
}


def test_rank_table_of_mixserve_example() -> None:
    """TP=4 + DP=2, TP=2 + EP=4 on nodes of four: TP and MoE TP are consecutive (MixServe Fig. 3's layout)."""
    rows = rank_table(Degrees(attention_tp=4, attention_dp=2, moe_tp=2, moe_ep=4), 4).rows
    assert rows[0] == [0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert rows[5] == [5, 1, 1, 1, 1, 2, 1, 0, 0]


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]), st.sampled_from([0, 2]))
def test_rules_agree_with_the_rank_table(tp: int, moe_tp: int, pp: int, domains: int) -> None:
    """The groups of a kind are the ranks that share the other coordinates, for any degrees."""
    degrees = Degrees(attention_tp=tp, attention_dp=8 // tp, moe_tp=moe_tp, moe_ep=8 // moe_tp, pp=pp, domains=domains)
    rows = [dict(zip(RANK_COLUMNS, row, strict=True)) for row in rank_table(degrees, 8).rows]
    rules = {rule.kind: sorted(list(group) for group in rule.groups()) for rule in group_rules(degrees)}
    for kind, others in GROUPS.items():
        found: dict[tuple[int, ...], list[int]] = {}
        for row in rows:
            if row[kind] >= 0:
                found.setdefault(tuple(row[name] for name in others), []).append(row["rank"])
        assert rules.get(kind, []) == sorted(group for group in found.values() if len(group) > 1)
    check_manifest(manifest(decode_degrees=degrees))


@pytest.mark.parametrize(
    ("tensor", "axis", "degree", "held_by"),
    [
        ("model.layers.0.self_attn.q_a_proj.weight", None, 1, "attention"),
        ("model.layers.0.self_attn.kv_b_proj.weight", 0, 4, "attention"),
        ("model.layers.0.self_attn.o_proj.weight", 1, 4, "attention"),
        ("model.layers.3.mlp.experts.7.down_proj.weight", 1, 2, "expert_map"),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", None, 1, "shared_expert"),
        ("model.layers.0.mlp.gate_proj.weight", 0, 4, "attention"),
        ("model.layers.3.mlp.gate.weight", None, 1, "attention"),
        ("model.embed_tokens.weight", 0, 4, "first_stage"),
        ("model.layers.61.embed_tokens.weight", 0, 4, "last_stage"),
        ("lm_head.weight", 0, 4, "last_stage"),
        ("model.layers.0.input_layernorm.weight", None, 1, "attention"),
    ],
)
def test_first_matching_shard_rule(tensor: str, axis: int | None, degree: int, held_by: str) -> None:
    """DeepSeek's checkpoint names fall on the rule that tensor parallelism asks for (Megatron-LM section 3)."""
    degrees = Degrees(attention_tp=4, attention_dp=2, moe_tp=2, moe_ep=4)
    rules = shard_rules(small_model(), degrees, "bf16", "decode")
    rule = next(rule for rule in rules if fnmatch(tensor, rule.tensor))
    assert (rule.axis, rule.degree, rule.held_by) == (axis, degree, held_by)


def test_layers_are_spread_over_stages() -> None:
    """61 layers over four stages: the first takes the odd one."""
    assert layers_per_stage(61, 4) == [16, 15, 15, 15]
