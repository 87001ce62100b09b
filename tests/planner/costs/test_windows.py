"""Layers that see recent tokens only, and keys that are parameters."""

import numpy as np
import pytest

from planner.costs.cache import device_cache
from planner.costs.deployment import StrategyArray
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from tests.instances import broken_down, even_cost, instance


def decode(requests: float, keys: float) -> StepLoad:
    """Return running requests of ``keys`` cached tokens each."""
    return StepLoad(decode_sequences=requests, decode_kv_tokens=requests * keys, mean_tokens=requests)


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
    load = StepLoad(
        prefill_tokens=tokens, prefill_pairs=tokens * (tokens + 1) / 2, finishing_prompts=1.0, mean_tokens=tokens
    )
    count, flops, _ = rows("llama-4-scout", load, "prefill")["prefill_window_attention"]
    pairs = 8192 * 8193 / 2 + (20_000 - 8192) * 8192
    assert (count, flops) == (36, pytest.approx(36 * pairs * 4 * 40 * 128))


def test_short_contexts_know_no_window() -> None:
    """Below the window all 48 layers together do what 48 layers of full attention would."""
    found = rows("llama-4-scout", decode(3.0, 1000.0))
    together = found["attention"][1] + found["window_attention"][1]
    assert together == pytest.approx(48 * 3000 * 4 * 40 * 128)


def test_windows_bound_the_memory() -> None:
    """Three requests of 100,000 tokens: 12 layers keep all of them, 36 the last 8,192 of each."""
    cache = device_cache(instance("llama-4-scout", "h200", "decode", "bf16"))
    assert cache.bytes(300_000.0, 3.0) == pytest.approx((12 * 300_000 + 36 * 3 * 8192) * 4096)
    assert cache.bytes(3000.0, 3.0) == pytest.approx(48 * 3000 * 4096)


def test_many_instances_at_once() -> None:
    """Arrays of TP degrees and loads equal the loop over them."""
    tp, one = np.array([1, 2, 4]), np.ones(3, dtype=int)
    strategy = StrategyArray(attention_tp=tp, attention_dp=one, moe_tp=tp, moe_ep=one, staged=False, pp=one)
    batch, keys = np.array([1.0, 8.0, 64.0]), np.array([100_000.0, 9000.0, 500.0])
    together = evaluate(
        even_cost(instance("llama-4-scout", "h200", "decode", "bf16", strategy=strategy)),
        StepLoad(decode_sequences=batch, decode_kv_tokens=batch * keys, mean_tokens=batch),
        1,
    )
    for number, degree in enumerate(tp.tolist()):
        alone = even_cost(instance("llama-4-scout", "h200", "decode", "bf16", attention_tp=degree, moe_tp=degree))
        expected = evaluate(alone, decode(float(batch[number]), float(keys[number])), 1).seconds
        assert np.asarray(together.seconds)[number] == pytest.approx(float(expected))


def test_keys_that_are_parameters_are_seen_by_every_query() -> None:
    """openPangu-R: 128 further keys per query of 2·64·(192 + 128) FLOP, read once per layer and step."""
    found = rows("openpangu-r-72b", decode(2.0, 1000.0))
    assert found["attention"][1] == pytest.approx(50 * (2000 + 2 * 128) * 2 * 64 * 320)
    moved = (2000 + 128) * 4 * 320 * 2 + 2 * 64 * 320 * 2
    assert found["attention"][2] == pytest.approx(50 * moved)
