"""The benchmark client's loop, held against a run that takes every step on its own."""

from collections import deque
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ground.errors import BadInput
from planner.balance.imbalance import parse_balance
from planner.costs.closed_loop import SIMULATED_WAVES, WAVES, ClosedLoop, StepTimes, lengths, measure
from planner.costs.hostcosts import REQUEST_SECONDS, HostCosts, host_costs
from planner.costs.latency import balanced_cost, causal_pairs
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from tests.instances import instance

COST = balanced_cost(instance("qwen3-32b", "h100", "mixed", "fp8", attention_tp=4, moe_tp=4), parse_balance("measured"))


def loop(concurrency: int, prompt: int, output: int, budget: int = 2048) -> ClosedLoop:
    """Return a closed loop without reuse or drafts."""
    return ClosedLoop(concurrency=concurrency, prompt_tokens=prompt, output_tokens=output, batched_tokens=budget)


def step_by_step(case: ClosedLoop, waves: int) -> list[float]:
    """Times to first token, in order, of a loop in which every step is costed alone from its own tokens."""
    count, prompt, output = int(case.concurrency), int(case.prompt_tokens), int(case.output_tokens)
    waiting = deque((0.0, prompt) for _ in range(count))
    running: list[list[int]] = []
    now, issued, seen = 0.0, count, []
    while waiting or running:
        room, chunk, pairs, context, done = int(case.batched_tokens) - len(running), 0, 0.0, 0, []
        while waiting and room > chunk:
            arrival, left = waiting.popleft()
            part = min(left, room - chunk)
            pairs, context, chunk = (
                pairs + float(causal_pairs(part, prompt - left)),
                context + prompt - left,
                chunk + part,
            )
            if part < left:
                waiting.appendleft((arrival, left - part))
                break
            done.append(arrival)
        load = StepLoad(
            decode_sequences=float(len(running)),
            decode_kv_tokens=float(sum(held for _, held in running)),
            prefill_tokens=float(chunk),
            prefill_context_tokens=float(context),
            prefill_pairs=pairs,
            finishing_prompts=float(len(done)),
            mean_tokens=float(len(running) + chunk),
        )
        now += float(evaluate(COST, load, 1).seconds)
        running = [[left - 1, held + 1] for left, held in running]
        ended = sum(left == 0 for left, _ in running)
        running = [each for each in running if each[0]]
        for arrival in done:
            seen.append(now - arrival)
            running.append([output - 1, prompt + 1])
        for _ in range(min(ended, waves * count - issued)):
            waiting.append((now, prompt))
            issued += 1
    return seen


@pytest.mark.parametrize(("concurrency", "prompt", "budget"), [(4, 512, 2048), (16, 1000, 2048), (12, 1500, 4096)])
def test_times_are_those_of_a_run_of_every_step(concurrency: int, prompt: int, budget: int) -> None:
    """First wave and later ones together, to a twentieth; equal lengths."""
    case = loop(concurrency, prompt, 60, budget)
    seen = step_by_step(case, SIMULATED_WAVES)
    first, later = np.mean(seen[:concurrency]), np.mean(seen[2 * concurrency :])
    assert measure(COST, case, 1).ttft_seconds == pytest.approx((first + (WAVES - 1) * later) / WAVES, rel=0.05)


def test_the_first_wave_waits_for_all_prompts() -> None:
    """Sixteen prompts, each nearly a whole budget: a tenth of the requests wait 8.5 passes, the others one."""
    case = loop(16, 8000, 400, 8192)
    alone = StepTimes(COST, case, 1).mixed(8, 8000.0)
    assert measure(COST, case, 1).ttft_seconds == pytest.approx((8.5 + 9 * 1.0) / 10 * alone, rel=0.25)


def test_varying_lengths_pull_cohorts_apart() -> None:
    """Four short prompts of varying length are no longer computed in one step."""
    case = loop(4, 1024, 1024, 8192)
    assert measure(COST, case, 1, spread=0.1).ttft_seconds < 0.7 * measure(COST, case, 1).ttft_seconds


@settings(max_examples=25, deadline=None)
@given(
    concurrency=st.integers(1, 60),
    prompt=st.integers(1, 20_000),
    output=st.integers(1, 800),
    spread=st.sampled_from([0.0, 0.3]),
)
def test_more_open_requests_never_answer_sooner(concurrency: int, prompt: int, output: int, spread: float) -> None:
    """Shares and rates make sense for every loop, and a lone request gets its first token after its own steps."""
    seen = measure(COST, loop(concurrency, prompt, output), 1, spread)
    assert 0 < seen.prompt_steps <= 1
    assert seen.ttft_seconds > 0 and seen.tpot_seconds >= 0 and seen.requests_per_second > 0
    assert 0 <= float(seen.mixed_load.decode_sequences) <= concurrency
    alone = measure(COST, loop(1, prompt, output), 1)
    assert seen.ttft_seconds >= 0.7 * alone.ttft_seconds


@given(st.floats(1, 1e5), st.floats(0, 0.9))
def test_lengths_have_the_mean_and_the_spread_asked_for(mean: float, spread: float) -> None:
    """Evenly spread between mean · (1 - spread) and mean · (1 + spread)."""
    drawn = np.array(list(islice(lengths(mean, spread, 0.0), 400)))
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.min() >= mean * (1 - spread) - 1e-9 and drawn.max() <= mean * (1 + spread) + 1e-9


def test_host_costs_come_from_profiles_and_measured_systems() -> None:
    """An engine's profile says its gap, a measured system stands in the table, and no other name is known."""
    assert host_costs(None) == HostCosts()
    assert host_costs("xdeepserve").step_seconds == 2e-3
    assert host_costs("sglang").step_seconds == 0.0
    assert host_costs("reference").step_seconds is None
    assert host_costs("mindie").request_seconds == REQUEST_SECONDS
    assert host_costs("sglang@0.5.9").prompts_first and not host_costs("vllm").prompts_first
    assert not host_costs("trtllm").chunked_prefill and host_costs("trtllm").step_seconds == 0.0
    with pytest.raises(BadInput, match="cloudmatrix-infer"):
        host_costs("no such system")


def test_prompts_first_and_rare_looks_for_requests() -> None:
    """Decode waits while a prompt does, so tokens come later; requests wait for the scheduler to look."""
    cost = balanced_cost(instance("llama-3.1-8b", "h100", "mixed", "bf16"), parse_balance("perfect"))
    loop = ClosedLoop(concurrency=8, prompt_tokens=1000, output_tokens=100, batched_tokens=8192)
    shared, first, rare = (
        measure(cost, own, 1, 0.1)
        for own in (loop, replace(loop, prompts_first=True), replace(loop, prompts_first=True, receive_steps=20))
    )
    assert shared.tpot_seconds < first.tpot_seconds
    step = rare.tpot_seconds
    assert first.ttft_seconds + 2 * step < rare.ttft_seconds < first.ttft_seconds + 20 * step
