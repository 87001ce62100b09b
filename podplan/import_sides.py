"""A deployment that was imported as the planner sees it: its candidates, and the plan that it is at any rate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from deploy.reading.engines import Counted
from deploy.reading.foreign import Found
from planner.instances.aggregated import AggregatedServer
from planner.instances.aggregated_candidates import AggregatedCandidate, aggregated_room
from planner.instances.decode_candidates import DecodeCandidate, largest_room
from planner.instances.operating import DecodeServer, PrefillServer
from planner.instances.prefill_candidates import PrefillCandidate
from planner.instances.space import Row, groups, row_deployment
from planner.plans.aggregated import make_aggregated
from planner.plans.plan import Plan, make_plan
from planner.plans.pools import decode_prediction, prefill_prediction
from planner.question import Question
from planner.strategy import Strategy
from planner.workload import reserved_kv_tokens

ROUNDS = 18
LEAST_SHARE = 1e-4  # of what the instances carry at most, where looking for a rate ends
MOST_REQUESTS = 4096.0
NEWS = 0.005  # of a rate, below which a change is none


@dataclass(frozen=True, slots=True)
class ImportedSide:
    """One role as the planner sees it: its row, and the requests or tokens that its limits let in."""

    found: Found
    counted: Counted
    row: Row
    batch: int


def side_of(question: Question, found: Found, counted: Counted) -> ImportedSide:
    """Return a role's row of the planner's space, with what its memory and its limits let in.

    Raises BadInput where its degrees are none of the planner's.
    """
    stage = counted.attention_tp * counted.attention_dp
    ep = counted.moe_ep or 1
    strategy = Strategy(
        attention_tp=counted.attention_tp,
        attention_dp=counted.attention_dp,
        moe_tp=stage // ep,
        moe_ep=ep,
        pp=counted.pp,
    )
    row = Row(strategy, counted.redundant or 0, 0, counted.microbatches)
    side = ImportedSide(found, counted, row, counted.sequences)
    return replace(side, batch=min(counted.sequences, max(_room(question, side), 1)))


def _group(question: Question, side: ImportedSide) -> Any:
    drafts = side.counted.drafts if side.found.role != "prefill" else 0
    (group,) = groups(question, side.found.role, [side.row], drafts)
    return group


def _room(question: Question, side: ImportedSide) -> int:
    """Return the requests of a DP rank that memory holds, by the plan's own reservation; 0 where it holds none."""
    group, kv = _group(question, side), reserved_kv_tokens(question.workload)
    if side.found.role == "mixed":
        budget = np.array([float(side.counted.tokens or 1)])
        return int(
            aggregated_room(row_deployment(group.deployment, side.row), budget, kv, np.array([MOST_REQUESTS]))[0]
        )
    if side.found.role == "decode":
        return int(largest_room(group, side.row.microbatches, kv)[0])
    return side.counted.sequences


def most_rate(question: Question, sides: Sequence[ImportedSide]) -> tuple[float | None, Plan | None]:
    """Return the largest rate that keeps the limits, and the plan of the smallest rate that was tried."""
    level = question.percentile

    def keeps(plan: Plan | None) -> bool:
        if plan is None or plan.ttft.at(level) > question.ttft_seconds:
            return False
        return plan.tpot.at(level) <= question.tpot_seconds

    ceiling = min(_carried(question, side) * side.found.instances for side in sides)
    least = plan_at(question, sides, ceiling * LEAST_SHARE)
    if not keeps(least):
        return None, least
    low, high = ceiling * LEAST_SHARE, ceiling
    for _ in range(ROUNDS):
        middle = (low * high) ** 0.5 if low < high * 0.5 else (low + high) / 2
        low, high = (middle, high) if keeps(plan_at(question, sides, middle)) else (low, middle)
    return low, least


def _carried(question: Question, side: ImportedSide) -> float:
    """Return the requests per second that no stream of steps of one instance exceeds."""
    if side.found.role == "prefill":
        return prefill_candidate(question, side).requests_per_second
    candidate = decode_candidate(question, side)
    return candidate.requests_per_second


