"""Decode instances: what an iteration takes, which batch memory holds, and what it carries, on arrays.

Iteration time grows with the batch and its intercept is not negative, so time per request falls: the largest batch
that keeps the limit bounds what is carried (``offers.decode_offers``); which one carries most is chosen later.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from planner.costs.deployment import Deployment
from planner.costs.latency import accepted_tokens, decode_load
from planner.costs.memory import Memory, expert_device_memory, memory
from planner.instances.brackets import largest
from planner.instances.candidates import Candidate
from planner.instances.space import Group
from planner.manifest.stacks import taken
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import Number, StepCost, StepLoad, larger
from planner.question import Question
from planner.workload import KvLoad, Workload, running_kv_tokens, total_kv_tokens

# Standard deviations by which memory must hold the KV of a full batch: one rank in 740 overflows.
MEMORY_DEVIATIONS = 3.0
MOST_BATCH = 4096


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


def request_rate(question: Question, deployment: Deployment, batch: Number, seconds: Number) -> NDArray[np.float64]:
    """Requests per second that leave an instance whose ranks hold ``batch`` each."""
    accepted = accepted_tokens(deployment, question.acceptance)
    answer_tokens = question.workload.decoded_tokens
    return np.asarray(batch * deployment.strategy.attention_groups * accepted / (seconds * answer_tokens))


def decode_memory_used(deployment: Deployment, batch: Number, kv: KvLoad) -> Number:
    """Bytes per device with weights, buffers and the KV reserved for a full batch, three deviations above its mean.

    Of the fuller kind where attention and experts have devices of their own. ``kv`` is what admission reserves for a
    request (``workload.reserved_kv_tokens``).
    """
    held = total_kv_tokens(kv, batch, MEMORY_DEVIATIONS)
    tokens = batch * deployment.queries / deployment.strategy.pp
    used = memory(deployment, kv_tokens=held, sequences=batch, tokens=tokens).used
    experts = expert_device_memory(deployment, tokens)
    return used if experts is None else larger(used, experts.used)
