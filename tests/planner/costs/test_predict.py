"""Predictions as a whole: operators add up, nothing beats the roofline, more hardware never harms."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from hardware.loader import load_hardware
from hardware.spec import HardwareSpec
from models.loader import load_model
from planner.costs.deployment import default_weights
from planner.costs.predict import Configuration, Prediction, expert_layouts, predict
from planner.engines.behaviour import host_costs
from planner.strategy import parse_strategy

CASES: dict[str, dict[str, Any]] = {
    "wide EP on CM384": {"model": "deepseek-r1", "hardware": "cm384", "phase": "decode", "strategy": "DP=320, EP=320"},
    "EP on H800": {"model": "deepseek-r1", "hardware": "h800", "phase": "decode", "strategy": "DP=32, EP=32"},
    "TP of experts": {
        "model": "deepseek-r1",
        "hardware": "910b",
        "phase": "decode",
        "strategy": "TP=8+DP=4, TP=8+EP=4",
    },
    "dense with PP": {"model": "qwen3-32b", "hardware": "h100", "phase": "decode", "strategy": "TP=2 [PP=2]"},
    "EP prefill": {"model": "deepseek-r1", "hardware": "h800", "phase": "prefill", "strategy": "DP=32, EP=32"},
    "staged prefill": {"model": "deepseek-r1", "hardware": "cm384", "phase": "prefill", "strategy": "SP=4+DP=8, EP=32"},
    "dense prefill": {"model": "llama-3.1-70b", "hardware": "h200", "phase": "prefill", "strategy": "TP=4"},
    "GQA MoE mixed": {"model": "qwen3-235b-a22b", "hardware": "h100", "phase": "mixed", "strategy": "TP=8, EP=8"},
    "dense mixed": {"model": "qwen3-32b", "hardware": "h100", "phase": "mixed", "strategy": "TP=4"},
}
APART = {
    name: {"model": "deepseek-r1", "hardware": "cm384", "phase": "decode", "strategy": strategy}
    for name, strategy in (("experts apart", "DP=160 x 3, EP=288"), ("experts bind", "DP=32 x 8, EP=16"))
}
"""Whose operators are of two kinds of devices."""


def configuration(**fields: Any) -> Configuration:
    """Return a configuration from names."""
    model, hardware = load_model(fields.pop("model")), fields.pop("hardware")
    hardware = hardware if isinstance(hardware, HardwareSpec) else load_hardware(hardware)
    return Configuration(
        model=model,
        hardware=hardware,
        strategy=parse_strategy(fields.pop("strategy"), moe=model.moe is not None),
        weights=fields.pop("weights", None) or default_weights(hardware, model),
        **fields,
    )


def exposed(answer: Prediction) -> float:
    """Sum of the exposed seconds."""
    return sum(row.exposed_seconds for row in answer.operators)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(CASES | APART)),
    size=st.integers(1, 96),
    kv=st.integers(16, 32000),
    reuse=st.sampled_from([0.0, 0.3, 0.9]),
    split=st.sampled_from([None, 1]),
)
def test_exposed_seconds_add_up(name: str, size: int, kv: int, reuse: float, split: int | None) -> None:
    """Whatever overlaps, the exposed seconds of the operators are the iteration, in every phase."""
    asked = configuration(
        **(CASES | APART)[name],
        batch=size,
        concurrency=size,
        kv_tokens=kv,
        prompt_tokens=min(kv, 4096),
        tokens=size * 128,
        prefix_reuse=reuse,
        microbatches=split,
    )
    answer = predict(asked)
    assert exposed(answer) == pytest.approx(answer.iteration_seconds, rel=1e-9)
    assert all(row.seconds >= 0 and row.exposed_seconds >= -1e-12 for row in answer.operators)


@pytest.mark.parametrize(("engine", "microbatches"), [(None, 2), ("sglang@0.4.6", 2), ("vllm-ascend", 1)])
def test_engines_overlap_what_their_rules_let_them(engine: str | None, microbatches: int) -> None:
    """Microbatches that nobody stated are those that the engine runs, whoever asks the cost model."""
    asked = configuration(model="deepseek-r1", hardware="h800", phase="prefill", strategy="DP=32, EP=32")
    assert predict(replace(asked, host=host_costs(engine))).microbatches == microbatches


@pytest.mark.parametrize("name", sorted(CASES))
def test_nothing_beats_the_roofline(name: str) -> None:
    """No iteration is shorter than its FLOP at the quickest peak, or its bytes at the full memory bandwidth."""
    answer = predict(configuration(**CASES[name], batch=32, concurrency=32))
    device = answer.deployment.hardware.device
    peak = max(value.value for value in device.peak_flops_per_second.values())
    work = sum(row.flops for row in answer.operators if not row.name.startswith("shared_"))
    moved = sum(row.bytes for row in answer.operators if not row.name.startswith("shared_"))
    stages = answer.configuration.strategy.pp
    assert answer.iteration_seconds * stages >= work / peak
    assert answer.iteration_seconds * stages >= moved / device.memory_bandwidth_bytes_per_second.value


def test_drafts_multiply_tokens_by_a_truncated_geometric_series() -> None:
    """1 + a + a² tokens per iteration for two drafts; TPOT is the iteration over them."""
    answer = predict(configuration(**CASES["wide EP on CM384"], batch=48, drafts=2, acceptance=0.5))
    assert answer.tokens_per_iteration_per_request == 1.75
    assert answer.tpot_seconds == pytest.approx(answer.iteration_seconds / 1.75)
    rate = 48 * 320 * 1.75 / answer.iteration_seconds
    assert answer.tokens_per_second == pytest.approx(rate)


def test_requests_that_fill_all_ranks_are_a_batch() -> None:
    """32 ranks with 640 requests are 20 each; one more puts 21 on the busiest and raises its memory."""
    batch = predict(configuration(**CASES["EP on H800"], batch=20))
    even = predict(configuration(**CASES["EP on H800"], requests=640))
    odd = predict(configuration(**CASES["EP on H800"], requests=641))
    assert even.iteration_seconds == batch.iteration_seconds
    assert even.tokens_per_second == pytest.approx(batch.tokens_per_second)
    assert odd.memory.kv_cache == pytest.approx(even.memory.kv_cache * 21 / 20)
    assert even.iteration_seconds < odd.iteration_seconds < 1.05 * even.iteration_seconds
    asked = {**CASES["EP prefill"], "prefix_reuse": 0.5}
    half, whole = predict(configuration(**asked, requests=32)), predict(configuration(**asked, tokens=4096))
    assert half.iteration_seconds == pytest.approx(whole.iteration_seconds)


def test_a_long_prompt_takes_several_passes() -> None:
    """A prompt of four times a group's share takes four passes, and TTFT is their sum."""
    answer = predict(configuration(**CASES["EP prefill"], tokens=8192, prompt_tokens=32768))
    assert answer.ttft_seconds == pytest.approx(4 * answer.iteration_seconds)
    assert answer.tokens_per_second == pytest.approx(32 * 32768 / answer.ttft_seconds)


