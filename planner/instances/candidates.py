"""Candidates of a role with a batch or a token budget, as arrays: step seconds, memory, throughput.

Decode: iteration time grows with the batch and its intercept is not negative, so time per request falls. The largest
batch within the limit therefore bounds the rate (``offers.decode_offers``); the best batch is chosen later. Prefill:
token budgets and pass times of every row. Aggregated: a token budget per step, and the requests that fit beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.balance.imbalance import expected_maximum_normal
from planner.closed_forms.fullest import FullestRank
from planner.costs.deployment import Deployment
from planner.costs.latency import accepted_tokens, causal_pairs, decode_load
from planner.costs.memory import Memory, carried_requests, expert_device_memory, memory
from planner.instances.brackets import largest
from planner.instances.space import Group, Row
from planner.manifest.stacks import taken
from planner.manifest.stepcost import evaluate, evaluate_each
from planner.manifest.terms import Number, StepCost, StepLoad, larger
from planner.question import Question
from planner.serving.tables import LARGEST_BATCH, LARGEST_BUDGET
from planner.workload import KvLoad, Workload, running_kv_tokens, total_kv_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One instance: its strategy and layout, its deployment, and the microbatches of a step."""

    row: Row
    deployment: Deployment
    microbatches: int
    drafts: int = 0

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return self.row.strategy.devices


def row_microbatches(question: Question, row: Row) -> Sequence[int]:
    """Return the microbatches of a row: 2 overlap attention with experts, 1 for dense models and some engines."""
    if question.model.moe is None:
        return (1,)
    return tuple(parts for parts in question.microbatches if parts <= row.microbatches)


# Standard deviations by which memory must hold the KV of a full batch: one rank in 740 overflows.
MEMORY_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCandidate(Candidate):
    """One decode instance at its largest feasible batch."""

    batch: int
    iteration_seconds: float
    requests_per_second: float
    limited_by: str

    def memory(self, workload: Workload) -> Memory:
        """Bytes per device with the mean KV of a full batch."""
        load = decode_load(self.deployment, self.batch, running_kv_tokens(workload).mean_tokens)
        tokens = self.batch * self.deployment.queries / self.row.strategy.pp
        return memory(self.deployment, kv_tokens=load.decode_kv_tokens, sequences=float(self.batch), tokens=tokens)


@dataclass(frozen=True, slots=True)
class IterationTime:
    """Iteration seconds of many instances as a function of the batch; counts its evaluations."""

    cost: StepCost
    fullest: FullestRank
    microbatches: int
    count: "Count"

    def __call__(self, batch: Number) -> Number:
        """Seconds with ``batch`` requests per DP rank, [rows] or [points, rows]."""
        self.count.evaluated += int(np.size(batch))
        return iteration(self.cost, self.fullest, batch, self.microbatches)

    def of(self, rows: NDArray[np.int64]) -> "IterationTime":
        """Return the iteration time of some of the instances; the cost must be stacked."""
        return replace(self, cost=taken(self.cost, rows), fullest=self.fullest.at(rows))


MOST_TURNS = 500_000_000  # turns of batches, of about 25 ns, that the searches of a question play before they end


@dataclass(slots=True)
class Count:
    """What a search has done so far."""

    evaluated: int = 0  # candidates costed
    turns: int = 0  # turns of batches that were played, and what else took as long
    end: int = MOST_TURNS  # turns after which the search ends with the best choice so far

    @property
    def long(self) -> bool:
        """Whether the search has taken so long that it ends."""
        return self.turns > self.end

    def allow(self, begun: int, searches: int) -> None:
        """Allow the next of so many searches its share of what is left of ``MOST_TURNS``, counted from ``begun``."""
        self.end = self.turns + max(begun + MOST_TURNS - self.turns, 0) // searches


def iteration(cost: StepCost, fullest: FullestRank, batch: Number, microbatches: int) -> Number:
    """Seconds of an iteration with ``batch`` requests per DP rank; dispatch waits for the one with most KV."""
    load = StepLoad(
        decode_sequences=batch,
        decode_kv_tokens=fullest.kv_tokens(batch),
        mean_tokens=batch * cost.queries_per_sequence,
    )
    return evaluate(cost, load, microbatches).seconds


def largest_room(group: Group, microbatches: int, kv: KvLoad) -> NDArray[np.float64]:
    """Return the largest batch that memory and the exchange of experts hold, [rows]; below the least where they do not
    hold that.
    """
    deployment = group.deployment
    least = least_batch(group, microbatches)
    capacity = deployment.hardware.device.memory_bytes.value

    def used(batch: Number) -> Number:
        return decode_memory_used(deployment, batch, kv)

    most = np.minimum(float(LARGEST_BATCH), carried_requests(deployment))
    return largest(used, capacity, least, np.broadcast_to(most, least.shape))


def least_batch(group: Group, microbatches: int) -> NDArray[np.float64]:
    """Return the least batch, one request per microbatch and pipeline stage, [rows]."""
    least = np.asarray(microbatches * group.deployment.strategy.pp, dtype=np.float64)
    return np.broadcast_to(least, (len(group.rows),))


def request_rate(question: Question, deployment: Deployment, batch: Number, seconds: Number) -> NDArray[np.float64]:
    """Online requests per second of an instance whose DP ranks run ``batch`` requests each in steps of ``seconds``."""
    accepted = accepted_tokens(deployment, question.acceptance)
    answer_tokens = question.decoded.decoded_tokens * question.requests_each
    return np.asarray(batch * deployment.strategy.attention_groups * accepted / (seconds * answer_tokens))


