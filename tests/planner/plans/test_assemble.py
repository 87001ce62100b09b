"""Plans become manifests that repeat byte for byte and do what was predicted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ground.yamldata import parse_yaml
from planner.costs.predict import Configuration, Prediction, predict
from planner.manifest.document import dump_manifest, parse_manifest, read_manifest
from planner.manifest.schema import Manifest, Pool
from planner.plans.assemble import assemble, expert_map
from planner.plans.expectation import expect
from planner.plans.plan import Plan
from planner.plans.pools import PlannedPrefill
from planner.plans.recorded import expect_alone
from planner.serving.deployed import separate_pools, workload_of
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import closed_loop, open_loop, with_running
from tests.instances import cloudmatrix_decode
from tests.plans import small_manifest, small_plan

DEPLOY = Path(__file__).parents[3] / "examples" / "deploy"
DEEPSEEK = {"model": "deepseek-r1", "devices": 128, "drafts": (1,)}


def test_the_same_plan_gives_the_same_bytes_and_reading_gives_it_back() -> None:
    """Nothing in a manifest depends on when or how often it is made, and all of it passes every check."""
    plan = small_plan(**DEEPSEEK)
    first, second = (dump_manifest(assemble(plan, {"model": "deepseek-r1", "hw": "cm384"})) for _ in range(2))
    assert first == second
    assert dump_manifest(parse_manifest(parse_yaml(first, "m.yaml"), "m.yaml")) == first


def test_instances_start_at_nodes_or_share_one() -> None:
    """An instance of at least a node starts at a node; a smaller one stays inside its node."""
    for manifest in (small_manifest(), small_manifest(**DEEPSEEK)):
        for pool in manifest.pools:
            per_node = int(manifest.clusters[pool.hardware].spec.devices_per_node.value)
            for instance in pool.instances:
                assert instance.first_device + pool.devices_per_instance <= per_node or instance.first_device == 0
                assert len(instance.nodes) == -(-pool.devices_per_instance // per_node)


def test_layers_and_experts_stand_by_their_checkpoint_numbers() -> None:
    """DeepSeek-R1's first three layers are dense (its config.json), so experts stand in layers 3 to 60."""
    mapping = small_manifest(**DEEPSEEK).pools[0].expert_map
    assert [layer for entry in mapping.placements for layer in entry.layers] == list(range(3, 61))


def test_dedicated_shared_expert_ranks_are_the_last() -> None:
    """CloudMatrix384 section 4.1: 320 EP ranks, of which 32 hold only the shared expert and 288 a slot each."""
    mapping = expert_map(cloudmatrix_decode(), 0)
    assert mapping.shared_expert_ranks == list(range(288, 320))
    assert {len(entry.slots) for entry in mapping.placements} == {288}


def test_every_pool_carries_both_phases() -> None:
    """A prefill instance can turn to decode and the other way round; own phases are those of the plan."""
    for pool in small_manifest(**DEEPSEEK).pools:
        assert set(pool.step_costs) == {"prefill", "decode"}
        assert pool.step_costs["decode"].queries_per_sequence == 1 + pool.mtp.drafts


def test_the_queues_of_the_manifest_give_the_figures_of_the_plan() -> None:
    """Step costs travel without loss: at (almost) the planned rate the manifest alone predicts what the plan did."""
    manifest = small_manifest(**DEEPSEEK)
    planned, rate = manifest.predicted, manifest.workload.requests_per_second
    again = expect(manifest, workload_of(manifest.workload), rate * (1 - 1e-9)).prediction
    assert again.ttft_seconds.mean == pytest.approx(planned.ttft_seconds.mean, rel=1e-6)
    assert again.tpot_seconds.mean == pytest.approx(planned.tpot_seconds.mean, rel=1e-3)


