"""Sparse attention, windows, keys that are parameters, and delta-net layers: by hand and as measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from hardware.engines import with_engine
from models.loader import load_model
from models.parameters import count_parameters
from planner.costs.attention_operators import attention_terms
from planner.costs.cache import device_cache, model_cache
from planner.costs.sparse_attention import chunk_flops
from planner.instances.grid import strategy_grid
from planner.manifest.terms import ComputeTerm, StepLoad
from planner.strategy import Strategy, model_conflicts
from tests.instances import broken_down, even_cost, instance

KEYS = 65536
TABLE = Path(__file__).with_name("attention.csv").read_text(encoding="utf-8")
MEASURED = [row for row in TABLE.splitlines() if not row.startswith("#")]
STATE = 32 * 128 * 128 * 4
CONVOLUTION = 3 * (2 * 2048 + 4096) * 2


def decode(requests: float, keys: float) -> StepLoad:
    """Return running requests of ``keys`` cached tokens each."""
    return StepLoad(decode_sequences=requests, decode_kv_tokens=requests * keys, mean_tokens=requests)


def prompt(tokens: float) -> StepLoad:
    """Return one whole prompt."""
    pairs = tokens * (tokens + 1) / 2
    return StepLoad(prefill_tokens=tokens, prefill_pairs=pairs, finishing_prompts=1.0, mean_tokens=tokens)


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


def test_ascend_sorts_the_scores_of_an_indexer_in_full() -> None:
    """tilelang-ascend pull request 1476: 16 requests of 5 queries and 3,072 keys, 75.9 us on a 910B3."""
    own = instance("deepseek-v3.2", "910b3", "decode", "int8", drafts=4)
    rows = {row.name: row for row in broken_down(even_cost(own), decode(16.0, 3072.0), 1)}
    scores, chosen = (rows[name].seconds / 61 for name in ("index_scores", "index_top_k"))
    assert scores + chosen == pytest.approx(75.86e-6, rel=0.12)
    longer = {row.name: row for row in broken_down(even_cost(own), decode(16.0, 4 * 3072.0), 1)}
    assert 2 < longer["index_top_k"].seconds / rows["index_top_k"].seconds < 4  # what is kept does not grow


def test_ascend_attends_to_chosen_keys_as_measured() -> None:
    """cann-bench sparse_flash_attention 16 on a 910B2: 8 requests of 4 queries, 512 keys each, 59.9 us."""
    own = instance("deepseek-v3.2", "910b", "decode", "int8", drafts=3)
    rows = {row.name: row for row in broken_down(even_cost(own), decode(8.0, 512.0), 1)}
    assert rows["attention"].seconds / 61 == pytest.approx(59.9e-6, rel=0.05)


def test_prompts_are_scored_in_full_and_read_in_part() -> None:
    """A prompt of 8,192: every causal pair is scored, a query attends to at most 2,048 keys on latents."""
    tokens = 8192.0
    load = prompt(tokens)
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


def rows(model: str, load: StepLoad, phase: str = "decode") -> dict[str, tuple[int, float, float]]:
    """Return count, FLOP and bytes of every operator on one H200."""
    cost = even_cost(instance(model, "h200", phase, "bf16"))  # type: ignore[arg-type]
    return {row.name: (row.count, row.flops, row.bytes) for row in broken_down(cost, load, 1)}


def test_decode_by_hand() -> None:
    """Llama-4-Scout: 12 layers attend to 50,000 tokens, 36 to 8,192; 4·40·128 FLOP and 4,096 bytes per key."""
    found = rows("llama-4-scout", decode(2.0, 50_000.0))
    queries = 2 * 2 * 40 * 128 * 2
    for name, layers, keys in (("attention", 12, 100_000), ("window_attention", 36, 2 * 8192)):
        assert found[name] == (layers, layers * keys * 4 * 40 * 128, layers * (keys * 4096 + queries))


def test_prompts_by_hand() -> None:
    """A prompt of 20,000: the windowed layers have 8192·8193/2 + 11808·8192 pairs each."""
    tokens = 20_000.0
    load = prompt(tokens)
    count, flops, _ = rows("llama-4-scout", load, "prefill")["prefill_window_attention"]
    pairs = 8192 * 8193 / 2 + (20_000 - 8192) * 8192
    assert (count, flops) == (36, pytest.approx(36 * pairs * 4 * 40 * 128))


def test_short_contexts_know_no_window() -> None:
    """Below the window all 48 layers together do what 48 layers of full attention would."""
    found = rows("llama-4-scout", decode(3.0, 1000.0))
    together = found["attention"][1] + found["window_attention"][1]
    assert together == pytest.approx(48 * 3000 * 4 * 40 * 128)


def test_wide_windows_run_the_kernels_of_full_attention() -> None:
    """Llama 4's 8,192 keys are no tiles' edges: the kernel, and its rate, is that of its full layers."""
    deployment = instance("llama-4-scout", "b200", "prefill", "bf16", engine="vllm")
    deployment = replace(deployment, hardware=with_engine(deployment.hardware, "vllm"))
    terms = {term.name: term for term in attention_terms(deployment) if isinstance(term, ComputeTerm)}
    wide, full = terms["prefill_window_attention"], terms["prefill_attention"]
    assert wide.flops_per_second == full.flops_per_second


def test_windows_bound_the_memory() -> None:
    """Three requests of 100,000 tokens: 12 layers keep all of them, 36 the last 8,192 of each."""
    cache = device_cache(instance("llama-4-scout", "h200", "decode", "bf16"))
    assert cache.bytes(300_000.0, 3.0) == pytest.approx((12 * 300_000 + 36 * 3 * 8192) * 4096)
    assert cache.bytes(3000.0, 3.0) == pytest.approx(48 * 3000 * 4096)


def test_keys_that_are_parameters_are_seen_by_every_query() -> None:
    """openPangu-R: 128 further keys per query of 2·64·(192 + 128) FLOP, read once per layer and step."""
    found = rows("openpangu-r-72b", decode(2.0, 1000.0))
    assert found["attention"][1] == pytest.approx(50 * (2000 + 2 * 128) * 2 * 64 * 320)
    moved = (2000 + 128) * 4 * 320 * 2 + 2 * 64 * 320 * 2
    assert found["attention"][2] == pytest.approx(50 * moved)


def test_state_by_hand() -> None:
    """Qwen3-Next keeps 36 matrices of 128 x 128 per value head in FP32, 75.5 MB, and 1.8 MB of inputs per request."""
    cache = model_cache(instance("qwen3-next-80b-a3b", "h200", "decode", "bf16"))
    assert cache.sequence_bytes == 36 * (STATE + CONVOLUTION)
    assert pytest.approx(75.5e6, rel=1e-3) == 36 * STATE
    assert cache.token_bytes == 12 * 2 * 2 * 256 * 2


def test_memory_is_linear_in_tokens_on_top_of_the_state() -> None:
    """A request of no length holds the state, each further token 12 layers' keys and values; TP splits both."""
    for tp in (1, 2):
        cache = device_cache(instance("qwen3-next-80b-a3b", "h200", "decode", "bf16", attention_tp=tp, moe_tp=tp))
        assert cache.bytes(0.0, 5.0) == pytest.approx(5 * 36 * (STATE + CONVOLUTION) / tp)
        assert cache.bytes(5000.0, 5.0) - cache.bytes(0.0, 5.0) == pytest.approx(5000 * 24576 / tp)


