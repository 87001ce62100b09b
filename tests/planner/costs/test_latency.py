"""Loads of decode iterations and prefill passes, and published iterations they reproduce."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from planner.balance.imbalance import MIXED, parse_balance, static_factor
from planner.costs.latency import balanced_cost, causal_pairs, decode_load, deviations, prefill_passes
from planner.manifest.stepcost import evaluate_best
from tests.instances import cloudmatrix_decode, even_cost, instance


def test_pairs_of_a_causal_prompt():
    """Three new tokens on two cached ones see 3, 4 and 5 keys."""
    assert causal_pairs(3, 2) == 12


def test_load_counts_drafts_once_per_request_in_the_cache():
    """48 requests, one draft: 96 tokens reach the experts, the cache is counted once."""
    load = decode_load(cloudmatrix_decode(), 48.0, 4096.0)
    assert (load.decode_sequences, load.decode_kv_tokens, load.mean_tokens) == (48.0, 48 * 4096.0, 96.0)
    assert decode_load(cloudmatrix_decode(), 48.0, 4096.0, 40.0).mean_tokens == 80.0


@settings(max_examples=30, deadline=None)
@given(budget=st.integers(64, 20_000), prompt=st.integers(64, 100_000), reuse=st.floats(0, 0.95))
def test_passes_hold_every_token_and_pair(budget: int, prompt: int, reuse: float):
    """Whole prompts or chunks: new tokens, causal pairs and served tokens per prompt add up exactly."""
    deployment = instance("deepseek-r1", "h800", "prefill", "fp8", attention_dp=32, moe_ep=32)
    passes = prefill_passes(deployment, float(budget), float(prompt), reuse)
    share = max(1.0, budget / prompt)
    new, cached = prompt * (1 - reuse), prompt * reuse
    assert sum(float(step.load.prefill_tokens) for step in passes) == pytest.approx(share * new)
    assert sum(float(step.load.finishing_prompts) for step in passes) == pytest.approx(share)
    assert sum(step.tokens for step in passes) == pytest.approx(share * prompt)
    pairs = sum(float(step.load.prefill_pairs) for step in passes)
    assert pairs == pytest.approx(share * causal_pairs(new, cached))
    assert len(passes) == max(1, math.ceil(prompt / budget))


def test_later_chunks_see_earlier_ones():
    """8192 tokens in chunks of 2048 on a TP8 group that holds 256 per device: contexts 0, 2048, 4096, 6144."""
    deployment = instance("deepseek-r1", "h200", "prefill", "fp8", attention_tp=8, moe_tp=8)
    passes = prefill_passes(deployment, 256.0, 8192.0, 0.0)
    assert [float(step.load.prefill_context_tokens) for step in passes] == [0.0, 2048.0, 4096.0, 6144.0]
    assert [step.load.finishing_prompts for step in passes] == [0.0, 0.0, 0.0, 1.0]


def test_balance_settings():
    """perfect 1; a factor as given; measured from the placement; a dense model and TP experts have no stragglers."""
    deployment = cloudmatrix_decode()
    assert balanced_cost(deployment, parse_balance("perfect")).balance == 1.0
    assert balanced_cost(deployment, parse_balance("1.3")).balance == 1.3
    measured = balanced_cost(deployment, parse_balance("measured"))
    assert measured.balance == static_factor(256, 288, 32, MIXED, True)
    assert measured.sampling_deviations == deviations(288)
    whole = instance("deepseek-r1", "h200", "decode", "fp8", attention_tp=8, moe_tp=8)
    assert balanced_cost(whole, parse_balance("measured")).balance == 1.0
    assert deviations(1) == 0.0


@pytest.mark.parametrize(("requests", "kv", "tpot_ms"), [(48, 4096, 49.4), (56, 2048, 47.4), (12, 4096, 24.6)])
def test_decode_of_cloudmatrix(requests: int, kv: int, tpot_ms: float):
    """CloudMatrix384 Table 5 (50, 50 and 30 ms; half the batch per die): TPOT within 15 %, balance perfect."""
    deployment = cloudmatrix_decode()
    load = decode_load(deployment, float(requests), kv + 128.0)
    seconds = evaluate_best(even_cost(deployment), load).seconds
    assert float(seconds) / 1.7 * 1e3 == pytest.approx(tpot_ms, rel=0.15)


@pytest.mark.parametrize(
    ("hardware", "weights", "tokens", "published"),
    [("cm384", "int8", 8192.0, 6688 / 2), ("h800", "fp8", 16384.0, 7839.0)],
)
def test_prefill_with_perfect_balance(hardware: str, weights: str, tokens: float, published: float):
    """CloudMatrix384 section 5.2: 6688 tokens/s per chip; DeepSeek's profile on H800 7839 per GPU; within 15 %."""
    deployment = instance("deepseek-r1", hardware, "prefill", weights, attention_dp=32, moe_ep=32, redundant=32)
    (step,) = prefill_passes(deployment, tokens, 4096.0, 0.0)
    timed = evaluate_best(even_cost(deployment), step.load)
    seconds, microbatches = timed.seconds, timed.microbatches
    assert microbatches == 2
    assert step.tokens / float(seconds) == pytest.approx(published, rel=0.15)
