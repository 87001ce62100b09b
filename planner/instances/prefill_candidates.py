"""Prefill instances: token budgets of every row, pass times, and what they carry, on arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.balance.imbalance import expected_maximum_normal
from planner.costs.deployment import Deployment
from planner.costs.latency import causal_pairs
from planner.costs.memory import memory
from planner.instances.candidates import Candidate
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.workload import Workload

# Whole prompts per DP group and pass, or the parts into which one prompt is cut, at which rows are costed.
PROMPTS_PER_PASS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
CHUNKS = (2, 4, 8, 16)
SHORTEST_CHUNK_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCandidate(Candidate):
    """One prefill instance with one token budget."""

    prompts: int
    chunks: int
    tokens_per_device: int
    pass_seconds: float
    requests_per_second: float


def busiest_prompts(workload: Workload, prompts: Number, ranks: Number) -> Number:
    """Prompts of mean length that weigh as much as those of the fullest of ``ranks`` DP groups.

    Each group holds ``prompts``; their tokens vary by sqrt(prompts)·CV, and the pass lasts as long
    as its fullest group: prompts + z(ranks)·CV·sqrt(prompts), z the expected maximum of normals.
    """
    spread = workload.input_tokens.squared_cv
    if not spread:
        return prompts
    return prompts + expected_maximum_normal(ranks) * np.sqrt(spread * prompts)


def chunk_load(workload: Workload, prompts: Number, mean_prompts: Number, chunks: int, number: int) -> StepLoad:
    """Load of part ``number`` of ``chunks`` of passes with ``prompts`` prompts on the busiest DP group."""
    prompt = workload.input_tokens.mean
    cached = prompt * workload.prefix_reuse
    chunk = prompt * (1 - workload.prefix_reuse) / chunks
    context = cached + number * chunk
    # E[L²] of the prompts decides the pairs: the same tokens in unequal prompts attend to more.
    spread = 1.0 + workload.input_tokens.squared_cv
    return StepLoad(
        prefill_tokens=prompts * chunk,
        prefill_context_tokens=prompts * context,
        prefill_pairs=prompts * causal_pairs(chunk, context) * spread,
        finishing_prompts=prompts if number == chunks - 1 else 0.0,
        mean_tokens=mean_prompts * chunk,
        loaded_tokens=0.0 if number else prompts * cached,
    )


def pass_seconds(
    cost: StepCost, workload: Workload, prompts: Number, mean_prompts: Number, chunks: int, microbatches: int
) -> Number:
    """Seconds from the start of the first to the end of the last part of a pass."""
    total: Number = 0.0
    for number in range(chunks):
        load = chunk_load(workload, prompts, mean_prompts, chunks, number)
        total = total + evaluate(cost, load, microbatches).seconds
    return total


def budgets(workload: Workload) -> list[tuple[int, int]]:
    """(prompts per DP group and pass, parts that one prompt is cut into)."""
    parts = [(1, chunks) for chunks in CHUNKS if workload.input_tokens.mean >= SHORTEST_CHUNK_TOKENS * chunks]
    return parts + [(prompts, 1) for prompts in PROMPTS_PER_PASS]


def prefill_fits(deployment: Deployment, workload: Workload, prompts: Number, chunks: int) -> NDArray[np.bool_]:
    """Memory holds two passes' KV, the one that runs and the one whose KV is being sent, and the activations."""
    prompt = workload.input_tokens.mean
    computed = prompts * prompt * (1 - workload.prefix_reuse) / chunks
    tokens = computed / deployment.strategy.pp
    return np.asarray(memory(deployment, kv_tokens=2.0 * prompts * prompt, sequences=2.0 * prompts, tokens=tokens).fits)
