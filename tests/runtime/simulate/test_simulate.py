"""The simulator against the cost function, against queueing theory and against itself."""

import numpy as np
import pytest

from ground.traces import Trace
from planner.manifest.layout import Degrees, Instance
from planner.manifest.schema import Manifest
from planner.manifest.stepcost import evaluate_best
from planner.manifest.terms import StepLoad
from runtime.simulate.engine import ARRIVAL, COMPLETION, EventEngine
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import backlog, closed_loop, from_trace, open_loop
from tests.manifests import build, manifest, pool, requests

ONE = Degrees(attention_tp=1, attention_dp=1)


def chunk(made: Manifest, tokens: int, cached: int = 0, finishing: int = 1) -> float:
    """Return the seconds of a pass of one chunk on one of the ranks."""
    cost = made.pools[0].step_costs["prefill"].to_step_cost()
    load = StepLoad(
        prefill_tokens=float(tokens),
        prefill_context_tokens=float(cached),
        prefill_pairs=tokens * cached + tokens * (tokens + 1) / 2,
        finishing_prompts=float(finishing),
        mean_tokens=tokens / cost.attention_ranks,
    )
    return float(evaluate_best(cost, load, 2).seconds)


def test_one_request_takes_what_the_cost_function_says() -> None:
    """Alone, TTFT is one pass, then transfer and one iteration per further token, each longer by its KV."""
    made = manifest()
    result = simulate(made, requests((1.0, 512, 9, 0)))
    ttft = chunk(made, 512)
    cost = made.pools[1].step_costs["decode"].to_step_cost()
    loads = [StepLoad(decode_sequences=1.0, decode_kv_tokens=512.0 + i, mean_tokens=1 / 8) for i in range(8)]
    steps = sum(float(evaluate_best(cost, load, 2).seconds) for load in loads)
    transfer = 512 * 160.0 / 1e10 + 1e-4
    assert result.ttft_seconds.mean == pytest.approx(ttft, rel=1e-9)
    assert result.e2e_seconds.mean == pytest.approx(ttft + transfer + steps, rel=1e-9)
    assert result.tpot_seconds.mean == pytest.approx((transfer + steps) / 8, rel=1e-9)


def test_long_prompt_takes_several_passes_that_reread_its_cache() -> None:
    """5,000 tokens in passes of 2,048: TTFT is the sum of three passes, the later ones with context."""
    made = manifest()
    result = simulate(made, requests((0.0, 5000, 1, 0)))
    expected = chunk(made, 2048, 0, 0) + chunk(made, 2048, 2048, 0) + chunk(made, 904, 4096)
    assert result.ttft_seconds.mean == pytest.approx(expected, rel=1e-9)


def test_reused_tokens_are_read_and_not_computed() -> None:
    """A prompt of 1,000 tokens of which 900 are cached computes 100 against a context of 900."""
    made = manifest()
    result = simulate(made, requests((0.0, 1000, 1, 900)))
    assert result.ttft_seconds.mean == pytest.approx(chunk(made, 100, 900), rel=1e-6)


def test_same_seed_same_result() -> None:
    """Two runs differ in nothing but wall time; another seed gives other numbers."""
    made = manifest(drafts=1, workload={"output_cv2": 1.0})
    one, again, other = (
        simulate(made, open_loop(made.workload, 100.0, 100, seed), SimulationOptions(seed=seed)).to_dict()
        | {"wall_seconds": None}
        for seed in (1, 1, 2)
    )
    assert one == again != other


def test_closed_loop_keeps_its_concurrency() -> None:
    """Little's law in a closed loop: throughput x mean E2E = concurrency, but for the tail."""
    made = manifest()
    result = simulate(made, closed_loop(made.workload, 8, 400))
    assert result.completed == 400
    assert result.requests_per_second * result.e2e_seconds.mean == pytest.approx(8, rel=0.05)


def test_offline_requests_that_leave_let_no_others_into_a_closed_loop() -> None:
    """As many online requests are open with a backlog as without one, by Little's law over the online ones."""
    made = manifest()
    options = SimulationOptions(offline=backlog(made.workload, 100, 1))
    result = simulate(made, closed_loop(made.workload, 8, 400), options)
    assert result.offline["completed"] == 100 and 0.9 < result.slo_attainment <= 1
    assert result.requests_per_second * result.e2e_seconds.mean <= 8 * 1.05


def test_full_decode_ranks_press_back() -> None:
    """With one slot per rank a ninth request waits for the first of eight to leave."""
    made = manifest(limits={"requests_per_dp_rank": 1, "tokens_per_device": 2048})
    eight, nine = (simulate(made, requests(*[(0.0, 512, 33, 0)] * count)) for count in (8, 9))
    assert nine.duration_seconds > 1.6 * eight.duration_seconds
    assert nine.completed == 9


def test_request_larger_than_any_cache_fails() -> None:
    """It is counted as failed and the others go on."""
    small = {"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": 1024}
    result = simulate(manifest(kv=small), requests((0.0, 2000, 4, 0), (0.0, 100, 4, 0)))
    assert (result.completed, result.failed, result.running) == (1, 1, 0)
    assert result.slo_attainment == 0.5


def test_expected_drafts_take_the_mean() -> None:
    """Every iteration gives 1.7 tokens where acceptance is 0.7."""
    made = manifest(drafts=1)
    options = SimulationOptions(mtp="expected")
    assert simulate(made, requests((0.0, 64, 18, 0)), options).steps["decode"] == 10  # 17 tokens at 1.7


def test_mixed_instance_alone_takes_a_pass_and_iterations() -> None:
    """One request on an aggregated instance: its chunk, then its tokens, in the mixed step's cost."""
    made = build([pool("mixed", ONE, [Instance(name="a", nodes=[0])])], {})
    result = simulate(made, requests((0.0, 512, 5, 0)))
    cost = made.pools[0].step_costs["mixed"].to_step_cost()
    steps = [StepLoad(decode_sequences=1.0, decode_kv_tokens=512.0 + i, mean_tokens=1.0) for i in range(4)]
    decode = sum(float(evaluate_best(cost, load, 2).seconds) for load in steps)
    assert result.e2e_seconds.mean == pytest.approx(chunk(made, 512) + decode, rel=1e-9)


def test_trace_drives_the_run() -> None:
    """Arrivals, lengths and reuse come from the trace; a full hit still computes one token."""
    trace = Trace(
        name="t",
        format="mooncake",
        arrival_seconds=np.array([0.0, 5.0]),
        input_tokens=np.array([512, 512]),
        output_tokens=np.array([1, 1]),
        hash_ids=(np.array([1]), np.array([1])),
        block_tokens=512,
    )
    made = manifest()
    offered = from_trace(trace, made.workload)
    result = simulate(made, offered)
    assert result.prefix_hit_share == pytest.approx(511 / 1024)
    assert result.ttft_seconds.mean == pytest.approx((chunk(made, 512) + chunk(made, 1, 511)) / 2, rel=1e-9)


def test_events_of_one_instant_run_by_priority_then_in_order() -> None:
    """Completions come before arrivals, and equals in the order of scheduling."""
    engine, seen = EventEngine(), list[str]()
    engine.at(1.0, ARRIVAL, lambda _: seen.append("arrival"))
    engine.at(1.0, COMPLETION, lambda _: seen.append("first completion"))
    engine.at(1.0, COMPLETION, lambda _: seen.append("second completion"))
    engine.at(0.5, ARRIVAL, lambda _: seen.append("earlier"))
    engine.run()
    assert seen == ["earlier", "first completion", "second completion", "arrival"]