def prefill_candidate(question: Question, side: ImportedSide) -> PrefillCandidate:
    """Return a prefill instance: whole prompts in a pass, or parts of one where its tokens hold less."""
    workload, strategy = question.workload, side.row.strategy
    prompt = workload.input_tokens.mean * (1 - workload.prefix_reuse)
    tokens = float(side.counted.tokens or prompt)
    prompts, chunks = max(int(min(tokens // prompt, side.counted.sequences)), 1), max(-(-prompt // tokens), 1)
    candidate = PrefillCandidate(
        row=side.row,
        deployment=row_deployment(_group(question, side).deployment, side.row),
        microbatches=side.row.microbatches,
        prompts=prompts,
        chunks=int(chunks),
        tokens_per_device=max(int(prompts * prompt / chunks / (strategy.attention_tp * strategy.pp)), 1),
        pass_seconds=1.0,
        requests_per_second=1.0,
    )
    seconds = prefill_prediction(question, candidate).iteration_seconds * chunks
    return replace(candidate, pass_seconds=seconds, requests_per_second=prompts * strategy.attention_dp / seconds)


def decode_candidate(question: Question, side: ImportedSide) -> DecodeCandidate:
    """Return a decode instance with its batch; of an aggregated one, what it would carry if it did nothing else."""
    candidate = DecodeCandidate(
        row=side.row,
        deployment=row_deployment(_group(question, side).deployment, side.row),
        drafts=side.counted.drafts,
        microbatches=side.row.microbatches,
        batch=side.batch,
        iteration_seconds=1.0,
        requests_per_second=1.0,
        limited_by="its own limit",
    )
    found = decode_prediction(question, candidate)
    rate = found.tokens_per_second / question.workload.output_tokens.mean
    return replace(candidate, iteration_seconds=found.iteration_seconds, requests_per_second=rate)


def plan_at(question: Question, sides: Sequence[ImportedSide], rate: float) -> Plan | None:
    """Return the plan of the deployment at a rate; None where it cannot keep up."""
    if len(sides) == 1:
        (side,) = sides
        carried = _carried(question, side)
        candidate = AggregatedCandidate(
            row=side.row,
            deployment=row_deployment(_group(question, side).deployment, side.row),
            drafts=side.counted.drafts,
            microbatches=side.row.microbatches,
            batch=side.batch,
            batched_tokens=side.counted.tokens or 1,
        )
        return make_aggregated(question, AggregatedServer(question, candidate), side.found.instances, carried, rate)
    first, second = prefill_candidate(question, sides[0]), decode_candidate(question, sides[1])
    return make_plan(
        question,
        (PrefillServer(question, first), sides[0].found.instances, first.requests_per_second),
        (DecodeServer(question, second, 0.0), sides[1].found.instances, second.requests_per_second),
        rate,
    )


def timely_batch(question: Question, side: ImportedSide) -> int:
    """Return the largest batch of a DP rank whose mean step keeps TPOT; 0 where none does."""
    sizes = [1, *(side.batch * n // 32 for n in range(1, 33))]

    def keeps(batch: int) -> bool:
        found = decode_prediction(
            question, replace(decode_candidate(question, side), batch=max(batch, side.row.microbatches))
        )
        return bool(found.tpot_seconds and found.tpot_seconds <= question.tpot_seconds)

    kept = 0
    for low, high in pairwise(sorted({*sizes})):
        if not keeps(low):
            return kept
        kept = low
        if not keeps(high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if keeps(middle) else (low, middle)
            return low
        kept = high
    return kept


def mended_rate(question: Question, sides: Sequence[ImportedSide], most: float | None) -> float | None:
    """Return the rate after batches were cut to what TPOT allows; None where that is no better."""
    better = [
        side
        if side.found.role == "prefill"
        else replace(side, batch=min(side.batch, timely_batch(question, side) or side.batch))
        for side in sides
    ]
    if better == list(sides):
        return None
    rate, _ = most_rate(question, better)
    return rate if rate and rate > (most or 0.0) * (1 + NEWS) else None
