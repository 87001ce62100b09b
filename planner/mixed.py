"""Aggregated instances: continuous batching with chunked prefill in a closed loop.

A step carries one token (and its drafts) of every running request and what is left of the token
budget as prompt chunks. With X requests finishing per second and steps of mean duration t, X·t
prompts start per step and rank; a step without prompts takes t_d, one with prompts t_m.
"""

import math
from dataclasses import dataclass

from planner.latency import causal_pairs, step_seconds
from planner.manifest.terms import StepCost, StepLoad

_ROUNDS = 60
_DAMPING = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """``concurrency`` requests per DP rank, each replaced on completion."""

    concurrency: float
    prompt_tokens: float
    output_tokens: float
    batched_tokens: float
    reuse: float = 0.0
    acceptance_tokens: float = 1.0


@dataclass(frozen=True, slots=True)
class MixedState:
    """Steady state of the loop; loads are of one rank in a step with and without prompts."""

    tpot_seconds: float
    ttft_seconds: float
    step_seconds: float
    requests_per_second: float
    prompt_steps: float
    mixed_load: StepLoad
    decode_load: StepLoad
    running: float


def mixed_state(cost: StepCost, loop: ClosedLoop, microbatches: int | None) -> MixedState:
    """Return the fixed point of the closed loop.

    Little's law: concurrency = X·(TTFT + D), D = iterations · mean step. TTFT: half a step until
    the next one starts, then the steps that hold the prompt, each with its share of the queue
    (arrival theorem with one request fewer). Exact only in the mean; fixed lengths that start
    together stay in lockstep, which this does not model.
    """
    iterations = max(loop.output_tokens - 1, 0.0) / loop.acceptance_tokens
    running, state = loop.concurrency * 0.9, None
    for _ in range(_ROUNDS):
        state = _state(cost, loop, running, iterations, microbatches)
        share = iterations * state.step_seconds / max(state.ttft_seconds + iterations * state.step_seconds, 1e-12)
        running = _DAMPING * running + (1 - _DAMPING) * loop.concurrency * share
    assert state is not None
    return state


def _state(
    cost: StepCost, loop: ClosedLoop, running: float, iterations: float, microbatches: int | None
) -> MixedState:
    queries = cost.queries_per_sequence
    kv = loop.prompt_tokens + loop.output_tokens / 2
    room = max(loop.batched_tokens - running * queries, 1.0)
    new = loop.prompt_tokens * (1 - loop.reuse)
    rank_rate = running / max(iterations, 1.0)  # prompts that start per step and rank
    with_prompt = 1 - math.exp(-rank_rate * max(1.0, new / room))
    chunk = min(rank_rate * new / max(with_prompt, 1e-9), room)
    any_rank = 1 - (1 - with_prompt) ** float(cost.attention_ranks) if cost.experts else with_prompt
    decode = StepLoad(decode_sequences=running, decode_kv_tokens=running * kv, mean_tokens=running * queries)
    prompts = chunk / new
    mixed = StepLoad(
        decode_sequences=running,
        decode_kv_tokens=running * kv,
        prefill_tokens=chunk,
        prefill_context_tokens=loop.prompt_tokens * loop.reuse * prompts,
        prefill_pairs=prompts * causal_pairs(new, loop.prompt_tokens * loop.reuse),
        finishing_prompts=prompts,
        mean_tokens=running * queries + chunk * with_prompt / max(any_rank, 1e-9),
    )
    alone, together = (float(step_seconds(cost, load, microbatches)[0]) for load in (decode, mixed))
    step = (1 - any_rank) * alone + any_rank * together
    steps = max(1.0, new / room)
    busy = min(rank_rate * new / room, 0.999)
    behind = (loop.concurrency - 1) / loop.concurrency * busy / (2 * (1 - busy)) if loop.concurrency > 1 else 0.0
    idle_wait = step / 2 if running > 1 else 0.0
    ttft = idle_wait + together * (steps + min(behind, loop.concurrency / 2))
    rate = running / max(iterations * step, 1e-12) if iterations else loop.concurrency / ttft
    return MixedState(step / loop.acceptance_tokens, ttft, step, rate, any_rank, mixed, decode, running)
