"""Aggregated instances: a strategy and layout with a token budget per step, and the requests that memory holds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.costs.deployment import Deployment
from planner.costs.memory import Memory, memory
from planner.instances.brackets import largest
from planner.instances.candidates import Candidate
from planner.instances.decode_candidates import MEMORY_DEVIATIONS, MOST_BATCH
from planner.manifest.terms import Number
from planner.question import Question
from planner.workload import KvLoad, Workload, running_kv_tokens, total_kv_tokens

# Tokens of a step on one DP rank. Sarathi-Serve (arXiv 2403.02310, section 5) runs 512 to 2,048; the defaults of vLLM
# and SGLang are 2,048 to 16,384.
BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16384)


def budgets_of(question: Question) -> tuple[int, ...]:
    """Return the budgets that are tried: those of the list, or the one that is given."""
    given = question.pin("mixed").tokens
    return BUDGETS if given is None else (given,)


def with_given_batch(question: Question, room: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the requests that ranks hold: where a batch is given that many, or none where they hold fewer."""
    batch = question.pin("mixed").batch
    return room if batch is None else np.where(room >= batch, float(batch), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedCandidate(Candidate):
    """One aggregated instance with one token budget."""

    batch: int
    """Requests that a DP rank runs at most, prompts in progress included."""
    batched_tokens: int
    """Of a step on one DP rank: a token for each running request and its drafts, and parts of prompts.

    Pipeline stages hold a part of it each; vLLM puts consecutive chunks of one prompt into consecutive parts.
    """
    most_open: int | None = None
    """Requests that an instance has open within the limits at most, where that is known."""

    def memory(self, workload: Workload) -> Memory:
        """Bytes per device with a full step and the mean KV of a full batch."""
        kv_tokens = self.batch * running_kv_tokens(workload).mean_tokens
        tokens = self.batched_tokens / self.row.strategy.pp
        return memory(self.deployment, kv_tokens=kv_tokens, sequences=float(self.batch), tokens=float(tokens))


def aggregated_memory_used(deployment: Deployment, batch: Number, budget_tokens: Number, kv: KvLoad) -> Number:
    """Bytes per device with weights, buffers of a full step and the KV reserved for ``batch`` requests per DP rank.

    KV is three deviations above its mean, as in decode; ``kv`` is what admission reserves for a request.
    """
    held = total_kv_tokens(kv, batch, MEMORY_DEVIATIONS)
    return memory(deployment, kv_tokens=held, sequences=batch, tokens=budget_tokens / deployment.strategy.pp).used


def aggregated_room(
    deployment: Deployment, budget_tokens: NDArray[np.float64], kv: KvLoad, most: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the requests, at most ``most``, that a DP rank holds beside steps of the budget; 0 where there is none.

    Arrays are [rows] of the deployment, or any shape where that is one instance.
    """
    capacity = deployment.hardware.device.memory_bytes.value

    def used(batch: Number) -> Number:
        return aggregated_memory_used(deployment, batch, budget_tokens, kv)

    return largest(used, capacity, np.ones_like(most), most)


def most_held(budget_tokens: NDArray[np.float64], drafts: NDArray[np.int64], stages: Number) -> NDArray[np.float64]:
    """Return the requests of a rank whose tokens fill a step: more would leave no room for prompts.

    Of pipeline ``stages``, what an engine is told is one's part of a step; vLLM wants it to hold a token of every
    request (``SchedulerConfig``: max_num_batched_tokens at least max_num_seqs).
    """
    return np.minimum(budget_tokens // ((1 + drafts) * stages), float(MOST_BATCH))
