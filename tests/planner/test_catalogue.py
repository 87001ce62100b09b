"""Every model and every machine of the catalogue can be asked, and the answers keep the books."""

import math

import pytest

from hardware.formats import ELEMENT_BYTES
from hardware.loader import hardware_names, load_hardware
from models.loader import load_model, model_names
from models.parameters import count_parameters
from planner.costs.deployment import Phase, default_weights
from planner.costs.predict import Configuration, Prediction, predict
from planner.strategy import Strategy


def asked(model: str, hardware: str, phase: Phase) -> Prediction:
    """Return the prediction on as many devices as hold the weights: EP over DP, or TP of a dense model."""
    spec, machine = load_model(model), load_hardware(hardware)
    weights = default_weights(machine, spec)
    needed = count_parameters(spec).total * ELEMENT_BYTES[weights] / (0.6 * machine.device.memory_bytes.value)
    devices = max(8 if spec.moe else 1, 1 << math.ceil(math.log2(max(needed, 1.0))))
    strategy = (
        Strategy(attention_dp=devices, moe_ep=devices) if spec.moe else Strategy(attention_tp=devices, moe_tp=devices)
    )
    return predict(
        Configuration(
            model=spec,
            hardware=machine,
            phase=phase,
            strategy=strategy,
            weights=weights,
            batch=4,
            kv_tokens=9000.0,
            tokens=2048.0,
            prompt_tokens=6000.0,
        )
    )


def check(answer: Prediction) -> None:
    """Operators add up to the iteration, nothing is negative, the interval holds the prediction."""
    exposed = sum(row.exposed_seconds for row in answer.operators)
    assert exposed == pytest.approx(answer.iteration_seconds, rel=1e-9)
    assert all(min(row.seconds, row.flops, row.bytes, row.message_bytes) >= 0 for row in answer.operators)
    about = answer.tpot_seconds if answer.tpot_seconds is not None else answer.ttft_seconds
    assert 0 < answer.interval.low < about < answer.interval.high


@pytest.mark.parametrize("model", model_names())
def test_every_model_can_be_asked(model: str) -> None:
    """Decode and prefill on H200."""
    for phase in ("decode", "prefill"):
        check(asked(model, "h200", phase))  # type: ignore[arg-type]


@pytest.mark.parametrize("hardware", hardware_names())
def test_every_machine_can_be_asked(hardware: str) -> None:
    """One model of each structure: dense, windows in four bits, sparse latent attention, recurrent layers."""
    for model in ("qwen3-8b", "gpt-oss-20b", "deepseek-v3.2", "qwen3-next-80b-a3b"):
        for phase in ("decode", "prefill"):
            check(asked(model, hardware, phase))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slower", "faster"), [("910b4", "910b"), ("a100", "h100"), ("h200", "b200"), ("mi300x", "mi355x")]
)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_better_machine_is_faster(slower: str, faster: str, phase: Phase) -> None:
    """A device with more of everything takes less time for a dense model, whatever was taken over from whom."""
    times = [asked("qwen3-8b", name, phase).iteration_seconds for name in (slower, faster)]
    assert times[1] < times[0]
