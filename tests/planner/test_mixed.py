"""The closed loop of continuous batching: cohorts of equal requests."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.imbalance import parse_balance
from planner.latency import balanced_cost
from planner.mixed import ClosedLoop, cycle_of, mixed_state
from tests.instances import instance

COST = balanced_cost(instance("qwen3-32b", "h100", "mixed", "fp8", attention_tp=4, moe_tp=4), parse_balance("measured"))


def simulated(loop: ClosedLoop) -> list[tuple[int, int]]:
    """Run the loop token by token; return (prompt tokens, decoding requests) of the steps of its last cycles."""
    waiting = [int(loop.prompt_tokens)] * int(loop.concurrency)
    running: list[int] = []
    steps = []
    for _ in range(6 * int(loop.output_tokens)):
        room, decoding = int(loop.batched_tokens) - len(running), len(running)
        running = [left - 1 for left in running]
        done = running.count(0)
        running = [left for left in running if left]
        chunk = 0
        while waiting and room:
            part = min(waiting[0], room)
            waiting[0], room, chunk = waiting[0] - part, room - part, chunk + part
            if not waiting[0]:
                waiting.pop(0)
                running.append(int(loop.output_tokens) - 1)
        waiting += [int(loop.prompt_tokens)] * done
        steps.append((chunk, decoding))
    return steps[3 * int(loop.output_tokens) :]


@pytest.mark.parametrize(("concurrency", "prompt"), [(4, 512), (8, 1000), (16, 1000), (6, 3000)])
def test_the_cycle_is_that_of_a_token_by_token_run(concurrency: int, prompt: int) -> None:
    """Share of steps with prompts and their tokens as in a run of the same loop, to a tenth."""
    loop = ClosedLoop(concurrency=concurrency, prompt_tokens=prompt, output_tokens=100, batched_tokens=2048)
    cycle, steps = cycle_of(loop, 1), simulated(loop)
    with_prompts = [chunk for chunk, _ in steps if chunk]
    tokens = sum(with_prompts) / len(steps)
    assert cycle.mixed_steps * cycle.chunk / cycle.steps == pytest.approx(tokens, rel=0.1)
    assert cycle.mixed_steps / cycle.steps == pytest.approx(len(with_prompts) / len(steps), rel=0.35)


@settings(max_examples=40, deadline=None)
@given(
    concurrency=st.integers(1, 200),
    prompt=st.integers(1, 30000),
    output=st.integers(1, 2000),
    reuse=st.sampled_from([0.0, 0.5]),
)
def test_littles_law_holds(concurrency: int, prompt: int, output: int, reuse: float) -> None:
    """Requests in the loop are rate times time in it; no chunk is past the budget."""
    loop = ClosedLoop(
        concurrency=concurrency, prompt_tokens=prompt, output_tokens=output, batched_tokens=8192, reuse=reuse
    )
    state, cycle = mixed_state(COST, loop, None), cycle_of(loop, 1)
    stay = state.ttft_seconds + state.tpot_seconds * (output - 1)
    assert state.requests_per_second * stay == pytest.approx(concurrency, rel=1e-6)
    assert cycle.chunk + cycle.running <= 8192 * (1 + 1e-3) or cycle.chunk == 1.0
    assert 0 < state.prompt_steps <= 1 + 1e-9


def test_a_lone_request_alternates_prefill_and_decode() -> None:
    """One request: TTFT is one step with the whole prompt, TPOT the step without."""
    loop = ClosedLoop(concurrency=1, prompt_tokens=2048, output_tokens=512, batched_tokens=8192)
    state = mixed_state(COST, loop, None)
    assert state.ttft_seconds == pytest.approx(float(state.mixed_step.seconds))
    assert state.tpot_seconds == pytest.approx(float(state.decode_step.seconds))


def test_one_output_token_is_prefill_alone() -> None:
    """Without decode the loop is a queue of prompts: every step holds some, TTFT is the whole cycle."""
    loop = ClosedLoop(concurrency=64, prompt_tokens=2048, output_tokens=1, batched_tokens=8192)
    state = mixed_state(COST, loop, None)
    assert state.prompt_steps == pytest.approx(1.0)
    assert state.ttft_seconds == pytest.approx(16 * float(state.mixed_step.seconds), rel=1e-3)
