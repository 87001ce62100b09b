"""Gated delta-net layers: constant state, recurrent decode, chunkwise prompts."""

import pytest

from models.loader import load_model
from models.parameters import count_parameters
from planner.costs.cache import device_cache, model_cache
from planner.costs.deployment import Phase
from planner.costs.linear_attention import chunk_flops
from planner.manifest.terms import StepLoad
from planner.strategy import Strategy, model_conflicts
from tests.instances import broken_down, even_cost, instance

STATE = 32 * 128 * 128 * 4
CONVOLUTION = 3 * (2 * 2048 + 4096) * 2


def decode(requests: float, keys: float) -> StepLoad:
    """Return running requests of ``keys`` cached tokens each."""
    return StepLoad(decode_sequences=requests, decode_kv_tokens=requests * keys, mean_tokens=requests)


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


@pytest.mark.parametrize(
    ("phase", "kernel", "measured"),
    [
        ("decode", "recurrent_state", 613e-6),
        ("decode", "short_convolution", 48e-6),
        ("prefill", "chunkwise_state", 892e-6),
        ("prefill", "short_convolution", 203e-6),
    ],
)
def test_kernels_take_what_was_measured(phase: Phase, kernel: str, measured: float) -> None:
    """A layer on an H20: 256 running requests, or a prompt of 4,096 tokens (InferSim, bench_data/gdn)."""
    deployment = instance("qwen3-next-80b-a3b", "h20", phase, "fp8")
    load = decode(256.0, 1000.0) if phase == "decode" else StepLoad(prefill_tokens=4096.0, mean_tokens=4096.0)
    (row,) = (row for row in broken_down(even_cost(deployment), load, 1) if row.name == kernel)
    assert row.seconds / 36 == pytest.approx(measured, rel=0.12)


def test_prompts_run_in_chunks() -> None:
    """FLOP of the chunkwise form, by hand for 128-wide heads: 6·64·128 + 4·64·128 + 2/3·64² + 6·128² per head."""
    assert chunk_flops(128, 128) == pytest.approx(49152 + 32768 + 2730.67 + 98304, rel=1e-6)
    tokens = 4096.0
    load = StepLoad(
        prefill_tokens=tokens, prefill_pairs=tokens * (tokens + 1) / 2, finishing_prompts=1.0, mean_tokens=tokens
    )
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
