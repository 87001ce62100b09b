"""A pool of aggregated instances under a stream, step by step, by the rule of their engine.

Continuous batching: a step carries one token (with drafts several) of every running request, and prompt chunks up to
the token budget of each DP rank, first come first served; all ranks leave a step together. ``planner.serving.rules``
says in which order, and who is let in.

Ref: Sarathi-Serve (arXiv 2403.02310) section 4; the schedulers of vLLM 0.33.0 and SGLang 0.5.23.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from ground.identity import Kept, Same
from planner.loops.arrays import TableArrays
from planner.manifest.drafts import Acceptance, drawn_iterations
from planner.serving.prefill import Policy
from planner.serving.rules import REFERENCE_RULE, SchedulingRule
from planner.serving.streams import Stream, parts_of

if TYPE_CHECKING:
    from planner.loops.batch_loop import Instances, Records, Rule

Enough = Callable[[Floats, Floats], bool]

_FRESH = Kept[NDArray[np.uint8]](most=16)
"""Records of streams that are played at many rates. They are kept as bytes, which copy several times as quickly."""
_ROUNDING = 1e-9
_AMPLE = 1 << 50
_PLAY_TURNS, _PROMPT_TURNS = 50_000, 20
"""Turns of about 25 ns that take as long as the start and end of a play, and as a step with prompts."""
_LOOK = 400  # fewest requests between two calls of ``enough``: one call takes as long as playing them, 0.2 ms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregatedPool:
    """Identical aggregated instances. Every limit holds for one DP rank."""

    times: TableArrays
    ranks: int
    budget_tokens: int  # token budget of a step; with pipeline stages each batch in flight has its part of it
    slots: int  # batch slots: the most requests that run at once
    capacity_tokens: float  # KV capacity in tokens
    charged: Callable[[Floats], Floats] | None = None
    """KV tokens charged to requests of so many tokens, where answers are reserved; None: as many."""
    rule: SchedulingRule = REFERENCE_RULE
    queries: int = 1  # tokens of the budget that a running request takes: one and its drafts
    acceptance: Acceptance = 0.0  # probability that a draft is accepted
    accepted: float | None = None
    """Tokens that a running request gains in every step; None: one, and the accepted drafts, drawn at random."""
    instances: int = 1
    policy: Policy = "round_robin"
    request_seconds: float = 0.0  # closed loop: seconds from the client to the engine, per request
    token_seconds: float = 0.0
    """Closed loop: seconds of tokenizing per prompt token; prompts are tokenized one after another."""

    def reserved(self, stream: Stream) -> Floats:
        """Return the KV tokens that each request is charged for its prompt and its answer, [requests].

        A request that exceeds the capacity of a rank is admitted where it runs alone.
        """
        tokens = (stream.prompt_tokens + stream.answer_tokens).astype(np.float64)
        return tokens if self.charged is None else self.charged(tokens)


class Needs(NamedTuple):
    """Limits of a rank, from and to, with which a play goes as it did; where one mattered, both are that limit."""

    budget_tokens: tuple[float, float]
    slots: tuple[float, float]
    capacity_tokens: tuple[float, float]

    def met_by(self, pool: AggregatedPool) -> bool:
        """Whether a pool that is like the played one, but for these limits, plays the same."""
        limits = pool.budget_tokens, pool.slots, pool.capacity_tokens
        return all(low <= limit <= high for limit, (low, high) in zip(limits, self, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """Times of every request, [requests], and totals of the steps."""

    arrival_seconds: Floats  # arrivals; in a closed loop the times at which requests were sent
    first_token_seconds: Floats
    left_seconds: Floats
    preemptions: Ints
    busy_seconds: float  # busy time, summed over instances
    steps: int
    prompt_steps: int  # steps with prompt tokens
    running_beside_prompts: int  # running requests of all ranks, summed over steps with prompt tokens
    longest_chunks: float  # prompt tokens of the rank that has most, summed over steps with prompt tokens
    single_steps: int  # those of batches that take turns which were played one by one, not added up
    needs: Needs
    ended: bool = False  # whether the play ended early. Times of tokens that were not out by then are lower bounds

    @property
    def turns(self) -> int:
        """Turns of a batch, with steps that carry prompts and the start of a play as the turns that take as long."""
        return _PLAY_TURNS + self.single_steps + _PROMPT_TURNS * self.prompt_steps


def play_aggregated(pool: AggregatedPool, stream: Stream, enough: Enough | None = None) -> Played:
    """Return when every request of a stream has its first and its last token; arrivals must be sorted.

    Args: ``enough`` is called now and then with the first and last token times of the requests that have arrived
        (lower bounds where a token is not out), at last when all have. The play ends once it returns True.
    """
    return _play(pool, stream, len(stream), enough)


def play_closed(pool: AggregatedPool, stream: Stream, concurrency: int) -> Played:
    """Play a closed loop on one instance: ``concurrency`` requests are sent at 0, each is replaced when it leaves.

    The stream's arrivals are ignored. Host time delays requests, so that requests of one length, which leave almost
    together, reach the engine one by one.
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
    first_tokens, left, ended = np.empty(len(stream)), np.empty(len(stream)), False
    for begin, end in parts_of(first, _LOOK) if enough else ():
        until = stream.arrival_seconds[min(end, first - 1)]
        loop.play(requests, instances, policy, rule, pool.times, (begin, end), until)
        loop.so_far(requests, until, first_tokens[:end], left[:end])
        ended = enough is not None and enough(first_tokens[:end], left[:end])
        if ended:
            loop.so_far(requests, until, first_tokens, left)
            requests["first"], requests["left"] = first_tokens, left
            break
    if not ended:
        loop.play(requests, instances, policy, rule, pool.times, (first if enough else 0, first), np.inf)
    return Played(
        arrival_seconds=requests["arrival"],
        first_token_seconds=requests["first"],
        left_seconds=requests["left"],
        preemptions=requests["preempted"],
        busy_seconds=float(instances.heads["busy"].sum()),
        steps=int(instances.heads["steps"].sum()),
        prompt_steps=int(instances.heads["prompt_steps"].sum()),
        running_beside_prompts=int(instances.heads["beside"].sum()),
        longest_chunks=float(instances.heads["chunks"].sum()),
        ended=ended,
        single_steps=int(instances.heads["single"].sum()),
        needs=_needs_of(pool, rule, instances),
    )


