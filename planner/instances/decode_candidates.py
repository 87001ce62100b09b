"""Decode instances: the largest batch of every row that keeps TPOT and fits, found on arrays.

Iteration time grows with the batch and its intercept is not negative, so time per request falls:
the largest feasible batch carries the most. Bisection over integers therefore covers every integer
batch without trying each.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from planner.balance.imbalance import expected_maximum_normal
from planner.costs.deployment import Deployment
from planner.costs.latency import accepted_tokens, balanced_cost
from planner.costs.memory import expert_device_memory, memory
from planner.instances.brackets import largest
from planner.instances.space import Group, Row, row_deployment
from planner.manifest.stacks import stacked, taken
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad, larger
from planner.question import Question
from planner.workload import KvLoad, reserved_kv_tokens, running_kv_tokens, total_kv_tokens

# Standard deviations by which memory must hold the KV of a full batch: one rank in 740 overflows.
MEMORY_DEVIATIONS = 3.0
MOST_BATCH = 4096
# Selecting rows means building their terms again: done only where it drops this share of them.
_WORTH_PRUNING = 0.8

# Requests per second already known for an instance size (devices).
Floor = dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCandidate:
    """One decode instance at its largest feasible batch."""

    row: Row
    deployment: Deployment
    drafts: int
    microbatches: int
    batch: int
    iteration_seconds: float
    requests_per_second: float
    limited_by: str

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return self.row.strategy.devices


@dataclass(frozen=True, slots=True)
class IterationTime:
    """Seconds of iterations of many instances as a function of the batch, counting what it is asked."""

    cost: StepCost
    deviations: Number
    kv: KvLoad
    microbatches: int
    count: "Count"

    def __call__(self, batch: Number) -> Number:
        """Seconds with ``batch`` requests per DP rank, [rows] or [points, rows]."""
        self.count.evaluated += int(np.size(batch))
        return iteration(self.cost, self.deviations, batch, self.kv, self.microbatches)

    def of(self, rows: NDArray[np.int64]) -> "IterationTime":
        """Return the same for some of the instances; the cost must be stacked."""
        spread = self.deviations[rows] if isinstance(self.deviations, np.ndarray) else self.deviations
        return replace(self, cost=taken(self.cost, rows), deviations=spread)


@dataclass(slots=True)
class Count:
    """Candidates costed so far, and what is counted elsewhere for the same search."""

    evaluated: int = 0
    others: list["Count"] = field(default_factory=list)

    def add(self, other: "Count") -> None:
        """Let what another counts, from its beginning on, count here too."""
        self.others.append(other)

    @property
    def total(self) -> int:
        """All of them."""
        return self.evaluated + sum(other.total for other in self.others)


def kv_of_busiest(deviations: Number, batch: Number, kv: KvLoad) -> Number:
    """KV tokens of the DP rank that holds most: B·mean + z·sqrt(B·variance).

    ``deviations`` z is the expected maximum of as many standard normals as there are DP ranks:
    dispatch waits for the slowest attention (xDeepServe section 4.1).
    """
    return batch * kv.mean_tokens + deviations * np.sqrt(batch * kv.variance_squared_tokens)


def iteration(cost: StepCost, deviations: Number, batch: Number, kv: KvLoad, microbatches: int) -> Number:
    """Seconds of an iteration with ``batch`` requests per DP rank and KV spread as the workload's."""
    load = StepLoad(
        decode_sequences=batch,
        decode_kv_tokens=kv_of_busiest(deviations, batch, kv),
        mean_tokens=batch * cost.queries_per_sequence,
    )
    return evaluate(cost, load, microbatches).seconds


def decode_candidates(
    question: Question, group: Group, microbatches: int, count: Count, tpot_seconds: float, floor: Floor
) -> list[DecodeCandidate]:
    """Return per instance size the row that carries most, at its largest batch within ``tpot_seconds``.

    Requests per second rise with the batch, so a row carries at most what it carries with its
    memory full: rows for which that is below ``floor`` (what is already known for their size) are
    dropped after that one evaluation.
    """
    group, room = rows_with_room(group, microbatches, reserved_kv_tokens(question.workload))
    if not group.rows:
        return []
    most = full_batch_rates(question, group, room, microbatches, count)
    sizes = group.sizes
    keep = np.flatnonzero(most > np.array([floor.get(int(size), 0.0) for size in sizes]))
    if keep.size < _WORTH_PRUNING * len(group.rows):
        group, room = group.select(keep), room[keep]
    return best_batches(question, group, room, microbatches, count, tpot_seconds) if group.rows else []