@pytest.mark.parametrize(("engine", "prefill", "decode"), [("vllm", 2, 3), ("sglang", 1, 4), (None, 1, 1)])
def test_drafts_may_be_rejected_to_a_state_of_their_own(engine: str | None, prefill: int, decode: int) -> None:
    """vLLM keeps a state for each of two drafts, SGLang's decode for each token that it verifies."""

    model, machine = "qwen3-next-80b-a3b", "h200"
    plain = float(device_cache(instance(model, machine, "decode", "bf16")).sequence_bytes)
    loaded = device_cache(instance(model, machine, "prefill", "bf16", engine=engine, decode_drafts=2))
    drafting = device_cache(instance(model, machine, "decode", "bf16", engine=engine, drafts=2))
    assert (loaded.sequence_bytes / plain, drafting.sequence_bytes / plain) == (prefill, decode)


def test_decode_reads_and_writes_the_state_once() -> None:
    """Bytes of the recurrence do not depend on the context: 36 layers, state in and out, operands beside it."""
    cost = even_cost(instance("qwen3-next-80b-a3b", "h200", "decode", "bf16"))
    moved = []
    for keys in (100.0, 100_000.0):
        (row,) = (row for row in broken_down(cost, decode(8.0, keys), 1) if row.name == "recurrent_state")
        moved.append(row.bytes)
        assert row.count == 36
    assert moved[0] == moved[1] == pytest.approx(8 * 36 * (2 * STATE + 2 * (2 * 2048 + 2 * 4096)))


