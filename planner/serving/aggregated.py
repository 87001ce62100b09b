"""A pool of aggregated instances under a stream, step by step, by the rule of their engine.

Continuous batching: a step carries one token (with drafts several) of every running request, and prompt chunks up to
the token budget of each DP rank, first come first served; all ranks leave a step together. ``planner.serving.rules``
says in which order, and who is let in.

Ref: Sarathi-Serve (arXiv 2403.02310) section 4; the schedulers of vLLM 0.33.0 and SGLang 0.5.23.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ground.identity import Kept, Same
from planner.loops.arrays import TableArrays
from planner.manifest.drafts import Acceptance, drawn_iterations
from planner.serving.prefill import Policy
from planner.serving.rules import REFERENCE_RULE, SchedulingRule
from planner.serving.streams import Floats, Ints, Stream, parts_of

if TYPE_CHECKING:
    from planner.loops.batch_loop import Instances, Records, Rule

Enough = Callable[[Floats, Floats], bool]

_FRESH = Kept[NDArray[np.uint8]](most=4)
"""Records of streams, which are played at many rates, as bytes: these are copied several times as quickly."""
_ROUNDING = 1e-9
_AMPLE = 1 << 50
_LOOK = 150
"""Requests that are played while one looks whether enough is known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregatedPool:
    """Instances that are alike; limits are of one DP rank."""

    times: TableArrays
    ranks: int
    budget_tokens: int
    """Of a step."""
    slots: int
    """Requests at once."""
    capacity_tokens: float
    """KV."""
    charged: Callable[[Floats], Floats] | None = None
    """KV tokens that requests of so many are granted where answers are reserved; None: as many."""
    rule: SchedulingRule = REFERENCE_RULE
    queries: int = 1
    """Tokens of the budget that a running request takes: one and its drafts."""
    acceptance: Acceptance = 0.0
    """Of its drafts."""
    accepted: float | None = None
    """Tokens that it gains in every step; None: one, and as many drafts as are drawn."""
    instances: int = 1
    policy: Policy = "round_robin"
    request_seconds: float = 0.0
    """Of a closed loop: a request's way to the engine."""
    token_seconds: float = 0.0
    """And of each prompt token before that, one prompt after another."""

    def reserved(self, stream: Stream) -> Floats:
        """Return the KV tokens that each of a stream's requests is granted: its prompt and answer, as they are charged.

        One that no rank could hold is let in where it is alone.
        """
        tokens = (stream.prompt_tokens + stream.answer_tokens).astype(np.float64)
        return tokens if self.charged is None else self.charged(tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """What became of every request, [requests]."""

    arrival_seconds: Floats
    """Of a closed loop: when each request was sent."""
    first_token_seconds: Floats
    left_seconds: Floats
    preemptions: Ints
    busy_seconds: float
    """Of all instances."""
    steps: int
    prompt_steps: int
    """Of those, with prompts."""
    running_beside_prompts: int
    """Running requests of all ranks in these, added up."""
    longest_chunks: float
    """Prompt tokens in these of the rank that has most, added up."""
    ended: bool = False
    """Whether the play ended early: tokens that were not out then come then at the earliest."""


def play_aggregated(pool: AggregatedPool, stream: Stream, enough: Enough | None = None) -> Played:
    """Return when every request of a stream has its first and its last token; the stream's arrivals must not fall.

    Args: ``enough`` is asked now and then, with when those that have come have their first and last tokens, of those
        that do not at the earliest; where it says so the play ends there.
    """
    return _play(pool, stream, len(stream), enough)


def play_closed(pool: AggregatedPool, stream: Stream, concurrency: int) -> Played:
    """Return the same of a closed loop on one instance: so many requests are sent at 0, each replaced when it leaves.

    Arrivals of the stream do not count. Hosts delay them: so requests of one length, which leave at much the same
    time, reach the engine one by one.
    """
    first = min(concurrency, len(stream))
    reached = np.cumsum(stream.prompt_tokens, dtype=np.float64) * pool.token_seconds + pool.request_seconds
    played = _play(pool, replace(stream, arrival_seconds=reached), first)
    sent = np.concatenate([np.zeros(first), np.sort(played.left_seconds)])[: len(stream)]
    return replace(played, arrival_seconds=sent)


def _play(pool: AggregatedPool, stream: Stream, first: int, enough: Enough | None = None) -> Played:
    from planner.loops import aggregated_loop as loop

    rule = rule_of(pool, int(stream.answer_tokens.max(initial=0)))
    requests = requests_of(pool, stream)
    instances = instances_of(pool, rule, first, len(stream))
    policy = loop.IN_TURN if pool.policy == "round_robin" else loop.LEAST_LOAD
    first_tokens, left = np.empty(len(stream)), np.empty(len(stream))
    for begin, end in parts_of(first, _LOOK) if enough else [(0, first)]:
        until = np.inf if end == first else stream.arrival_seconds[end]
        loop.play(requests, instances, policy, rule, pool.times, (begin, end), until)
        if enough is None or end == first:
            continue
        loop.so_far(requests, until, first_tokens[:end], left[:end])
        if enough(first_tokens[:end], left[:end]):
            loop.so_far(requests, until, first_tokens, left)
            requests.first, requests.left = first_tokens, left
            break
    return Played(
        arrival_seconds=requests.arrival,
        first_token_seconds=requests.first,
        left_seconds=requests.left,
        preemptions=requests.preempted,
        busy_seconds=float(instances.heads.busy.sum()),
        steps=int(instances.heads.steps.sum()),
        prompt_steps=int(instances.heads.prompt_steps.sum()),
        running_beside_prompts=int(instances.heads.beside.sum()),
        longest_chunks=float(instances.heads.chunks.sum()),
        ended=end < first,
    )


def rule_of(pool: AggregatedPool, longest_answer: int) -> "Rule":
    """Return the rule and the limits of a pool as compiled loops take them."""
    from planner.loops import batch_loop as batch

    rule, estimate = pool.rule, pool.rule.estimate
    reserve = rule.admission == "reserve"
    block = 1 if reserve else rule.block_tokens
    capacity = int(min(pool.capacity_tokens, float(_AMPLE))) // block - (0 if reserve else rule.kept_blocks)
    return batch.Rule(
        together=rule.order != "prompts_first",
        whole_prompts=rule.whole_prompts,
        wait_steps=rule.wait_steps,
        wait_tokens=float(rule.wait_share * pool.budget_tokens),
        balance_steps=rule.balance_steps if pool.ranks > 1 else 0,
        admission={"reserve": batch.RESERVE, "need": batch.NEED, "estimate": batch.ESTIMATE}[rule.admission],
        overlapped=rule.overlapped,
        interval=rule.receive_interval,
        dealing={
            "round_robin": batch.ROUND_ROBIN,
            "least_requests": batch.LEAST_REQUESTS,
            "least_kv": batch.LEAST_KV,
        }[rule.dealing],
        budget=int(pool.budget_tokens),
        queries=pool.queries,
        slots=pool.slots,
        capacity=capacity,
        block=block,
        whole_blocks=pool.queries == 1 and not reserve,
        clipped=longest_answer > estimate.clip_tokens,
        clip=float(estimate.clip_tokens),
        fixed_lengths=rule.fixed_lengths,
        initial_ratio=float(estimate.initial_share),  # numba compiles anew for another type
        least_ratio=float(estimate.least_share),
        ratio_step=(estimate.initial_share - estimate.least_share) / estimate.falling_steps,
        retract_tokens=float(estimate.retract_tokens),
        request_seconds=pool.request_seconds,
        token_seconds=pool.token_seconds,
    )


def requests_of(pool: AggregatedPool, stream: Stream, iterations: Ints | None = None) -> "Records":
    """Return a record for each of a stream's requests; ``iterations`` that each takes after its first token."""
    from planner.loops import batch_loop as batch

    if iterations is None:
        lengths = Same(stream.prompt_tokens), Same(stream.reused_tokens), Same(stream.answer_tokens)
        fresh = _FRESH.of((lengths, pool.queries, pool.acceptance, pool.accepted), lambda: _fresh(stream, pool))
        requests = fresh.copy().view(batch.REQUEST).view(np.recarray)
    else:
        requests = _records(stream, iterations)
    requests.arrival, requests.need = stream.arrival_seconds, pool.reserved(stream)
    return requests


def _fresh(stream: Stream, pool: AggregatedPool) -> NDArray[np.uint8]:
    after = np.maximum(stream.answer_tokens - 1, 0)
    return _records(stream, np.where(after > 0, _iterations(pool, after), 0)).view(np.ndarray).view(np.uint8)


def _records(stream: Stream, iterations: Ints) -> "Records":
    """Return what of a stream's records depends neither on its rate nor on who plays it."""
    from planner.loops import batch_loop as batch

    after = np.maximum(stream.answer_tokens - 1, 0)
    requests = np.zeros(len(stream), batch.REQUEST).view(np.recarray)
    requests.answer, requests.after = stream.answer_tokens, iterations
    requests.length = requests.todo = stream.prompt_tokens
    requests.reused = requests.done = stream.reused_tokens
    requests.growth = np.where(iterations > 0, after / np.maximum(iterations, 1), 1.0)
    requests.begun = requests.first = requests.left = -1.0
    requests.behind = requests.chain = batch.NOBODY
    return requests


def _iterations(pool: AggregatedPool, tokens: Ints) -> Ints:
    if pool.accepted is not None:
        steps: Ints = np.ceil(tokens / pool.accepted - _ROUNDING).astype(np.int64)
        return steps
    return drawn_iterations(tokens, pool.queries - 1, pool.acceptance, np.random.default_rng(0))


def instances_of(pool: AggregatedPool, rule: "Rule", arriving: int, requests: int) -> "Instances":
    """Return idle instances, for requests of which ``arriving`` ones do not wait for others to leave."""
    from planner.loops import batch_loop as batch

    each, shape = pool.instances, (pool.instances, pool.ranks)
    heads = np.zeros(each, batch.HEAD).view(np.recarray)
    heads.received = rule.interval
    ranks = np.zeros(shape, batch.RANK).view(np.recarray)
    ranks.ratio, ranks.free = rule.initial_ratio, rule.capacity
    ranks.oldest = ranks.newest = batch.NOBODY
    lines = np.zeros((each, pool.ranks + 1), batch.LINE).view(np.recarray)
    steps = np.zeros((each, 2), batch.STEP).view(np.recarray)
    lines.head = lines.tail = steps.head = steps.tail = batch.NOBODY
    return batch.Instances(
        heads=heads,
        ranks=ranks,
        lines=lines,
        steps=steps,
        marks=np.zeros((each, 2, pool.ranks), batch.MARK).view(np.recarray),
        buckets=np.full((*shape, batch.BUCKETS), batch.NOBODY, dtype=np.int64),
        phases=np.zeros((*shape, rule.block), dtype=np.int64),
        loads=np.zeros(pool.ranks, batch.LOAD).view(np.recarray),
        following=np.array([arriving, requests, arriving], dtype=np.int64),
        news=np.zeros(1, dtype=np.int64),
    )