def rows_with_room(group: Group, microbatches: int, kv: KvLoad) -> tuple[Group, NDArray[np.float64]]:
    """Return the rows that hold their least batch, and the largest batch that memory holds, [rows]."""
    room = largest_room(group, microbatches, kv)
    keep = np.flatnonzero(room >= least_batch(group, microbatches))
    return (group, room) if keep.size == room.size else (group.select(keep), room[keep])


def largest_room(group: Group, microbatches: int, kv: KvLoad) -> NDArray[np.float64]:
    """Return the largest batch that memory holds, [rows]; below the least batch where it does not hold even that."""
    deployment = group.deployment
    least = least_batch(group, microbatches)
    capacity = deployment.hardware.device.memory_bytes.value

    def used(batch: Number) -> Number:
        return decode_memory_used(deployment, batch, kv)

    return largest(used, capacity, least, np.full(least.shape, float(MOST_BATCH)))


def least_batch(group: Group, microbatches: int) -> NDArray[np.float64]:
    """One request per microbatch and pipeline stage, [rows]."""
    least = np.asarray(microbatches * group.deployment.strategy.pp, dtype=np.float64)
    return np.broadcast_to(least, (len(group.rows),))


def full_batch_rates(
    question: Question, group: Group, room: NDArray[np.float64], microbatches: int, count: Count
) -> NDArray[np.float64]:
    """Requests per second of each row with its memory full, whatever the time per token."""
    count.evaluated += len(group.rows)
    cost = stacked(balanced_cost(group.deployment, question.balance), decoding=True)
    deviations = expected_maximum_normal(group.deployment.strategy.attention_groups)
    seconds = iteration(cost, deviations, room, running_kv_tokens(question.workload), microbatches)
    return request_rate(question, group.deployment, room, seconds)


def request_rate(question: Question, deployment: Deployment, batch: Number, seconds: Number) -> NDArray[np.float64]:
    """Requests per second that leave an instance whose ranks hold ``batch`` each."""
    accepted = accepted_tokens(deployment, question.acceptance)
    answer_tokens = question.workload.decoded_tokens
    return np.asarray(batch * deployment.strategy.attention_groups * accepted / (seconds * answer_tokens))


def best_batches(
    question: Question,
    group: Group,
    room: NDArray[np.float64],
    microbatches: int,
    count: Count,
    tpot_seconds: float,
) -> list[DecodeCandidate]:
    """Return the leader of each size among rows at their largest batch within the limit and their room."""
    deployment, kv = group.deployment, running_kv_tokens(question.workload)
    cost = stacked(balanced_cost(deployment, question.balance), decoding=True)
    deviations = expected_maximum_normal(deployment.strategy.attention_groups)
    limit = tpot_seconds * accepted_tokens(deployment, question.acceptance)
    least = least_batch(group, microbatches)

    def seconds_of(batch: Number) -> Number:
        count.evaluated += int(np.size(batch))
        return iteration(cost, deviations, batch, kv, microbatches)

    batch = np.maximum(largest(seconds_of, limit, least, room), least)
    seconds = np.broadcast_to(iteration(cost, deviations, batch, kv, microbatches), batch.shape)
    rate = request_rate(question, deployment, batch, seconds)
    return [
        DecodeCandidate(
            row=group.rows[number],
            deployment=row_deployment(deployment, group.rows[number]),
            drafts=int(deployment.drafts),
            microbatches=microbatches,
            batch=int(batch[number]),
            iteration_seconds=float(seconds[number]),
            requests_per_second=float(rate[number]),
            limited_by="memory" if batch[number] >= room[number] else "tpot",
        )
        for number in leaders(group.sizes, np.where(seconds <= limit, rate, 0.0))
    ]


def leaders(sizes: NDArray[np.float64], rate: NDArray[np.float64]) -> list[int]:
    """Index of the row with the highest positive rate of each instance size."""
    order = np.lexsort((-rate, sizes))
    first = np.flatnonzero(np.r_[True, np.diff(sizes[order]) > 0]) if order.size else order
    return [int(number) for number in order[first] if rate[number] > 0]


def decode_memory_used(deployment: Deployment, batch: Number, kv: KvLoad) -> Number:
    """Bytes per device with weights, buffers and the KV reserved for a full batch, three deviations above its mean.

    Of the fuller kind where attention and experts have devices of their own. ``kv`` is what admission reserves for a
    request (``workload.reserved_kv_tokens``).
    """
    held = total_kv_tokens(kv, batch, MEMORY_DEVIATIONS)
    tokens = batch * (1 + deployment.drafts) / deployment.strategy.pp
    used = memory(deployment, kv_tokens=held, sequences=batch, tokens=tokens).used
    experts = expert_device_memory(deployment, tokens)
    return used if experts is None else larger(used, experts.used)
