"""Counted parameters against published ones and hand arithmetic."""

from dataclasses import replace

import pytest

from models.loader import load_model, model_names
from models.parameters import attention_parameters, count_parameters, feed_forward_parameters
from models.spec import GQA

# Kimi-K2's card says 1T of what its dimensions count as 1026e9.
TOTAL_TOLERANCE = dict.fromkeys(("kimi-k2", "kimi-k2-0905", "kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6"), 0.03)
# Cards that round active parameters to fewer digits than 2.5 % needs: MiniMax-M2 10 of 10.4, GLM-4.5 32 of 32.9.
ACTIVE_TOLERANCE = {"minimax-m2": 0.05, "minimax-m2.5": 0.05, "glm-4.5": 0.03, "glm-4.6": 0.03, "glm-4.7": 0.03}
# GLM-4.5-Air's card says 12B, which is without the head (0.6B).
ACTIVE_TOLERANCE |= {"glm-4.5-air": 0.07}
ACTIVE_TOLERANCE |= {"minimax-m2.7": 0.05, "mimo-v2-flash": 0.03}
# Qwen3-Next's card says 3B of what its dimensions, the head included, count as 3.6.
ACTIVE_TOLERANCE |= {"qwen3-next-80b-a3b": 0.2}
# Between 2.9B and 4.5B by its card, as its tokens choose experts that compute.
ACTIVE_TOLERANCE |= {"longcat-flash-lite": 0.08}
# Known by their names alone: the distillations keep the dimensions of Qwen2.5 of that size.
UNPUBLISHED = {f"deepseek-r1-distill-qwen-{size}" for size in ("1.5b", "7b", "14b", "32b")}
UNPUBLISHED |= {"glm-5", "openpangu-r-72b"}
PUBLISHED = [name for name in model_names() if name not in UNPUBLISHED]


def test_only_some_entries_state_no_published_count() -> None:
    """An entry without a published figure is on the list of those that have none."""
    assert {name for name in model_names() if load_model(name).published_parameters is None} == UNPUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_total_is_the_published_one(name: str) -> None:
    """The count from the dimensions agrees with the model card within 2 %, 3 % where the card rounds to 1T."""
    spec = load_model(name)
    published = spec.published_parameters.value
    assert count_parameters(spec).total == pytest.approx(published, rel=TOTAL_TOLERANCE.get(name, 0.02))


@pytest.mark.parametrize("name", [name for name in PUBLISHED if load_model(name).moe])
def test_active_is_the_published_one(name: str) -> None:
    """Active parameters agree with the card within 2.5 % under one of the two conventions in use.

    Cards give two digits; some (Qwen3-30B-A3B) include the input embedding and some do not.
    """
    spec = load_model(name)
    published, count = spec.published_active_parameters.value, count_parameters(spec)
    nearest = min(count.active, count.active + count.table, key=lambda active: abs(active - published))
    assert nearest == pytest.approx(published, rel=ACTIVE_TOLERANCE.get(name, 0.025))


def test_deepseek_v3_counts_as_its_weight_documentation_says() -> None:
    """README_WEIGHTS.md of DeepSeek-V3-Base: 671B, 36.6B active with a head of 0.9B, 11.5B of the draft layer's own."""
    count = count_parameters(load_model("deepseek-v3"))
    assert round(count.total / 1e9) == 671
    assert round(count.active / 1e9, 1) == 36.6
    assert round(count.table / 1e9, 1) == 0.9
    assert count.mtp_layer == pytest.approx(11.5e9, rel=0.01)


def test_mla_by_hand() -> None:
    """DeepSeek-V3: q_a 11.01M, q_b 37.75M, kv_a 4.13M, kv_b 16.78M and o 117.44M are 187.1M per layer."""
    attention = load_model("deepseek-v3").attention
    parts = 7168 * 1536, 1536 * 128 * 192, 7168 * 576, 512 * 128 * 256, 128 * 128 * 7168
    assert [round(part / 1e6, 2) for part in parts] == [11.01, 37.75, 4.13, 16.78, 117.44]
    assert attention_parameters(attention, 7168) == sum(parts)


def test_gqa_by_hand() -> None:
    """Llama-3.1-8B: q and o 4096 x 4096 each, k and v 4096 x 1024 each."""
    assert attention_parameters(GQA(heads=32, kv_heads=8, head_dim=128), 4096) == 2 * 4096 * 4096 + 2 * 4096 * 1024


def test_tied_tables_are_counted_once() -> None:
    """Qwen3-0.6B is 0.6B with one table of 155.6M; untied it would be 0.75B, and its head still works per token."""
    tied = load_model("qwen3-0.6b")
    one, two = count_parameters(tied), count_parameters(replace(tied, tied_embeddings=False))
    assert two.total - one.total == one.table == 151936 * 1024
    assert two.active == one.active == one.total


def test_a_draft_layer_of_a_dense_model_is_dense() -> None:
    """Without experts a draft layer is attention, the dense feed-forward and the projection of 2h x h."""
    spec = replace(load_model("qwen3-8b"), mtp_layers=1)
    count = count_parameters(spec)
    expected = attention_parameters(spec.attention, 4096) + feed_forward_parameters(4096, 12288) + 2 * 4096**2
    assert count.mtp_layer == expected


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("deepseek-v3.2", 671.9, 37.5),
        ("glm-5", 743.9, 40.8),
        ("openpangu-r-72b", 73.8, 14.4),
        ("llama-4-scout", 107.8, 16.1),
        ("llama-4-maverick", 400.7, 16.1),
        ("qwen3-next-80b-a3b", 79.7, 3.6),
        ("qwen3.5-397b-a17b", 396.3, 16.3),
    ],
)
def test_further_kinds_of_attention_are_counted(name: str, total: float, active: float) -> None:
    """Indexers, gated delta-nets, output gates and narrow values, in billions as counted by hand from the configs."""
    count = count_parameters(load_model(name))
    assert (round(count.total / 1e9, 1), round(count.active / 1e9, 1)) == pytest.approx((total, active), abs=0.11)