def test_decode_flops_are_twice_the_active_parameters() -> None:
    """Full attention runs in 12 of 48 layers: 4·16·256 per key and layer. The short convolution is element-wise."""
    deployment = instance("qwen3-next-80b-a3b", "h200", "decode", "bf16")
    rows = broken_down(even_cost(deployment), decode(1.0, 1000.0), 1)
    convolution = 36 * 4 * (2 * 2048 + 4096)
    expected = 2 * (count_parameters(deployment.model).active - convolution) + 1000 * 12 * 4 * 16 * 256
    assert sum(row.flops for row in rows) == pytest.approx(expected, rel=1e-9)


def test_sglang_runs_short_prompts_as_dense_attention() -> None:
    """A prompt of 1,024 tokens has no more keys than the indexer picks: no scores, no absorbed products."""
    own = instance("deepseek-v3.2", "b200", "prefill", "fp8", attention_tp=4, moe_tp=4, engine="sglang")
    short, long = (
        {row.name for row in broken_down(even_cost(own), prompt(tokens), 1) if row.seconds > 0}
        for tokens in (1024.0, 8192.0)
    )
    assert {"kv_up", "prefill_short_attention"} <= short - long
    assert {"prefill_index_scores", "prefill_index_top_k", "k_absorb", "prefill_attention"} <= long - short


def test_sparse_attention_of_prompts_multiplies_64_heads_at_least() -> None:
    """GLM-5 over eight devices: their 8 heads take what 64 do, 16K tokens at 8 and 64 heads 12.9 and 17.9 ms with all
    projections (vLLM 0.24.0 on H200); 128 heads of DeepSeek-V3.2 take twice as long.
    """
    seconds = {}
    for model, machine, tp in (("glm-5", "h200", 1), ("glm-5", "h200", 8), ("deepseek-v3.2", "h200", 1)):
        rows = broken_down(
            even_cost(instance(model, machine, "prefill", "bf16", attention_tp=tp, moe_tp=tp)), prompt(16384.0), 1
        )
        (row,) = (row for row in rows if row.name == "prefill_attention")
        seconds[model, machine, tp] = row.seconds / row.count
    assert seconds["glm-5", "h200", 8] == pytest.approx(seconds["glm-5", "h200", 1], rel=0.02)
    assert seconds["deepseek-v3.2", "h200", 1] == pytest.approx(2 * seconds["glm-5", "h200", 1], rel=0.15)


