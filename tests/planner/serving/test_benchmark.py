"""The benchmark client's loop: what it sends, and what the played run tells of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.balance.imbalance import parse_balance
from planner.costs.latency import balanced_cost
from planner.engines.loader import load_engine
from planner.serving.benchmark import WAVES, Benchmark, lengths, measure, requests_of
from planner.serving.rules import SchedulingRule, rule_of_engine
from tests.instances import instance
from tests.planner.serving.costs import linear_cost

COST = balanced_cost(instance("qwen3-32b", "h100", "mixed", "fp8", attention_tp=4, moe_tp=4), parse_balance("measured"))


def run_of(concurrency: int, prompt: int, output: int, budget: int = 2048) -> Benchmark:
    """Return a run without reuse or drafts on one rank."""
    return Benchmark(concurrency=concurrency, prompt_tokens=prompt, output_tokens=output, budget_tokens=budget)


def test_a_lone_request_by_hand():
    """One request at a time: TTFT is a step of its prompt, TPOT a step of decode."""
    seen = measure(linear_cost(5e-3, 20e-6, 1e-4), run_of(1, 100, 11))
    assert seen.ttft_seconds == pytest.approx(5e-3 + 100 * 20e-6)
    assert seen.tpot_seconds == pytest.approx(5.1e-3)
    assert seen.prompt_steps == pytest.approx(1 / 11)
    assert float(seen.mixed_load.prefill_tokens) == 100 and float(seen.mixed_load.decode_sequences) == 0
    assert float(seen.decode_load.decode_sequences) == 1


def test_loads_of_two_requests_by_hand():
    """Both prompts of 100 share a step, ten iterations follow; a running request has 100 + 11 / 2 tokens on average."""
    seen = measure(linear_cost(5e-3, 20e-6, 1e-4), run_of(2, 100, 11))
    assert seen.prompt_steps == pytest.approx(1 / 11)
    assert [float(each) for each in seen.decode_load[:7]] == pytest.approx([2, 211, 0, 0, 0, 0, 2])
    assert [float(each) for each in seen.mixed_load[:7]] == pytest.approx([0, 0, 200, 0, 200 * 50.5, 2, 200])
    half = measure(linear_cost(5e-3, 20e-6, 1e-4), replace(run_of(2, 100, 11), reuse=0.5))
    assert [float(each) for each in half.mixed_load[:7]] == pytest.approx([0, 0, 100, 100, 100 * 75.5, 2, 100])
    apart = measure(linear_cost(5e-3, 20e-6, 1e-4, ranks=2), replace(run_of(2, 100, 11), ranks=2))
    assert [float(each) for each in apart.decode_load[:7]] == pytest.approx([1, 105.5, 0, 0, 0, 0, 1])
    assert [float(each) for each in apart.mixed_load[:7]] == pytest.approx([0, 0, 100, 0, 100 * 50.5, 1, 100])
    cut = measure(linear_cost(5e-3, 20e-6, 1e-4), run_of(1, 100, 1, 50))
    assert [float(each) for each in cut.mixed_load[:7]] == pytest.approx([0, 0, 50, 25, 50 * 50.5, 0.5, 50])


def test_the_first_wave_waits_for_all_prompts():
    """Sixteen prompts, each nearly a whole budget: a tenth of the requests wait 8.5 passes, the others about one."""
    seen, alone = measure(COST, run_of(16, 8000, 400, 8192)), measure(COST, run_of(1, 8000, 400, 8192))
    assert seen.ttft_seconds == pytest.approx((8.5 + 9) / WAVES * alone.ttft_seconds, rel=0.25)


def test_varying_lengths_pull_cohorts_apart():
    """Four short prompts of varying length are no longer computed in one step."""
    run = run_of(4, 1024, 1024, 8192)
    assert measure(COST, replace(run, spread=0.1)).ttft_seconds < 0.7 * measure(COST, run).ttft_seconds


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9000), st.integers(1, 300), st.sampled_from([0.0, 0.3]), st.integers(1, 3))
def test_shares_and_loads_make_sense(concurrency, prompt, output, spread, ranks):
    """Every prompt token and every request of a step is counted once, whatever the loop."""
    seen = measure(COST, replace(run_of(concurrency, prompt, output), spread=spread, ranks=ranks))
    assert 0 < seen.prompt_steps <= 1 and seen.ttft_seconds > 0 and seen.tpot_seconds >= 0
    assert 0 <= float(seen.mixed_load.decode_sequences) <= -(-concurrency // ranks) * 1.0001
    assert 0 < float(seen.decode_load.decode_sequences) <= -(-concurrency // ranks) * 1.0001
    assert 0 < float(seen.mixed_load.prefill_tokens) <= 2048


@given(st.floats(1, 1e5), st.floats(0, 0.9))
def test_lengths_have_the_mean_and_the_spread_asked_for(mean: float, spread: float):
    """Evenly spread between mean · (1 - spread) and mean · (1 + spread)."""
    drawn = lengths(mean, spread, 0.0, 400)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.min() >= mean * (1 - spread) - 1e-9 and drawn.max() <= mean * (1 + spread) + 1e-9


def test_ten_times_the_open_requests_are_sent():
    """Reused tokens leave one to compute."""
    stream = requests_of(replace(run_of(3, 100, 10), reuse=1.0))
    assert len(stream) == 3 * WAVES and np.all(stream.reused_tokens == 99)


def test_prompts_first_and_rare_looks_for_requests():
    """Decode waits while a prompt does, so tokens come later; requests wait for the scheduler to look."""
    run = replace(run_of(8, 1000, 100, 8192), spread=0.1)
    shared, first, rare = (
        measure(COST, replace(run, rule=rule))
        for rule in (
            SchedulingRule(),
            SchedulingRule(order="prompts_first"),
            SchedulingRule(order="prompts_first", receive_interval=20),
        )
    )
    assert shared.tpot_seconds < first.tpot_seconds
    assert first.ttft_seconds + 2 * rare.tpot_seconds < rare.ttft_seconds


def test_whole_prompts_wait_for_a_step_that_holds_them():
    """Two prompts of 60 and a budget of 100: cut, the second one's first part shares the first step; whole, none."""
    cost, run = linear_cost(5e-3, 20e-6, 1e-4), run_of(2, 60, 1, 100)
    cut, whole = (measure(cost, replace(run, rule=SchedulingRule(whole_prompts=value))) for value in (False, True))
    assert float(whole.mixed_load.prefill_tokens) == 60 < float(cut.mixed_load.prefill_tokens)


def test_engines_state_what_the_loop_follows():
    """Recipes for Blackwell look for requests rarely, by open requests; TensorRT-LLM leaves prompts whole."""
    sglang = load_engine("sglang").scheduling
    asked = [("b200", 64.0), ("b200", 8.0), ("h200", 64.0)]
    assert [rule_of_engine(sglang, *each).receive_interval for each in asked] == [30, 10, 1]
    assert rule_of_engine(sglang).order == "prompts_first"
    assert all(rule_of_engine(load_engine(name).scheduling).whole_prompts for name in ("trtllm", "mindie"))
    assert not rule_of_engine(load_engine("vllm").scheduling).whole_prompts