def _needs_of(pool: AggregatedPool, rule: "Rule", instances: "Instances") -> Needs:
    room, places = int(instances.heads["room"].min()), int(instances.heads["places"].max())
    whole = room > 0 and not rule.wait_steps  # prompts that wait for others wait for a share of the budget
    return Needs(
        budget_tokens=_from(rule.stages * (rule.budget - room + 1), pool.budget_tokens, mattered=not whole),
        slots=_from(places, pool.slots, mattered=places > pool.slots),
        capacity_tokens=_from(
            pool.capacity_tokens, pool.capacity_tokens, mattered=bool(instances.heads["lacked"].any())
        ),
    )


def _from(least: float, limit: float, *, mattered: bool) -> tuple[float, float]:
    return (limit, limit) if mattered else (least, math.inf)


def rule_of(pool: AggregatedPool, longest_answer: int) -> "Rule":
    """Return the scheduling rule and the limits of a pool in the form that the compiled loops take."""
    from planner.loops import batch_loop as batch

    rule, estimate, stages = pool.rule, pool.rule.estimate, pool.times.layers.size
    reserve = rule.admission == "reserve"
    block = 1 if reserve else rule.block_tokens
    capacity = int(min(pool.capacity_tokens, float(_AMPLE))) // block - (0 if reserve else rule.kept_blocks)
    return batch.Rule(
        together=rule.order != "prompts_first",
        whole_prompts=rule.whole_prompts,
        wait_steps=rule.wait_steps,
        wait_tokens=float(rule.wait_share * pool.budget_tokens / stages),
        balance_steps=rule.balance_steps if pool.ranks > 1 else 0,
        admission={"reserve": batch.RESERVE, "need": batch.NEED, "estimate": batch.ESTIMATE}[rule.admission],
        overlapped=rule.overlapped and (stages == 1 or rule.overlapped_stages),
        interval=rule.receive_interval,
        dealing={
            "round_robin": batch.ROUND_ROBIN,
            "least_requests": batch.LEAST_REQUESTS,
            "least_kv": batch.LEAST_KV,
        }[rule.dealing],
        budget=max(int(pool.budget_tokens) // stages, 1),
        queries=pool.queries,
        slots=pool.slots,
        batch_slots=-(-pool.slots // stages) if rule.batch_slots else pool.slots,
        stages=stages,
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
    """Return one record per request of a stream.

    Args: ``iterations`` after the first token, [requests]; None: drawn from the acceptance of drafts.
    """
    from planner.loops import batch_loop as batch

    if iterations is None:
        lengths = Same(stream.prompt_tokens), Same(stream.reused_tokens), Same(stream.answer_tokens)
        fresh = _FRESH.of((lengths, pool.queries, pool.acceptance, pool.accepted), lambda: _fresh(stream, pool))
        requests = batch.records(len(stream), batch.REQUEST)
        requests.view(np.ndarray).view(np.uint8)[:] = fresh
    else:
        requests = _records(stream, iterations)
    requests["arrival"], requests["need"] = stream.arrival_seconds, pool.reserved(stream)
    return requests


def _fresh(stream: Stream, pool: AggregatedPool) -> NDArray[np.uint8]:
    after = np.maximum(stream.answer_tokens - 1, 0)
    return _records(stream, np.where(after > 0, _iterations(pool, after), 0)).view(np.ndarray).view(np.uint8)


def _records(stream: Stream, iterations: Ints) -> "Records":
    """Return the records of a stream without the fields that depend on its rate or on the pool."""
    from planner.loops import batch_loop as batch

    after = np.maximum(stream.answer_tokens - 1, 0)
    requests = batch.records(len(stream), batch.REQUEST)
    requests["answer"], requests["after"] = stream.answer_tokens, iterations
    requests["length"] = requests["todo"] = stream.prompt_tokens
    requests["reused"] = requests["done"] = stream.reused_tokens
    requests["growth"] = np.where(iterations > 0, after / np.maximum(iterations, 1), 1.0)
    requests["begun"] = requests["first"] = requests["left"] = -1.0
    requests["behind"] = requests["chain"] = batch.NOBODY
    return requests


def _iterations(pool: AggregatedPool, tokens: Ints) -> Ints:
    if pool.accepted is not None:
        steps: Ints = np.ceil(tokens / pool.accepted - _ROUNDING).astype(np.int64)
        return steps
    return drawn_iterations(tokens, pool.queries - 1, pool.acceptance, np.random.default_rng(0))


def links_of(lines: "Records", steps: "Records", ranks: "Records") -> tuple[Ints, ...]:
    """Return the fields of instances that are indices of requests."""
    return lines["head"], lines["tail"], steps["head"], steps["tail"], ranks["oldest"], ranks["newest"]


def instances_of(pool: AggregatedPool, rule: "Rule", arriving: int, requests: int) -> "Instances":
    """Return idle instances for so many requests; the first ``arriving`` ones do not wait for others to leave."""
    from planner.loops import batch_loop as batch

    each = pool.instances * rule.stages
    shape = each, pool.ranks
    heads, ranks = batch.records(each, batch.HEAD), batch.records(shape, batch.RANK)
    heads["received"], heads["acting"], heads["room"] = rule.interval, np.arange(each), rule.budget
    ranks["ratio"], ranks["free"] = rule.initial_ratio, rule.capacity
    lines, steps = batch.records((each, pool.ranks + 1), batch.LINE), batch.records((each, 2), batch.STEP)
    for links in links_of(lines, steps, ranks):
        links[...] = batch.NOBODY
    return batch.Instances(
        heads=heads,
        ranks=ranks,
        lines=lines,
        steps=steps,
        marks=batch.records((each, 2, pool.ranks), batch.MARK),
        buckets=np.full((*shape, batch.BUCKETS), batch.NOBODY, dtype=np.int64),
        phases=np.zeros((*shape, rule.block), dtype=np.int64),
        loads=batch.records(pool.ranks, batch.LOAD),
        calm=batch.records(each, batch.CALM),
        passed=np.zeros((pool.instances, rule.stages)),
        rounds=np.zeros((pool.instances, batch.ROUNDS, rule.stages, rule.stages + 1)),
        following=np.array([arriving, requests, arriving], dtype=np.int64),
        news=np.zeros(1, dtype=np.int64),
    )
