"""A manifest whose parts do not make up the model is refused with rank, tensor and range."""

from typing import Any

import pytest

from ground.errors import BadInput
from planner.manifest.layout import ShardRule
from planner.manifest.schema import Manifest
from runtime.execute.run import Settings, build_world
from tests.runtime.execute.deployments import deployed, slim


def changed(manifest: Manifest, tensor: str, **fields: Any) -> Manifest:
    """Return the manifest with one shard rule changed in its first pool."""
    pool = manifest.pools[0]
    rules = [
        ShardRule.model_validate(rule.model_dump() | fields) if rule.tensor == tensor else rule
        for rule in pool.weight_shards
    ]
    assert rules != pool.weight_shards
    return manifest.model_copy(update={"pools": [pool.model_copy(update={"weight_shards": rules})]})


@pytest.fixture(scope="module")
def hybrid() -> Manifest:
    """Attention TP 4, experts TP 2 and EP 4 on eight devices."""
    return deployed(slim("deepseek-v3"), "TP=4 + DP=2, TP=2 + EP=4")


@pytest.mark.parametrize(
    ("tensor", "fields", "told"),
    [
        ("*.self_attn.o_proj.weight*", {"axis": None, "degree": 1, "coordinate": None}, "rank 0 holds range 0 to 64"),
        ("*.self_attn.q_b_proj.weight*", {"degree": 2}, "which it is multiplied with"),
        ("*.self_attn.kv_b_proj.weight*", {"degree": 2}, "kv_b_proj.weight, but 0% to 25% of axis 0"),
        ("*embed_tokens.weight", {"coordinate": "moe_tp", "degree": 2, "held_by": "last_stage"}, None),
        ("*.self_attn.kv_a_proj_with_mqa.weight*", {"held_by": "expert_map"}, "is no routed expert"),
        ("*.experts.*.down_proj.weight*", {"axis": 0}, "which it is multiplied with"),
        ("*.experts.*.gate_proj.weight*", {"held_by": "attention"}, "held by the ranks of the expert map"),
        ("*.experts.*.up_proj.weight*", {"axis": None, "degree": 1, "coordinate": None}, "different parts"),
        ("*.mlp.gate_proj.weight*", {"degree": 2}, "rank 0 holds range 0 to 8 of axis 1"),
    ],
)
def test_wrong_shards_are_refused(hybrid: Manifest, tensor: str, fields: dict[str, Any], told: str | None) -> None:
    """In one sentence that names the field; a cut that still covers the model is taken as it is."""
    manifest = changed(hybrid, tensor, **fields)
    if told is None:
        build_world(manifest, Settings())
        return
    with pytest.raises(BadInput, match="weight_shards") as error:
        build_world(manifest, Settings())
    assert told in str(error.value)


def test_a_tensor_without_a_rule_is_refused(hybrid: Manifest) -> None:
    """Nobody would hold it."""
    pool = hybrid.pools[0]
    without = pool.model_copy(update={"weight_shards": pool.weight_shards[:-1]})
    with pytest.raises(BadInput, match="no rule covers tensor model"):
        build_world(hybrid.model_copy(update={"pools": [without]}), Settings())


def test_heads_of_the_real_model_must_divide() -> None:
    """128 heads over three ranks, which the small model's three heads would hide."""
    with pytest.raises(BadInput, match="3 does not divide the 128 heads"):
        build_world(deployed(slim("deepseek-v3"), "TP=3 + DP=4, EP=12", redundant=4), Settings())


def test_dedicated_ranks_cover_the_shared_expert() -> None:
    """The shared expert is on its ranks alone, and a world can be built of it."""
    world = build_world(deployed(slim("deepseek-v3"), "DP=10, EP=10", dedicated=2), Settings())
    held = [
        world.decode.partition.holds(place, "model.layers.3.mlp.shared_experts.gate_proj.weight")
        for place in world.decode.layout.places
    ]
    assert held == [False] * 8 + [True] * 2
