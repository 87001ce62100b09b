"""Loading reused prefixes over a plane."""

from dataclasses import replace

import pytest

from hardware.loader import load_hardware
from models.loader import load_model
from planner.costs.cache import POOL_BYTES, latent_bytes, loading_seconds, prefixes_held
from planner.costs.predict import Configuration, predict
from planner.strategy import parse_strategy
from tests.instances import instance

BASE = Configuration(
    model=load_model("deepseek-r1"), hardware=load_hardware("cm384"), phase="prefill",
    strategy=parse_strategy("DP=32, EP=32"), weights="int8", tokens=8192, prompt_tokens=4096, prefix_reuse=0.5,
)  # fmt: skip


def test_bytes_over_the_plane() -> None:
    """DeepSeek-R1 in BF16 KV: 61 layers of 576 elements; VPC gives a die 2.5 of its 3.125 GB/s and 20 us a block.

    Over UB a die reads at its share of its node's four processors of 160 GB/s.
    """
    deployment = instance("deepseek-r1", "cm384", "prefill", "int8", attention_dp=32, moe_ep=32)
    token = 61 * 576 * 2
    for plane, rate, latency in (("vpc", 2.5e9, 20e-6), ("ub", 40e9, 1.9e-6)):
        seconds = loading_seconds(replace(deployment, prefix_plane=plane))
        assert seconds == pytest.approx(token / rate + 61 * latency / 128, rel=1e-6)
        behind = loading_seconds(replace(deployment, prefix_plane=plane, prefix_ssd_share=0.25))
        assert behind == pytest.approx(token * (0.75 / rate + 0.25 / 2.5e9) + 61 * latency / 128, rel=1e-6)
    assert loading_seconds(deployment) == 0.0
    assert prefixes_held(deployment, 2048.0) == pytest.approx(POOL_BYTES / (2048 * 61 * 576 * 2))


def test_what_is_computed_sooner_is_not_loaded() -> None:
    """At a thousandth of VPC's rate a prefix is computed anew, and the answer is that without reuse."""
    slow = replace(
        BASE.hardware,
        planes=[
            replace(plane, efficiency=replace(plane.efficiency, value=0.001)) if plane.name == "vpc" else plane
            for plane in BASE.hardware.planes
        ],
    )
    found = predict(replace(BASE, hardware=slow, cache_plane="vpc"))
    assert found.ttft_seconds == pytest.approx(predict(replace(BASE, prefix_reuse=0.0)).ttft_seconds)


@pytest.mark.parametrize("prompt", [4096.0, 65536.0])
def test_loading_is_a_row_of_its_own_and_adds_up(prompt: float) -> None:
    """Exposed seconds still sum to the pass, TTFT grows by one load, and reuse of nothing loads nothing."""
    free = predict(replace(BASE, prompt_tokens=prompt))
    paid = predict(replace(BASE, prompt_tokens=prompt, cache_plane="vpc"))
    assert free.ttft_seconds and paid.ttft_seconds
    assert sum(row.exposed_seconds for row in paid.operators) == pytest.approx(paid.iteration_seconds)
    passes = round(paid.ttft_seconds / paid.iteration_seconds)
    load = next(row for row in paid.operators if row.name == "prefix_load")
    assert paid.ttft_seconds - free.ttft_seconds == pytest.approx(load.seconds * passes)
    fresh = predict(replace(BASE, prompt_tokens=prompt, prefix_reuse=0.0, cache_plane="vpc"))
    assert "prefix_load" not in {row.name for row in fresh.operators}


@pytest.mark.parametrize(
    ("model", "hardware", "engine", "each"),
    [
        ("deepseek-v3.2", "h200", "sglang", 512 + 16 + 128),
        ("deepseek-v3.2", "b200", "sglang", 576),
        ("deepseek-v3.2", "h200", "trtllm", 576),
        ("deepseek-v4-flash", "h200", "vllm", 448 + 8 + 128),
        ("deepseek-r1", "h200", "vllm", 576),
    ],
)
def test_bytes_of_a_latent_in_fp8(model: str, hardware: str, engine: str, each: int) -> None:
    """FlashMLA's cache of sparse attention keeps the rotary key in BF16, and scales beside the latent."""
    deployment = replace(instance(model, hardware, "decode", "fp8", moe_ep=1), kv_dtype="fp8", engine=engine)
    assert latent_bytes(deployment, deployment.model.attention) == each
    assert latent_bytes(replace(deployment, kv_dtype="bf16"), deployment.model.attention) == 2 * (
        deployment.model.attention.kv_elements_per_token
    )
