"""Loading reused prefixes over a plane."""

from dataclasses import replace

import pytest

from ground.errors import BadInput
from hardware.loader import load_hardware
from models.loader import load_model
from planner.costs.predict import Configuration, predict
from planner.costs.prefixes import POOL_BYTES, find_plane, loading_seconds, prefixes_held
from planner.strategy import parse_strategy
from tests.instances import instance

BASE = Configuration(
    model=load_model("deepseek-r1"), hardware=load_hardware("cm384"), phase="prefill",
    strategy=parse_strategy("DP=32, EP=32"), weights="int8", tokens=8192, prompt_tokens=4096, prefix_reuse=0.5,
)  # fmt: skip


def test_bytes_over_the_plane() -> None:
    """DeepSeek-R1 in BF16 KV: 61 layers of 576 elements; VPC gives a die 2.5 of its 3.125 GB/s after 20 us."""
    deployment = instance("deepseek-r1", "cm384", "prefill", "int8", attention_dp=32, moe_ep=32)
    seconds = loading_seconds(deployment, find_plane(BASE.hardware, "VPC"), 4096.0)
    assert seconds == pytest.approx(20e-6 + 4096 * 61 * 576 * 2 / 2.5e9, rel=1e-6)
    assert loading_seconds(deployment, find_plane(BASE.hardware, "vpc"), 0.0) == 0.0
    assert prefixes_held(deployment, 2048.0) == pytest.approx(POOL_BYTES / (2048 * 61 * 576 * 2))


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


def test_an_unknown_plane_is_named() -> None:
    """With the planes that there are."""
    with pytest.raises(BadInput, match="--cache-plane: cm384 has no plane 'uv'; use sio or ub"):
        find_plane(BASE.hardware, "uv")
