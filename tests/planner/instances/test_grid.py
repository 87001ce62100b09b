"""The default grid: instance sizes, what it holds, what it leaves out."""

from dataclasses import replace

import pytest

from models.spec import GQA, MLA, ModelSpec, MoE
from planner.instances.grid import Role, device_counts, enumerate_strategies, smallest_redundancy, strategy_grid
from planner.strategy import Strategy, check_strategy, format_strategy, parse_strategy


def deepseek() -> ModelSpec:
    """DeepSeek-R1's dimensions (its config.json)."""
    return ModelSpec(
        schema_version=1,
        name="deepseek-r1",
        title="DeepSeek-R1",
        architecture="deepseek_v3",
        source="https://huggingface.co/deepseek-ai/DeepSeek-R1/blob/main/config.json",
        layers=61,
        dense_layers=3,
        hidden_size=7168,
        vocab_size=129280,
        tied_embeddings=False,
        attention=MLA(
            heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
        ),
        dense_intermediate_size=18432,
        moe=MoE(experts=256, experts_per_token=8, intermediate_size=2048),
        mtp_layers=1,
        max_position=163840,
        native_dtype="fp8",
    )


def qwen3_235b() -> ModelSpec:
    """Qwen3-235B-A22B's dimensions (its config.json)."""
    return replace(
        deepseek(),
        layers=94,
        dense_layers=0,
        hidden_size=4096,
        attention=GQA(heads=64, kv_heads=4, head_dim=128),
        dense_intermediate_size=None,
        moe=MoE(experts=128, experts_per_token=8, intermediate_size=1536),
    )


def dense_model() -> ModelSpec:
    """Qwen3-32B's dimensions (its config.json)."""
    return replace(
        qwen3_235b(),
        layers=64,
        dense_layers=64,
        attention=GQA(heads=64, kv_heads=8, head_dim=128),
        dense_intermediate_size=25600,
        moe=None,
    )


def test_counts_are_powers_of_two_and_whole_nodes() -> None:
    """Below a node powers of two, above it every node."""
    assert device_counts(32, 8) == [1, 2, 4, 8, 16, 24, 32]
    assert device_counts(12, 8) == [1, 2, 4, 8]
    assert device_counts(1, 8) == [1]
    assert device_counts(128, 48, 32) == [1, 2, 4, 8, 16, 32, 48, 64, 96, 128]


def test_a_supernode_offers_the_papers_sizes() -> None:
    """CloudMatrix384 decodes on 320 dies, xDeepServe on 288, DeepSeek on 144."""
    counts = device_counts(768, 16, 32)
    assert {144, 288, 320, 768} <= set(counts) and len(counts) == 48 + 4


@pytest.mark.parametrize(
    ("experts", "ranks", "extra"),
    [(256, 32, 0), (256, 144, 32), (256, 288, 32), (256, 320, 64), (256, 512, 256), (256, 513, None), (128, 24, 16)],
)
def test_smallest_redundancy_of_the_papers(experts: int, ranks: int, extra: int | None) -> None:
    """DeepSeek-V3 section 3.4 and CloudMatrix384 section 4: 32 spare experts on 144 or 288 ranks."""
    assert smallest_redundancy(experts, ranks) == extra


@pytest.mark.parametrize("text", ["DP=144, EP=144", "DP=288, EP=288", "DP=320, EP=320"])
def test_the_published_decode_strategies_are_in_the_grid(text: str) -> None:
    """Degrees that are no powers of two."""
    strategy = parse_strategy(text)
    assert strategy in enumerate_strategies(deepseek(), [strategy.devices], 16, role="decode")


@pytest.mark.parametrize(
    "text",
    [
        "TP=8 [PP=4]",
        "TP=8 + DP=4, EP=32",
        "TP=4 + DP=8, EP=32",
        "TP=8 + DP=4, TP=8 + EP=4",
        "TP=4 + DP=8, TP=8 + EP=4",
        "TP=8 + DP=4, TP=4 + EP=8",
    ],
)
@pytest.mark.parametrize("spec", [deepseek(), qwen3_235b()], ids=["deepseek-r1", "qwen3-235b"])
def test_mixserves_own_baselines_are_in_the_grid(spec: ModelSpec, text: str) -> None:
    """MixServe section IV: three baselines, its own choice and the two of the DP/EP balance."""
    assert parse_strategy(text) in enumerate_strategies(spec, [32], 8, role="mixed")


def test_staged_attention_is_for_prefill_of_latent_attention() -> None:
    """CloudMatrix384's prefill strategy is tried in prefill only, and never with grouped queries."""
    staged = parse_strategy("SP=4 + DP=8, EP=32")
    assert staged in enumerate_strategies(deepseek(), [32], 16, role="prefill")
    assert not any(s.staged for s in enumerate_strategies(deepseek(), [32], 16, role="decode"))
    assert not any(s.staged for s in enumerate_strategies(qwen3_235b(), [32], 16, role="prefill"))


@pytest.mark.parametrize("role", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("spec", [deepseek(), qwen3_235b(), dense_model()], ids=["deepseek-r1", "qwen3-235b", "dense"])
def test_every_strategy_is_possible_and_there_are_a_few_dozen(spec: ModelSpec, role: Role) -> None:
    """Whatever the grid offers passes the checks that the user's own strategies pass, once each."""
    counts = [1, 8, 32, 144, 256]
    found = enumerate_strategies(spec, counts, 16, role=role)
    assert len(set(found)) == len(found) and found == enumerate_strategies(spec, counts, 16, role=role)
    for strategy in found:
        check_strategy(strategy, spec)
        text = format_strategy(strategy, moe=spec.moe is not None)
        assert parse_strategy(text, moe=spec.moe is not None) == strategy
    assert all(1 <= sum(s.devices == count for s in found) <= 64 for count in counts)


def test_a_dense_model_mirrors_its_attention() -> None:
    """TP x DP x PP of eight devices: ten shapes."""
    found = enumerate_strategies(dense_model(), [8], 8, role="mixed")
    assert all((s.moe_tp, s.moe_ep) == (s.attention_tp, s.attention_dp) for s in found)
    assert len(found) == 4 + 3 + 2 + 1


def test_pure_tensor_parallelism_may_leave_the_node() -> None:
    """Two nodes of eight as one TP=16 group, but no half of it across nodes."""
    found = enumerate_strategies(deepseek(), [16, 32], 8, role="mixed")
    assert parse_strategy("TP=16") in found
    assert all(s.attention_tp <= 8 for s in found if s.devices_per_stage != 16)


def test_what_is_cut_is_counted_by_rule() -> None:
    """A search can say what it did not try."""
    grid = strategy_grid(deepseek(), [32, 768], 16, role="prefill")
    assert grid.cut["more than one spare slot per expert"] > 0
    assert grid.cut["expert TP more than a factor of two from attention TP"] > 0
    assert Strategy(attention_dp=768, moe_ep=768) not in grid.strategies
