"""A given deployment: its candidates, its plan at any rate, and its largest rate."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.costs.deployment import Deployment
from planner.instances.aggregated import AggregatedServer
from planner.instances.candidates import (
    AggregatedCandidate,
    DecodeCandidate,
    PrefillCandidate,
    aggregated_room,
    largest_room,
)
from planner.instances.operating import DecodeServer, PrefillServer
from planner.instances.space import Group, Row, groups, row_deployment
from planner.objective import LEAST_PART
from planner.plans.aggregated import make_aggregated
from planner.plans.plan import Plan, make_plan
from planner.plans.pools import decode_prediction, prefill_prediction
from planner.question import Question, Role
from planner.serving.capacity import largest_rate
from planner.workload import reserved_kv_tokens

MOST_REQUESTS = 4096.0
NEWS = 0.005  # of a rate, below which a change is none


@dataclass(frozen=True, kw_only=True)
class GivenRole:
    """One role: its row of the planner's space, the tokens of a step and the requests that the limits of an instance
    let into a DP rank; ``tokens`` None where no limit is stated.
    """

    question: Question
    role: Role
    instances: int
    row: Row
    sequences: int
    tokens: int | None
    drafts: int

    @cached_property
    def group(self) -> Group:
        """The row in its group; BadInput where its degrees are none of the planner's."""
        (group,) = groups(self.question, self.role, [self.row], self.drafts if self.role != "prefill" else 0)
        return group

    @property
    def deployment(self) -> Deployment:
        """One instance."""
        return row_deployment(self.group.deployment, self.row)

    @cached_property
    def room(self) -> int:
        """Requests of a DP rank that memory holds, by the plan's own reservation; of prefill those that are let in."""
        if self.role == "mixed":
            kv, tokens = reserved_kv_tokens(self.question.workload), np.array([float(self.tokens or 1)])
            return int(aggregated_room(self.deployment, tokens, kv, np.array([MOST_REQUESTS]))[0])
        if self.role == "prefill":
            return self.sequences
        return int(largest_room(self.group, self.row.microbatches, reserved_kv_tokens(self.question.decoded))[0])

    @property
    def batch(self) -> int:
        """Requests of a DP rank that its limits let in and memory holds; at least 1."""
        return min(self.sequences, max(self.room, 1))

    def prefill(self) -> PrefillCandidate:
        """Return a prefill instance: whole prompts in a pass, or parts of one where its tokens hold less."""
        workload, strategy = self.question.workload, self.row.strategy
        whole = workload.input_tokens.mean  # of which an engine counts in a step what it computes
        prompt = whole * (1 - workload.prefix_reuse)
        tokens = float(self.tokens or prompt)
        prompts, chunks = max(int(min(tokens // prompt, self.sequences)), 1), max(-(-prompt // tokens), 1)
        candidate = PrefillCandidate(
            row=self.row,
            deployment=self.deployment,
            microbatches=self.row.microbatches,
            prompts=prompts,
            chunks=int(chunks),
            tokens_per_device=max(int(prompts * whole / chunks / (strategy.attention_tp * strategy.pp)), 1),
            pass_seconds=1.0,
            requests_per_second=1.0,
        )
        seconds = prefill_prediction(self.question, candidate).iteration_seconds * chunks
        return replace(candidate, pass_seconds=seconds, requests_per_second=prompts * strategy.attention_dp / seconds)

    def decode(self) -> DecodeCandidate:
        """Return a decode instance with its batch; of an aggregated one, what it would carry if it did nothing else."""
        candidate = DecodeCandidate(
            row=self.row,
            deployment=self.deployment,
            drafts=self.drafts,
            microbatches=self.row.microbatches,
            batch=self.batch,
            iteration_seconds=1.0,
            requests_per_second=1.0,
            limited_by="batch",
        )
        found = decode_prediction(self.question, candidate)
        rate = found.tokens_per_second / self.question.workload.output_tokens.mean
        return replace(candidate, iteration_seconds=found.iteration_seconds, requests_per_second=rate)

    @property
    def most_per_second(self) -> float:
        """Upper bound on the requests per second of all instances."""
        candidate = self.prefill() if self.role == "prefill" else self.decode()
        return self.instances * candidate.requests_per_second

    def timely_batch(self) -> int:
        """Return the largest batch of a DP rank whose mean step keeps TPOT; 0 where none does."""

        def late(batch: int) -> bool:
            asked = replace(self.decode(), batch=max(batch, self.row.microbatches))
            seconds = decode_prediction(self.question, asked).tpot_seconds
            return not seconds or seconds > self.question.tpot_seconds

        return bisect_left(range(1, self.batch + 1), True, key=late)


def plan_at(sides: Sequence[GivenRole], rate: float) -> Plan | None:
    """Return the plan of one side of aggregated instances, or of prefill and decode; None beyond saturation."""
    question = sides[0].question
    if len(sides) == 1:
        (side,) = sides
        candidate = AggregatedCandidate(
            row=side.row,
            deployment=side.deployment,
            drafts=side.drafts,
            microbatches=side.row.microbatches,
            batch=side.batch,
            batched_tokens=side.tokens or 1,
        )
        most = side.most_per_second / side.instances
        return make_aggregated(question, AggregatedServer(question, candidate), side.instances, most, rate)
    first, second = sides[0].prefill(), sides[1].decode()
    return make_plan(
        question,
        (PrefillServer(question, first), sides[0].instances, first.requests_per_second),
        (DecodeServer(question, second, 0.0), sides[1].instances, second.requests_per_second),
        rate,
    )


def most_rate(sides: Sequence[GivenRole]) -> tuple[float | None, Plan | None]:
    """Return the largest rate within the limits, and the plan at the smallest that was tried; None where none fits."""
    question = sides[0].question
    if not all(side.room for side in sides):
        return None, None

    def used(rate: float) -> float:
        """Return the used share of the limit with less room; infinite beyond saturation."""
        plan, level = plan_at(sides, rate), question.percentile
        if plan is None:
            return math.inf
        return max(plan.ttft.at(level) / question.ttft_seconds, plan.tpot.at(level) / question.tpot_seconds)

    ceiling = question.most_utilisation * min(side.most_per_second for side in sides)  # the most that is planned with
    return largest_rate(used, 1.0, ceiling, ceiling / 2), plan_at(sides, ceiling * LEAST_PART)


def mended_rate(sides: Sequence[GivenRole], most: float | None) -> float | None:
    """Return the largest rate with batches reduced to what TPOT allows; None where it is no larger."""
    timely = [side.sequences if side.role == "prefill" else side.timely_batch() or side.batch for side in sides]
    if all(side.role == "prefill" or batch >= side.batch for side, batch in zip(sides, timely, strict=True)):
        return None
    rate, _ = most_rate([replace(side, sequences=batch) for side, batch in zip(sides, timely, strict=True)])
    return rate if rate and rate > (most or 0.0) * (1 + NEWS) else None