def test_reused_tokens_count_but_are_not_computed() -> None:
    """Half of the prompt reused: throughput counts all prompt tokens, computed throughput half of them."""
    whole = predict(configuration(**CASES["EP prefill"], tokens=8192))
    half = predict(configuration(**CASES["EP prefill"], tokens=8192, prefix_reuse=0.5))
    assert half.computed_tokens_per_second == pytest.approx(half.tokens_per_second / 2)
    assert half.tokens_per_second > 1.3 * whole.tokens_per_second


def test_layouts_left_open_take_the_fastest_that_fits() -> None:
    """The answer is one of the layouts, and none that fits is quicker."""
    asked = configuration(**CASES["wide EP on CM384"], batch=48, drafts=1)
    answer = predict(asked)
    for layout in expert_layouts(asked):
        fixed = predict(replace(asked, redundant=int(layout.redundant), shared=int(layout.shared_ranks) or "local"))
        assert not fixed.memory.fits or answer.iteration_seconds <= fixed.iteration_seconds


def test_the_interval_surrounds_the_time_it_is_about() -> None:
    """TPOT of decode and mixed, TTFT of prefill."""
    for name in CASES:
        answer = predict(configuration(**CASES[name], batch=8, concurrency=8))
        about = answer.ttft_seconds if answer.configuration.phase == "prefill" else answer.tpot_seconds
        assert answer.interval.low < about < answer.interval.high
