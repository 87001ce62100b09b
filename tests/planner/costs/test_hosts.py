"""How hosts drive the devices: decode without graphs, and jitter at the barrier of EP ranks."""

from dataclasses import replace

import numpy as np
import pytest

from ground.errors import BadInput
from hardware.loader import load_hardware
from hardware.spec import Dtype
from models.loader import load_model
from planner.balance.imbalance import Balance
from planner.costs.deployment import Deployment, Host, Phase
from planner.costs.latency import balanced_cost, decode_load
from planner.costs.memory import memory
from planner.engines.behaviour import REQUEST_SECONDS, HostCosts, host_costs
from planner.manifest.stepcost import evaluate, launches
from planner.manifest.terms import StepLoad
from planner.strategy import parse_strategy
from tests.instances import instance


def deployment(model: str, strategy: str, host: Host, phase: Phase = "decode") -> Deployment:
    """Return an instance on cm384 in INT8 or BF16."""
    weights: Dtype = "int8" if load_model(model).moe else "bf16"
    return instance(model, "cm384", phase, weights, strategy=parse_strategy(strategy), host=host)


def step_seconds(own: Deployment) -> float:
    """Return the seconds of a decode step of 32 requests a rank."""
    load = decode_load(own, 32.0, 4096.0, 32.0)
    return float(evaluate(balanced_cost(own, Balance(kind="perfect")), load).seconds)


def test_eager_decode_adds_its_launches() -> None:
    """Without graphs a step takes every launch longer, and saves the launch of the graph."""
    graphs, eager = (deployment("qwen3-8b", "TP=1", Host(graphs=on)) for on in (True, False))
    host = graphs.hardware.host
    launched = launches(balanced_cost(eager, Balance(kind="perfect")), 1) * host.eager_launch_seconds.value
    added = step_seconds(eager) - step_seconds(graphs)
    assert added == pytest.approx(launched - host.graph_launch_seconds.value)
    assert added > 0.1 * step_seconds(graphs)
    assert memory(eager, kv_tokens=1.0, sequences=1.0, tokens=1.0).fits


def test_a_step_waits_for_the_slowest_host() -> None:
    """Of n exponential delays the largest is H(n) means; drawn ones agree. A dense model has no such ranks."""
    calm, late = (deployment("deepseek-r1", "DP=64, EP=64", Host(jitter_seconds=mean)) for mean in (0.0, 1e-3))
    drawn = np.random.default_rng(0).exponential(1e-3, (20_000, 64)).max(axis=1).mean()
    assert step_seconds(late) - step_seconds(calm) == pytest.approx(drawn, rel=0.02)
    dense = [deployment("qwen3-8b", "TP=8", Host(jitter_seconds=mean)) for mean in (0.0, 1e-3)]
    assert step_seconds(dense[1]) - step_seconds(dense[0]) == pytest.approx(1e-3)


def test_prompts_are_launched_as_before() -> None:
    """Graphs concern decode alone."""
    costs = [
        balanced_cost(
            replace(deployment("qwen3-8b", "TP=1", Host(graphs=on)), phase="prefill"), Balance(kind="perfect")
        )
        for on in (True, False)
    ]
    assert costs[0] == costs[1]


def test_prompts_beside_decode_are_launched_kernel_by_kernel() -> None:
    """No graph holds an aggregated step with prompts: on Ascend it takes 35 us a kernel at least, however short."""
    own = replace(deployment("qwen3-0.6b", "TP=1", Host()), phase="mixed")
    cost = balanced_cost(own, Balance(kind="perfect"))
    load = StepLoad(prefill_tokens=64.0, prefill_pairs=2048.0, finishing_prompts=1.0, mean_tokens=64.0)
    launched = float(evaluate(cost, load).seconds) - cost.host_seconds
    assert launched == pytest.approx(launches(cost, 1) * 3.5e-5) and launched > 28 * 10 * 3.5e-5


def test_vllm_ascend_waits_before_each_layers_graph() -> None:
    """From 0.12 to 0.19 a decode step waits in every layer, 591 us as profiled; not without graphs."""

    def seconds(engine: str, graphs: bool = True) -> float:
        return step_seconds(replace(deployment("qwen3-8b", "TP=1", Host(graphs=graphs)), engine=engine))

    plain = seconds("vllm-ascend@0.11.0")
    assert seconds("vllm-ascend@0.13.0rc1") == seconds("vllm-ascend@0.19.1rc1") == pytest.approx(plain + 36 * 591e-6)
    assert seconds("vllm-ascend@0.20.2rc1") == seconds("vllm-ascend") == plain
    assert seconds("vllm-ascend@0.13.0", graphs=False) == seconds("vllm-ascend", graphs=False)


def test_prompts_of_tensorrt_llm_are_launched_kernel_by_kernel() -> None:
    """A step with a short prompt takes half a millisecond a layer at least; on Hopper experts take more beside it."""

    def seconds(engine: str, model: str, machine: str, tokens: float) -> float:
        own = replace(
            deployment(model, "TP=8" if model == "qwen3-32b" else "TP=8, EP=8", Host()),
            hardware=load_hardware(machine),
            phase="prefill",
            weights="bf16",
            engine=engine,
        )
        load = StepLoad(
            prefill_tokens=tokens, prefill_pairs=tokens * tokens / 2, finishing_prompts=1.0, mean_tokens=tokens
        )
        return float(evaluate(balanced_cost(own, Balance(kind="perfect")), load).seconds)

    assert seconds("trtllm", "qwen3-32b", "b200", 64.0) == pytest.approx(64 * 5e-4)
    assert seconds("trtllm", "qwen3-32b", "b200", 16384.0) > 2 * 64 * 5e-4
    newer, older = (seconds(f"trtllm@{at}", "qwen3-235b-a22b", "h200", 16384.0) for at in ("1.1.0", "1.0.0"))
    assert newer - older == pytest.approx(94 * 1.4e-3, rel=1e-3)


def test_host_costs_come_from_profiles_and_measured_systems() -> None:
    """An engine's profile says its gap, a measured system stands in the table, and no other name is known."""
    assert host_costs(None) == HostCosts()
    assert host_costs("xdeepserve").step_seconds == 2e-3
    assert host_costs("sglang").step_seconds == 0.0
    assert host_costs("trtllm").step_seconds == 0.0
    assert host_costs("reference").step_seconds is None
    assert host_costs("mindie").request_seconds == REQUEST_SECONDS
    with pytest.raises(BadInput, match="cloudmatrix-infer"):
        host_costs("no such system")
