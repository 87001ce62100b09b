"""Step costs for tests, whose seconds are linear in what a step carries, and streams."""

from typing import Any

import numpy as np

from planner.manifest.terms import ComputeTerm, StepCost
from planner.serving.streams import Stream


def linear_cost(
    fixed: float,
    per_token: float,
    per_request: float = 0.0,
    *,
    per_kv: float = 0.0,
    per_pair: float = 0.0,
    ranks: int = 1,
) -> StepCost:
    """Return fixed seconds, and more for each prompt token, running request, cached token and causal pair."""
    work = {"chunk": per_token, "decode": per_request, "kv": per_kv, "pairs": per_pair}
    term = ComputeTerm(
        name="step",
        stage="dense",
        flops={},
        idle_flops={},
        flops_per_second=1.0,
        bytes={"one": 1e-12, **{name: seconds for name, seconds in work.items() if seconds}},
        bytes_per_second=1.0,
        floor_seconds=fixed,
    )
    return StepCost(
        terms=(term,),
        dense_layers=1,
        moe_layers=0,
        queries_per_sequence=1,
        attention_ranks=ranks,
        expert_ranks=1,
        shared_ranks=0,
        experts=0,
        experts_per_token=0,
        slots_per_rank=0.0,
        rule="compute_communication",
    )


def stream_of(arrivals: Any, prompts: Any, answers: Any = 1, reused: Any = 0) -> Stream:
    """Return a stream of such requests, columns or one value for all; of each prompt a token is left to compute."""
    tokens = np.array(prompts, dtype=np.int64)
    return Stream(
        arrival_seconds=np.array(arrivals, dtype=np.float64),
        prompt_tokens=tokens,
        reused_tokens=np.minimum(np.zeros_like(tokens) + np.array(reused, dtype=np.int64), tokens - 1),
        answer_tokens=np.zeros_like(tokens) + np.array(answers, dtype=np.int64),
    )