def test_prompts_run_in_chunks() -> None:
    """FLOP of the chunkwise form, by hand for 128-wide heads: 6·64·128 + 4·64·128 + 2/3·64² + 6·128² per head."""
    assert chunk_flops(128, 128) == pytest.approx(49152 + 32768 + 2730.67 + 98304, rel=1e-6)
    tokens = 4096.0
    load = prompt(tokens)
    cost = even_cost(instance("qwen3-next-80b-a3b", "h200", "prefill", "bf16"))
    work = {row.name: row.flops for row in broken_down(cost, load, 1)}
    assert work["chunkwise_state"] == pytest.approx(36 * tokens * 32 * chunk_flops(128, 128))


def test_drafts_of_a_hybrid_write_the_state_after_each_token() -> None:
    """Verifying one draft reads the state once and writes it twice, so a rejected draft can be undone."""
    moved = {}
    for drafts in (0, 1):
        cost = even_cost(instance("qwen3.5-397b-a17b", "h200", "decode", "bf16", drafts=drafts))
        load = StepLoad(decode_sequences=1.0, decode_kv_tokens=0.0, mean_tokens=1.0 + drafts)
        moved[drafts] = next(row.bytes for row in broken_down(cost, load, 1) if row.name == "recurrent_state")
    state, operands = 45 * 64 * 128 * 128 * 4, 45 * 2 * (2 * 2048 + 2 * 8192)
    assert moved[1] - moved[0] == pytest.approx(state + operands)


def test_heads_limit_tensor_parallelism() -> None:
    """Sixteen key heads do not divide over 32 devices."""
    said = list(model_conflicts(Strategy(attention_tp=32, moe_ep=32), load_model("qwen3.5-397b-a17b")))
    assert any("16 key heads of linear attention" in sentence for sentence in said)


@pytest.mark.parametrize("row", MEASURED)
def test_kernels_take_what_was_measured(row: str) -> None:
    """A named kernel, all of a layer but the norm before, or blocks of keys with what chooses them."""
    model, machine, engine, weights, cache, phase, tp, load, what, measured, within, clock = row.split(",")
    count, tokens = map(float, load.split("x"))
    fields = {"kv_dtype": cache, "attention_tp": int(tp), "moe_tp": int(tp), "engine": engine or None}
    own = instance(model, machine, phase, weights, **fields)  # type: ignore[arg-type]
    hardware = with_engine(own.hardware, engine) if engine else own.hardware
    if clock:
        hardware = replace(hardware, device=replace(hardware.device, sustained_fraction=None))
    own = replace(own, hardware=hardware)
    whole = prompt(tokens)
    several = whole._replace(**{name: count * getattr(whole, name) for name in ("prefill_tokens", "prefill_pairs")})
    asked = decode(count, tokens) if phase == "decode" else several._replace(mean_tokens=count * tokens)
    terms = [term.name for term in attention_terms(own) if isinstance(term, ComputeTerm)]
    names = {
        "layer": [name for name in terms if name != "attention_norm"],
        "blocks": [*(name for name in terms if not name.startswith(("attention_", "hyper_"))), "attention_quantise"],
    }.get(what, what.split())
    found = [each for each in broken_down(even_cost(own), asked, 1) if each.name in names]
    layers = own.model.layers if what in ("layer", "blocks") else found[0].count
    assert sum(each.seconds for each in found) / layers == pytest.approx(float(measured) * 1e-6, rel=float(within))


@pytest.mark.parametrize(("engine", "tp", "alone"), [("trtllm", 8, False), ("trtllm", 1, True), ("vllm@0.9", 8, True)])
def test_an_all_reduce_computes_the_norm_after_it(engine: str, tp: int, alone: bool) -> None:
    """TensorRT-LLM's Llama under TP starts no kernel for a norm; of vLLM that holds from 0.17 on (test_behaviour)."""
    own = instance("llama-3.1-70b", "h200", "decode", "bf16", attention_tp=tp, engine=engine)
    norm = next(term for term in attention_terms(own) if term.name == "attention_norm")
    assert (norm.floor_seconds > 0) == alone