def decode_memory_used(deployment: Deployment, batch: Number, kv: KvLoad) -> Number:
    """Bytes per device with weights, buffers and the KV reserved for a full batch, three deviations above its mean.

    With AFD, the fuller of attention and expert devices. ``kv`` is the KV that admission reserves per request
    (``workload.reserved_kv_tokens``).
    """
    held = total_kv_tokens(kv, batch, MEMORY_DEVIATIONS)
    tokens = batch * deployment.queries / deployment.strategy.pp
    used = memory(deployment, kv_tokens=held, sequences=batch, tokens=tokens).used
    experts = expert_device_memory(deployment, tokens)
    return used if experts is None else larger(used, experts.used)


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
    """Tokens of the fullest of ``ranks`` DP groups, in prompts of mean length.

    Each group holds ``prompts``, whose tokens have standard deviation sqrt(prompts)·CV. A pass lasts as long as its
    fullest group: prompts + z(ranks)·CV·sqrt(prompts), z the expected maximum of normals.
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
    return each_pass_seconds(cost, workload, (prompts, mean_prompts), chunks, (microbatches,))[0]


def each_pass_seconds(
    cost: StepCost, workload: Workload, prompts: tuple[Number, Number], chunks: int, counts: Sequence[int]
) -> list[Number]:
    """Return ``pass_seconds`` with each number of microbatches; ``prompts`` of the busiest DP group and of the mean."""
    total: list[Number] = [0.0] * len(counts)
    for number in range(chunks):
        each = evaluate_each(cost, chunk_load(workload, *prompts, chunks, number), counts)
        total = [so_far + own.seconds for so_far, own in zip(total, each, strict=True)]
    return total


def budgets(workload: Workload) -> list[tuple[int, int]]:
    """Return the passes that are tried: (prompts per DP group and pass, chunks per prompt)."""
    parts = [(1, chunks) for chunks in CHUNKS if workload.input_tokens.mean >= SHORTEST_CHUNK_TOKENS * chunks]
    return parts + [(prompts, 1) for prompts in PROMPTS_PER_PASS]


def prefill_fits(deployment: Deployment, workload: Workload, prompts: Number, chunks: int) -> NDArray[np.bool_]:
    """Whether memory holds the activations and the KV of two passes: one runs, the other's KV is being sent."""
    prompt = workload.input_tokens.mean
    computed = prompts * prompt * (1 - workload.prefix_reuse) / chunks
    tokens = computed / deployment.strategy.pp
    return np.asarray(memory(deployment, kv_tokens=2.0 * prompts * prompt, sequences=2.0 * prompts, tokens=tokens).fits)


# Tokens of a step on one DP rank. Sarathi-Serve (arXiv 2403.02310, section 5) runs 512 to 2,048; the defaults of vLLM
# and SGLang are 2,048 to 16,384.
BUDGETS = (256, 512, 1024, 2048, 4096, 8192, LARGEST_BUDGET)


def budgets_of(question: Question) -> tuple[int, ...]:
    """Return the token budgets that are tried: the listed ones, or the given one."""
    given = question.pin("mixed").tokens
    return BUDGETS if given is None else (given,)


def with_given_batch(question: Question, room: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the requests per rank: ``room``; where a batch is given, that batch, or 0 where it does not fit."""
    batch = question.pin("mixed").batch
    return room if batch is None else np.where(room >= batch, float(batch), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedCandidate(Candidate):
    """One aggregated instance with one token budget."""

    batch: int  # batch slots of a DP rank; prompts in progress take one too
    batched_tokens: int
    """Token budget of a step on one DP rank: a token per running request and draft, and prompt chunks.

    Each pipeline stage holds a part of it; vLLM puts consecutive chunks of one prompt into consecutive parts.
    """
    most_open: int | None = None  # most open requests of an instance within the limits, where known

    def memory(self, workload: Workload) -> Memory:
        """Bytes per device with a full step and the mean KV of a full batch."""
        kv_tokens = self.batch * running_kv_tokens(workload).mean_tokens
        tokens = self.batched_tokens / self.row.strategy.pp
        return memory(self.deployment, kv_tokens=kv_tokens, sequences=float(self.batch), tokens=float(tokens))


def aggregated_room(
    deployment: Deployment, budget_tokens: NDArray[np.float64], kv: KvLoad, most: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the requests, at most ``most``, whose KV a DP rank holds beside steps of the budget; 0 for none.

    Memory has weights, buffers of a full step and the KV that admission reserves per request, ``kv``, three standard
    deviations above its mean, as in decode.
    Arrays are [rows] of the deployment, or of any shape if the deployment is one instance.
    """
    capacity = deployment.hardware.device.memory_bytes.value

    def used(batch: Number) -> Number:
        held, tokens = total_kv_tokens(kv, batch, MEMORY_DEVIATIONS), budget_tokens / deployment.strategy.pp
        return memory(deployment, kv_tokens=held, sequences=batch, tokens=tokens).used

    return largest(used, capacity, np.ones_like(most), np.minimum(most, carried_requests(deployment)))


def most_held(budget_tokens: NDArray[np.float64], drafts: NDArray[np.int64], stages: Number) -> NDArray[np.float64]:
    """Return the running requests of a rank whose tokens fill a step and leave no room for prompts.

    With pipeline ``stages`` the engine's budget is one stage's part of a step. vLLM requires that it holds a token of
    every request (``SchedulerConfig``: max_num_batched_tokens at least max_num_seqs).
    """
    return np.minimum(budget_tokens // ((1 + drafts) * stages), float(LARGEST_BATCH))