def one_request(plan: Plan, pool: Pool, **fields: float) -> Prediction:
    """Predict a single request on an instance of a pool of the plan."""
    planned = plan.prefill if pool.role == "prefill" else plan.decode
    row = planned.candidate.row
    base = Configuration(
        model=plan.question.model,
        hardware=planned.machines.hardware,
        phase="prefill" if isinstance(planned, PlannedPrefill) else "decode",
        strategy=row.strategy,
        weights=planned.machines.weights,
        redundant=row.redundant,
        shared=row.dedicated,
        drafts=pool.mtp.drafts,
        requests=1,
        microbatches=None if pool.microbatches == 2 else 1,
    )
    return predict(replace(base, **fields))


def test_one_request_at_a_time_takes_what_predict_says() -> None:
    """TTFT is the pass of a single prompt, and each further token an iteration with one request: no queue, no batch."""
    plan, manifest = small_plan(lengths=(1024.0, 4.0)), small_manifest(lengths=(1024.0, 4.0))
    prefill, decode = manifest.pools
    result = simulate(manifest, closed_loop(manifest.workload, 1, 3))
    tokens = float(prefill.limits.tokens_per_device)
    passed = one_request(plan, prefill, tokens=tokens, prompt_tokens=1024.0)
    iterations = [one_request(plan, decode, kv_tokens=1024.0 + n).iteration_seconds for n in range(3)]
    moved = float(separate_pools(manifest, (prefill, decode)).transfer_seconds(np.array(1024.0)))
    moved += manifest.kv_transfer.latency_seconds
    assert result.ttft_seconds.mean == pytest.approx(passed.ttft_seconds, rel=1e-9)
    assert result.tpot_seconds.mean == pytest.approx((moved + sum(iterations)) / 3, rel=1e-9)
    expected = expect_alone(manifest, workload_of(manifest.workload)).prediction
    assert expected.ttft_seconds.mean == pytest.approx(result.ttft_seconds.mean, rel=1e-9)
    assert expected.tpot_seconds.mean == pytest.approx(result.tpot_seconds.mean, rel=1e-9)


@pytest.mark.parametrize("name", ["qwen3-8b-h100", "qwen3-235b-h800"])
def test_one_request_at_a_time_waits_for_nothing(name: str) -> None:
    """Of either shape, whatever step its engine begins too many: the simulated closed loop of one is told exactly."""
    manifest = read_manifest(DEPLOY / name / "manifest.yaml")
    told = expect_alone(manifest, workload_of(manifest.workload)).prediction
    found = simulate(manifest, closed_loop(manifest.workload, 1, 3))
    assert max(told.utilisation.values()) <= 1
    for latency in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        assert getattr(told, latency).p99 == pytest.approx(getattr(found, latency).p99, rel=1e-6)


def test_drafts_of_one_request_are_drawn() -> None:
    """With sampled MTP the number of iterations varies; its mean is that of the draws."""
    manifest = small_manifest(**DEEPSEEK)
    result = simulate(manifest, closed_loop(manifest.workload, 1, 100))
    expected = expect_alone(manifest, workload_of(manifest.workload)).prediction
    assert expected.tpot_seconds.mean == pytest.approx(result.tpot_seconds.mean, rel=0.01)


def stationary(manifest: Manifest, count: int) -> dict[str, float]:
    """Simulate a Poisson stream from a running start; return predicted / measured - 1 of the means."""
    rate, predicted = manifest.workload.requests_per_second, manifest.predicted
    residence = predicted.e2e_seconds.mean
    stream = open_loop(manifest.workload, rate, count + int(3 * residence * rate))
    options = SimulationOptions(warmup_seconds=residence, measured_until_seconds=residence + count / rate)
    result = simulate(manifest, with_running(stream, round(rate * residence)), options)
    pairs = {
        "ttft": (predicted.ttft_seconds, result.ttft_seconds),
        "tpot": (predicted.tpot_seconds, result.tpot_seconds),
    }
    return {name: one.mean / other.mean - 1 for name, (one, other) in pairs.items() if one and other}


def test_poisson_arrivals_at_the_planned_rate_meet_the_prediction() -> None:
    """One instance per role near saturation: mean TTFT within 10 %, mean TPOT within 5 % of the closed forms."""
    error = stationary(small_manifest(**DEEPSEEK), 15_000)
    assert abs(error["ttft"]) < 0.10
    assert abs(error["tpot"]) < 0.05
