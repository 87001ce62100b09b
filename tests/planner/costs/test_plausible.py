"""Predictions over the whole catalogue, measured or not: fewer bits and better machines take no longer."""

from itertools import pairwise
from typing import Any

import pytest

import podplan
from ground.errors import BadInput
from hardware.loader import hardware_names, load_hardware
from planner.engines.loader import accelerator_of

PRODUCTS, LAYERS = 4, 36
ENGINES = ("vllm", "sglang", "trtllm")
SLOW = {("rtx-pro-6000", "sglang")}
"""FP8 products whose measured times are far above BF16's: 32 us at a depth of 4,096, whatever the width."""


def seconds(hw: str, engine: str, *, model: str = "qwen3-8b", strategy: str = "TP=1", **flags: Any) -> float | None:
    """Return the seconds of a decode step; None where the machine does not multiply the weights."""
    asked = {"phase": "decode", "strategy": strategy, "batch": 16, **flags}
    try:
        return podplan.predict(model, hw=hw, engine=engine, **asked).prediction.iteration_seconds
    except BadInput:
        return None


@pytest.mark.parametrize("strategy", ["TP=1", "TP=2", "TP=8"])
@pytest.mark.parametrize("name", hardware_names())
def test_fewer_bits_cost_no_more_than_their_quantisation(name: str, strategy: str) -> None:
    """Products in FP8, and in INT8 on Ascend, are slower than BF16's by what quantises activations at most.

    That is 2 to 3 us of a product on NVIDIA (AIConfigurator's times), 5 with DeepGEMM's start-up on H20 (InferSim's),
    and 7.5 us in CANN's dynamic INT8.
    """
    ascend = accelerator_of(load_hardware(name)) == "ascend"
    most = PRODUCTS * LAYERS * (8e-6 if ascend else 6e-6)
    for engine in ("vllm-ascend",) if ascend else ENGINES:
        wide = seconds(name, engine, strategy=strategy, weights="bf16")
        assert wide is not None
        for dtype in ("fp8", "int8") if ascend else ("fp8",):
            narrow = seconds(name, engine, strategy=strategy, weights=dtype)
            assert narrow is None or narrow < wide + most or (name, engine) in SLOW, (engine, dtype, wide, narrow)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b", "llama-3.3-70b"])
@pytest.mark.parametrize("machines", [("b200", "h200", "h100", "a100"), ("mi355x", "mi325x", "mi300x")])
def test_the_better_machine_is_no_slower(machines: tuple[str, ...], model: str, engine: str) -> None:
    """More bandwidth of a later generation: within 3 %, which the fits' residuals allow."""
    for strategy, batch in (("TP=1", 1), ("TP=1", 64), ("TP=8", 1), ("TP=8", 64)):
        times = [
            seconds(each, engine, model=model, strategy=strategy, batch=batch, weights="bf16") for each in machines
        ]
        known = [each for each in times if each is not None]
        assert all(better <= 1.03 * worse for better, worse in pairwise(known)), times
