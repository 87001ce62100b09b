"""DeepSeek sparse attention: an indexer over all keys, attention over the best of them."""

from dataclasses import replace

import pytest

from hardware.engines import with_engine
from models.loader import load_model
from models.parameters import count_parameters
from planner.costs.attention_operators import attention_terms
from planner.costs.cache import device_cache, model_cache
from planner.instances.grid import strategy_grid
from planner.manifest.terms import StepLoad
from planner.strategy import Strategy, model_conflicts
from tests.instances import broken_down, even_cost, instance

KEYS = 65536


def decode(requests: float, keys: float) -> StepLoad:
    """Return running requests of ``keys`` cached tokens each."""
    return StepLoad(decode_sequences=requests, decode_kv_tokens=requests * keys, mean_tokens=requests)


def flops(model: str, load: StepLoad, phase: str = "decode") -> dict[str, float]:
    """Return the FLOP of every operator on one H200."""
    deployment = instance(model, "h200", phase, "fp8")  # type: ignore[arg-type]
    return {row.name: row.flops for row in broken_down(even_cost(deployment), load, 1)}


def test_decode_flops_by_hand() -> None:
    """One request of 65,536 tokens: scores 2·64·128 per key, attention 2·128·(512 + 64 + 512) for 2,048 keys."""
    work = flops("deepseek-v3.2", decode(1.0, KEYS))
    assert work["index_scores"] == 61 * KEYS * 2 * 64 * 128
    assert work["attention"] == 61 * 2048 * 2 * 128 * 1088
    count = count_parameters(load_model("deepseek-v3.2"))
    assert sum(work.values()) == pytest.approx(2 * count.active + work["index_scores"] + work["attention"], rel=1e-9)


def test_short_requests_attend_to_all_they_have() -> None:
    """Below 2,048 tokens attention proper is that of DeepSeek-V3.1."""
    sparse, dense = (flops(name, decode(4.0, 1500.0)) for name in ("deepseek-v3.2", "deepseek-v3.1"))
    assert sparse["attention"] == pytest.approx(dense["attention"])


def test_prompts_are_scored_in_full_and_read_in_part() -> None:
    """A prompt of 8,192: every causal pair is scored, a query attends to at most 2,048 keys on latents."""
    tokens = 8192.0
    load = StepLoad(
        prefill_tokens=tokens, prefill_pairs=tokens * (tokens + 1) / 2, finishing_prompts=1.0, mean_tokens=tokens
    )
    work = flops("deepseek-v3.2", load, "prefill")
    pairs = 2048 * 2049 / 2 + (8192 - 2048) * 2048
    assert work["prefill_index_scores"] == pytest.approx(61 * tokens * (tokens + 1) / 2 * 2 * 64 * 128)
    assert work["prefill_attention"] == pytest.approx(61 * pairs * 2 * 128 * 1088)
    assert "kv_up" not in work


def test_index_keys_are_cached_beside_the_latents() -> None:
    """128 FP8 elements and a scale per token and layer: 576·2 + 132 bytes, on every TP device and in the transfer."""
    one, eight = (instance("deepseek-v3.2", "h200", "decode", "fp8", attention_tp=n, moe_tp=n) for n in (1, 8))
    assert device_cache(one).token_bytes == device_cache(eight).token_bytes == 61 * (1152 + 132)
    assert model_cache(eight).bytes(1000.0, 1.0) == 1000 * 61 * 1284


def test_layers_that_share_a_choice_neither_score_nor_cache_keys() -> None:
    """GLM-5.2: 20 of 78 layers score, all attend to 2,048 keys; the parameters that remain give the projections."""
    work, count = flops("glm-5.2", decode(1.0, KEYS)), count_parameters(load_model("glm-5.2"))
    assert work["index_scores"] == pytest.approx(20 * KEYS * 2 * 32 * 128)
    assert work["attention"] == 78 * 2048 * 2 * 64 * 1088
    assert sum(work.values()) == pytest.approx(2 * count.active + work["index_scores"] + work["attention"], rel=1e-9)
    cached = device_cache(instance("glm-5.2", "h200", "decode", "fp8", attention_tp=8, moe_tp=8)).token_bytes
    assert cached == pytest.approx(78 * 1152 + 20 * 132)


def test_staged_prefill_is_for_dense_attention() -> None:
    """SP expands keys of the whole context; the search does not try it on sparse attention."""
    model = load_model("deepseek-v3.2")
    assert any("SP" in said for said in model_conflicts(Strategy(attention_tp=8, staged=True, moe_ep=8), model))
    assert not any(strategy.staged for strategy in strategy_grid(model, [16], 8, role="prefill").strategies)


def test_block_attention_flops_by_hand() -> None:
    """DeepSeek-V4-Pro at 65,536 keys: 30 layers score 16,384 blocks and read 1,024; 31 read 512; all read 128 more."""
    deployment = instance("deepseek-v4-pro", "b200", "decode", "mxfp4")
    work = {row.name: row.flops for row in broken_down(even_cost(deployment), decode(1.0, KEYS), 1)}
    assert work["index_scores"] == pytest.approx(30 * KEYS / 4 * 2 * 64 * 128)
    assert work["attention"] == pytest.approx((30 * 1024 + 31 * KEYS / 128 + 61 * 128) * 2 * 128 * 1024)
    assert deployment.attention_weights == "fp8"
    count = count_parameters(load_model("deepseek-v4-pro"))
    assert sum(work.values()) == pytest.approx(2 * count.active + work["index_scores"] + work["attention"], rel=1e-6)


def test_blocks_are_cached_in_place_of_tokens() -> None:
    """A token keeps a quarter of a key in 30 layers and 1/128 in 31; a request its window and unfinished blocks."""
    cache = model_cache(instance("deepseek-v4-pro", "b200", "decode", "mxfp4"))
    assert cache.token_bytes == pytest.approx(30 * (1024 + 132) / 4 + 31 * 1024 / 128)
    assert cache.sequence_bytes == pytest.approx(512 * (61 * 128 * 2 + (30 * 8 + 31 * 128) * 8))


@pytest.mark.parametrize(
    ("machine", "tp", "requests", "keys", "microseconds"),
    [("b200", 8, 1, 8192, 70), ("b200", 8, 32, 8192, 86), ("b200", 1, 128, 1024, 171), ("h200", 1, 32, 8192, 177)],
)
def test_block_attention_takes_about_what_was_measured(
    machine: str, tp: int, requests: float, keys: float, microseconds: float
) -> None:
    """vLLM 0.24's modules, the mean of both kinds by their layers (aiconfigurator-core 0.12.0): within a fifth."""
    degrees = {"attention_tp": tp, "moe_tp": tp}
    deployment = instance("deepseek-v4-pro", machine, "decode", "mxfp4", kv_dtype="fp8", engine="vllm", **degrees)
    deployment = replace(deployment, hardware=with_engine(deployment.hardware, "vllm"))
    terms = [term.name for term in attention_terms(deployment) if not term.name.startswith(("attention_", "hyper_"))]
    rows = broken_down(even_cost(deployment), decode(requests, keys), 1)
    found = sum(row.seconds for row in rows if row.name in [*terms, "attention_quantise"])
    assert found / 61 == pytest.approx(microseconds * 1e-6, rel=0.2)
