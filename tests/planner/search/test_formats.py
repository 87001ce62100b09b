"""Weights in four bits: bytes and products of a step, memory, messages."""

import pytest

from ground.units import GIBI
from hardware.loader import load_hardware
from planner.costs.memory import weight_bytes
from planner.costs.roofline import UNMEASURED_RESIDUAL, exchange_fit, message_bytes
from planner.manifest.terms import StepLoad
from tests.instances import broken_down, even_cost, instance

EXPERTS = 36 * 128 * 3 * 2880 * 2880


def load(requests: float) -> StepLoad:
    """Return running requests of 1,000 cached tokens each."""
    return StepLoad(decode_sequences=requests, decode_kv_tokens=requests * 1000, mean_tokens=requests)


def test_weights_by_hand() -> None:
    """gpt-oss-120b: experts at 4.25 bits, all else BF16; the card's checkpoint is 60.8 GiB (arXiv 2508.10925)."""
    deployment = instance("gpt-oss-120b", "h200", "decode", "mxfp4")
    attention = 36 * (2880 * (64 * 64 + 2 * 8 * 64) + 64 * 64 * 2880)
    gate, tables = 36 * 2880 * 128, 2 * 201088 * 2880
    assert float(weight_bytes(deployment)) == pytest.approx(EXPERTS * 0.53125 + 2 * (attention + gate + tables))
    assert float(weight_bytes(deployment)) == pytest.approx(60.8 * GIBI, rel=0.01)


def test_a_model_of_one_trillion_parameters() -> None:
    """Kimi-K2.5 against Kimi-K2 in BF16: 384 experts in 60 layers shrink from 16 to 4.5 bits, nothing else does."""
    four, sixteen = (weight_bytes(instance("kimi-k2.5", "h200", "decode", dtype)) for dtype in ("int4", "bf16"))
    assert float(sixteen) - float(four) == pytest.approx(60 * 384 * 3 * 7168 * 2048 * (2 - 0.5625))


def test_dequantised_products_read_four_bits_and_multiply_sixteen() -> None:
    """On H100 the experts' FLOP run at BF16's rate, and their fit counts as unmeasured; on B200 at FP8's."""
    rates = {}
    for hardware in ("h100", "b200"):
        deployment = instance("gpt-oss-120b", hardware, "decode", "mxfp4")
        (term,) = (term for term in even_cost(deployment).terms if term.name == "routed_gate_up")
        rates[hardware] = term
    peaks = {name: load_hardware(name).device.peak_flops_per_second for name in rates}
    fits = {name: load_hardware(name).kernels.grouped_gemm for name in rates}
    for name, dtype in (("h100", "bf16"), ("b200", "mxfp4")):
        fit = fits[name][dtype]  # type: ignore[index]
        expected = peaks[name][dtype].value * fit.peak_fraction / (1 + fit.half_depth / 2880)  # type: ignore[index]
        assert rates[name].flops_per_second == pytest.approx(expected)  # type: ignore[union-attr]
        assert rates[name].bytes["hit"] == pytest.approx(2 * 2880 * 2880 * 0.53125)
    assert rates["h100"].residual >= UNMEASURED_RESIDUAL


def test_attention_of_a_four_bit_model_is_bf16() -> None:
    """gpt-oss's projections move two bytes per weight, whatever its experts have."""
    rows = {
        row.name: row.bytes
        for row in broken_down(even_cost(instance("gpt-oss-20b", "h100", "decode", "mxfp4")), load(1.0), 1)
    }
    assert rows["qkv_proj"] == pytest.approx(24 * 2 * (2880 * 5120 + 2880 + 5120))


def test_messages_follow_the_activations() -> None:
    """Experts that are dequantised get BF16 tokens; NVFP4 products get them in NVFP4; results return in BF16."""
    dispatch, combine = (exchange_fit(load_hardware("gb200"), way, "low_latency") for way in ("dispatch", "combine"))
    assert message_bytes(dispatch, 4096, "bf16") == message_bytes(combine, 4096, "bf16") == 8192
    assert message_bytes(dispatch, 4096, "nvfp4") == 4096 * 0.5625
    assert message_bytes(combine, 4096, "nvfp4") == 8192


def test_a_dense_model_in_four_bits_is_four_bits_throughout() -> None:
    """Llama-3.1-70B in NVFP4 on B200: 68.5 billion weights at 4.5 bits, tables in BF16."""
    deployment = instance("llama-3.1-70b", "b200", "decode", "nvfp4")
    tables = 2 * 128256 * 8192
    layers = 80 * (2 * 8192 * (64 + 8) * 128 + 3 * 8192 * 28672)
    assert float(weight_bytes(deployment)) == pytest.approx(layers * 0.5625 + 2 * tables)
