"""Prefill instances: token budgets of every row, pass times, and what they carry, on arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.balance.imbalance import expected_maximum_normal
from planner.costs.deployment import Deployment
from planner.costs.latency import balanced_cost, causal_pairs
from planner.costs.memory import memory
from planner.instances.decode_candidates import Count, Floor, leaders
from planner.instances.space import Group, Row, row_deployment
from planner.manifest.stacks import stacked
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.question import Question
from planner.workload import Workload

# Whole prompts per DP group and pass, or the parts into which one prompt is cut, at which rows are costed.
PROMPTS_PER_PASS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
CHUNKS = (2, 4, 8, 16)
SHORTEST_CHUNK_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCandidate:
    """One prefill instance with one token budget."""

    row: Row
    deployment: Deployment
    microbatches: int
    prompts: int
    chunks: int
    tokens_per_device: int
    pass_seconds: float
    requests_per_second: float

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return self.row.strategy.devices


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


def prefill_candidates(
    question: Question, group: Group, microbatches: int, count: Count, longest_seconds: float, floor: Floor
) -> list[PrefillCandidate]:
    """Return per instance size the row and budget that carry most with passes of at most ``longest_seconds``.

    A pass of more prompts carries more per second, and cutting a prompt never helps it, so a row
    carries at most what its largest pass does: rows for which that is below ``floor`` (what is
    already known for their size) or below what another row carries with one prompt are dropped.
    """
    group = promising_rows(question, group, microbatches, count, longest_seconds, floor)
    if not group.rows:
        return []
    deployment, workload = group.deployment, question.workload
    cost = stacked(balanced_cost(deployment, question.balance))
    ranks = np.asarray(deployment.strategy.attention_dp)
    best = np.zeros(len(group.rows))
    chosen: list[tuple[int, int, float] | None] = [None] * len(group.rows)
    for prompts, chunks in budgets(workload):
        fullest = busiest_prompts(workload, float(prompts), ranks)
        duration = pass_seconds(cost, workload, fullest, float(prompts), chunks, microbatches)
        seconds = np.broadcast_to(duration, best.shape)
        count.evaluated += len(group.rows)
        good = prefill_fits(deployment, workload, prompts, chunks) & (seconds <= longest_seconds)
        rate = np.where(good, prompts * ranks / seconds, 0.0)
        for number in np.flatnonzero(rate > best * (1 + 1e-9)):
            best[number], chosen[number] = rate[number], (prompts, chunks, float(seconds[number]))
        if chunks == 1 and not good.any() and prompts > 1:
            break
    return [
        _candidate(group, number, microbatches, float(best[number]), chosen[number], workload)
        for number in leaders(group.sizes, best)
    ]


def promising_rows(
    question: Question, group: Group, microbatches: int, count: Count, longest_seconds: float, floor: Floor
) -> Group:
    """Return the rows that fit and whose largest pass beats what their size is known to carry."""
    finest = max(chunks for _, chunks in budgets(question.workload))
    group = group.select(np.flatnonzero(prefill_fits(group.deployment, question.workload, 1, finest)))
    if not group.rows:
        return group
    deployment, workload, sizes = group.deployment, question.workload, group.sizes
    cost, ranks = stacked(balanced_cost(deployment, question.balance)), np.asarray(deployment.strategy.attention_dp)
    largest_pass, one = (
        np.asarray(pass_seconds(cost, workload, busiest_prompts(workload, float(n), ranks), float(n), 1, microbatches))
        for n in (PROMPTS_PER_PASS[-1], 1)
    )
    count.evaluated += 2 * len(group.rows)
    sure = np.where((one <= longest_seconds) & prefill_fits(deployment, workload, 1, 1), ranks / one, 0.0)
    known = dict(floor)
    for number in leaders(sizes, sure):
        known[int(sizes[number])] = max(known.get(int(sizes[number]), 0.0), float(sure[number]))
    most = PROMPTS_PER_PASS[-1] * ranks / largest_pass
    keep = np.flatnonzero(most >= np.array([known.get(int(size), 0.0) for size in sizes]))
    return group.select(keep)


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


def _candidate(
    group: Group, number: int, microbatches: int, rate: float, budget: tuple[int, int, float] | None, workload: Workload
) -> PrefillCandidate:
    assert budget is not None, "a row with a positive rate has a budget"
    prompts, chunks, seconds = budget
    row = group.rows[number]
    tokens = prompts * workload.input_tokens.mean / chunks
    return PrefillCandidate(
        row=row,
        deployment=row_deployment(group.deployment, row),
        microbatches=microbatches,
        prompts=prompts,
        chunks=chunks,
        tokens_per_device=int(np.ceil(tokens * row.strategy.attention_dp / row.strategy.devices)),
        pass_seconds=seconds,
        requests_per_second=rate,
    )
