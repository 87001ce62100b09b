"""A pool of decode instances under requests whose prompts end at known times, and the links that bring their KV.

The rule: a request takes room on a DP rank when its prompt ends, first come first served: the rank with least KV set
aside, with fewest requests, or whose turn is longest ago, among those with a free slot and enough KV. Its KV then
crosses the links of both ends, each first come first served, and it joins the next iteration. All ranks of an instance
end an iteration together; it lasts as long as the slowest rank takes. Every running request advances by one iteration,
and leaves with the one that gives its last token.

Ref: xDeepServe (arXiv 2508.02520) section 4.3, least KV; CloudMatrix384 (arXiv 2506.12708) section 4.3.3, links.

Separate prefill and decode pools are played one after the other, by what their steps cost, under a stream: passes,
then links, then iterations.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ground.arrays import Bools, Floats, Ints
from planner.loops.arrays import TableArrays, joined, kept
from planner.manifest.drafts import Acceptance, drawn_iterations
from planner.manifest.terms import StepCost
from planner.serving.prefill import Policy, Prefilled, PrefillPool, play_prefill
from planner.serving.streams import Stream
from planner.serving.tables import Loads, step_table

if TYPE_CHECKING:
    from planner.manifest.schema import Role


RankPolicy = Literal["least_kv", "least_requests", "round_robin"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodePool:
    """Instances that are alike, their links, and how requests are placed."""

    times: TableArrays
    ranks: int
    slots: int  # requests of a DP rank
    capacity_tokens: float  # KV of a DP rank
    instances: int = 1
    policy: RankPolicy = "least_kv"
    drafts: int = 0
    acceptance: Acceptance = 0.0
    source_groups: int = 1  # attention groups of the prefill pool
    source_channels: int = 1  # transfers that a prefill group sends at once
    target_channels: int = 1  # transfers that a decode rank gets at once
    latency_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeRequests:
    """Requests that are handed over, [requests] each, in any order."""

    ready_seconds: Floats  # when the first token is out
    cached_tokens: Floats  # KV with which decode begins
    answer_tokens: Ints  # tokens after the first, at least 1
    reserved_tokens: Floats  # KV that is set aside
    transfer_seconds: Floats  # for which the transfer keeps its links
    source: Ints  # prefill group that holds the KV
    iterations: Ints | None = None  # that each takes; None: as many as are drawn with the pool's drafts

    def select(self, chosen: Ints) -> "DecodeRequests":
        """Return some of the requests."""
        held: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        found: dict[str, Any] = {name: None if column is None else column[chosen] for name, column in held.items()}
        return DecodeRequests(**found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """What became of every request, [requests]."""

    left_seconds: Floats
    there_seconds: Floats  # when its KV is there
    link_wait_seconds: Floats  # from its place in decode until its links were free
    busy_seconds: float  # of all instances


def play_decode(pool: DecodePool, requests: DecodeRequests) -> Decoded:
    """Return when every request has its last token."""
    run, order = DecodeRun(pool), np.argsort(requests.ready_seconds, kind="stable")
    gone = run.play(requests.select(order), np.inf, order)
    back = np.argsort(gone.number)
    return Decoded(
        left_seconds=gone.left_seconds[back],
        there_seconds=gone.there_seconds[back],
        link_wait_seconds=gone.link_wait_seconds[back],
        busy_seconds=run.busy_seconds(),
    )


class Gone(NamedTuple):
    """Requests that have all their tokens, in the order in which they were taken."""

    number: Ints  # of the request among all that were taken
    left_seconds: Floats
    there_seconds: Floats
    link_wait_seconds: Floats
    rank: Ints  # counted over all instances


class DecodeRun:
    """A pool that is played part by part: what has not left is all that it keeps between them."""

    def __init__(self, pool: DecodePool) -> None:
        """Begin with empty instances."""
        from planner.loops import decode_loop as loop

        self.pool, self._loop = pool, loop
        each, shape = pool.instances, (pool.instances, pool.ranks)
        self._ranks = loop.Ranks(
            taken=np.zeros(shape, dtype=np.int64),
            reserved=np.zeros(shape),
            running=np.zeros(shape, dtype=np.int64),
            cached=np.zeros(shape),
            growth=np.zeros(shape),
            turns=np.zeros(shape, dtype=np.int64),
        )
        self._clocks = loop.Clocks(
            free=np.full(each, np.inf),
            start=np.zeros(each),
            first=np.zeros(each),
            more=np.zeros(each),
            steps=np.zeros(each, dtype=np.int64),
            done=np.zeros(each, dtype=np.int64),
            total=np.zeros(each, dtype=np.int64),
            coming=np.full(each, -1),
            leaving=np.full((each, 2), -1),
            busy=np.zeros(each),
            turn=np.zeros(1, dtype=np.int64),
        )
        self._links = loop.Links(
            source=np.zeros((pool.source_groups, pool.source_channels)),
            target=np.zeros((each * pool.ranks, pool.target_channels)),
            latency=np.array([pool.latency_seconds]),
        )
        none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
        self._jobs = loop.Jobs(*(nothing,) * 3, none, *(nothing,) * 2, *(none,) * 3, *(nothing,) * 3)
        self._numbers, self._come = none, 0

    def busy_seconds(self, until: float = np.inf) -> float:
        """Seconds of all iterations up to a time that is not before the last one played, of all instances."""
        clocks = self._clocks
        under_way = np.isfinite(clocks.free)
        now = np.minimum(clocks.free[under_way], until) - clocks.start[under_way]
        return float(clocks.busy.sum() + np.maximum(now, 0.0).sum())

    def reserved(self) -> tuple[Floats, Ints]:
        """KV tokens that are set aside and requests that are placed, [instances, ranks] each."""
        return self._ranks.reserved, self._ranks.taken

    def under_way(self) -> tuple[Ints, Floats]:
        """Numbers of the requests that have not left, and when their KV is there; infinite without a place yet."""
        return self._numbers, np.where(self._jobs.rank < 0, np.inf, self._jobs.there)

    @property
    def steps(self) -> int:
        """Iterations so far, of all instances."""
        return int(self._clocks.done.sum())

    def play(self, requests: DecodeRequests, until: float, numbers: Ints | None = None) -> Gone:
        """Take requests whose ``ready_seconds`` do not fall, nor below those before, play; return who left by then.

        Args: ``numbers`` that the requests are known by; None counts them from 0 on.
        """
        loop, count = self._loop, requests.ready_seconds.size
        steps, pool = requests.iterations, self.pool
        if steps is None:
            steps = drawn_iterations(requests.answer_tokens, pool.drafts, pool.acceptance, np.random.default_rng(0))
        waiting, nothing = np.full(count, -1), np.zeros(count)
        fresh = loop.Jobs(
            ready=requests.ready_seconds,
            kv=requests.cached_tokens,
            need=requests.reserved_tokens,
            steps=steps,
            growth=requests.answer_tokens / steps,
            held=requests.transfer_seconds,
            source=requests.source,
            behind=waiting,
            rank=waiting,
            there=nothing,
            left=np.full(count, np.inf),
            waited=nothing,
        )
        jobs = joined(self._jobs, fresh)
        numbers = np.append(self._numbers, np.arange(self._come, self._come + count) if numbers is None else numbers)
        self._come += count
        self._widen(int(steps.max(initial=1)) + 1)
        policies = {"least_kv": loop.LEAST_KV, "least_requests": loop.LEAST_REQUESTS, "round_robin": loop.IN_TURN}
        rule = (policies[self.pool.policy], self.pool.slots, float(self.pool.capacity_tokens))
        loop.play(jobs, self._ranks, self._clocks, self._links, rule, self.pool.times, until)
        gone = np.isfinite(jobs.left)
        left, stay = np.flatnonzero(gone), np.flatnonzero(~gone)
        self._jobs = kept(jobs, stay, (self._clocks.coming, self._clocks.leaving))
        self._numbers = numbers[stay]
        return Gone(numbers[left], *(column[left] for column in (jobs.left, jobs.there, jobs.waited, jobs.rank)))

    def _widen(self, span: int) -> None:
        """Make room for answers of so many iterations."""
        old = self._clocks.leaving
        if span <= old.shape[1]:
            return
        wide = np.full((old.shape[0], span), -1)
        for i, slot in np.argwhere(old >= 0).tolist():
            done = int(self._clocks.done[i])
            wide[i, (done + (slot - done) % old.shape[1]) % span] = old[i, slot]
        self._clocks = self._clocks._replace(leaving=wide)


def prefill_pool(
    cost: StepCost,
    *,
    ranks: int,
    budget_tokens: int,
    longest_prompt: float,
    microbatches: int,
    context_tokens: float = 0.0,
    instances: int = 1,
    policy: Policy = "round_robin",
) -> PrefillPool:
    """Return prefill instances by what a step costs, ready to be played with prompts as ``Loads`` bounds them."""
    loads = Loads(
        ranks=ranks,
        budget_tokens=budget_tokens,
        longest_prompt=longest_prompt,
        context_tokens=context_tokens,
        microbatches=microbatches,
    )
    times = step_table(cost, loads)
    return PrefillPool(times=times, ranks=ranks, budget_tokens=budget_tokens, instances=instances, policy=policy)


def iteration_times(
    cost: StepCost, *, ranks: int, slots: int, kv_tokens_per_request: float, microbatches: int
) -> TableArrays:
    """Return the seconds of a decode instance's iterations.

    Args: ``kv_tokens_per_request`` cached of a running one on average, near which iterations are known best.
    """
    loads = Loads(
        ranks=ranks,
        budget_tokens=2,
        longest_prompt=2.0,
        most_running=ranks * slots,
        kv_tokens_per_request=kv_tokens_per_request,
        microbatches=microbatches,
    )
    return step_table(cost, loads)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeparatePools:
    """Both pools, and what a request needs of links and of KV."""

    prefill: PrefillPool
    decode: DecodePool
    transfer_seconds: Callable[[Floats], Floats]
    """Seconds for which the KV of prompts of so many tokens keeps its links."""
    reserved_tokens: Callable[[Floats], Floats]  # KV that is set aside in decode for requests of so many tokens in all
    links: int = 1  # that a transfer takes at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """What became of every request of a stream, [requests]; TPOT is not a number where an answer has one token."""

    ttft_seconds: Floats
    tpot_seconds: Floats
    e2e_seconds: Floats
    answer_tokens: Floats
    end_seconds: float  # when the last answer is out, from 0 on as arrivals are counted
    busy: "dict[Role, float]"  # share of the time until then in which a role's instances work
    link_wait_seconds: Floats | None = None
    """From a place in decode until its links were free, of requests that cross; None where none does."""
    link_utilisation: "dict[Role, float] | None" = None  # share of the time in which a link of each role carries KV


def served(
    stream: Stream, first_seconds: Floats, left_seconds: Floats, busy: "dict[Role, tuple[float, int]]"
) -> Served:
    """Return the latencies of requests by when they have the first and the last token.

    Args: ``busy`` seconds of all of a role's instances, and how many those are.
    """
    after, end = np.where(stream.answer_tokens > 1, stream.answer_tokens - 1.0, np.nan), float(left_seconds.max())
    return Served(
        ttft_seconds=first_seconds - stream.arrival_seconds,
        tpot_seconds=(left_seconds - first_seconds) / after,
        e2e_seconds=left_seconds - stream.arrival_seconds,
        answer_tokens=stream.answer_tokens.astype(np.float64),
        end_seconds=end,
        busy={role: seconds / (instances * end) for role, (seconds, instances) in busy.items()},
    )


def within(ttft: Floats, tpot: Floats, ttft_seconds: float | None, tpot_seconds: float | None) -> Bools:
    """Return which requests keep both limits, [requests]; an answer of one token has no TPOT to miss."""
    kept = np.ones(ttft.size, dtype=bool)
    if ttft_seconds is not None:
        kept &= ttft <= ttft_seconds
    if tpot_seconds is not None:
        kept &= ~(tpot > tpot_seconds)
    return kept


class HandedOver(NamedTuple):
    """What separate pools did with a stream."""

    prefilled: Prefilled
    sent: Ints  # of the stream's requests those with more than one token, which alone reach decode; [sent]
    requests: DecodeRequests | None  # as they are handed over; None where all answers have one token
    decoded: Decoded | None


def hand_over(pools: SeparatePools, stream: Stream) -> HandedOver:
    """Play passes, then links and iterations; answers of one token never reach decode."""
    prefilled, sent = play_prefill(pools.prefill, stream), np.flatnonzero(stream.answer_tokens > 1)
    if not sent.size:
        return HandedOver(prefilled, sent, None, None)
    prompts, answers = stream.prompt_tokens[sent].astype(np.float64), stream.answer_tokens[sent]
    requests = DecodeRequests(
        ready_seconds=prefilled.first_token_seconds[sent],
        cached_tokens=prompts,
        answer_tokens=answers - 1,
        reserved_tokens=pools.reserved_tokens(prompts + answers),
        transfer_seconds=pools.transfer_seconds(prompts),
        source=prefilled.origin[sent],
    )
    return HandedOver(prefilled, sent, requests, play_decode(pools.decode, requests))


def play_separate(pools: SeparatePools, stream: Stream) -> Served:
    """Return what happens to every request."""
    prefilled, sent, requests, decoded = hand_over(pools, stream)
    left, decode = prefilled.first_token_seconds.copy(), pools.decode
    if decoded is not None:
        left[sent] = decoded.left_seconds
    busy = prefilled.busy_seconds, decoded.busy_seconds if decoded else 0.0
    found = served(
        stream,
        prefilled.first_token_seconds,
        left,
        {"prefill": (busy[0], pools.prefill.instances), "decode": (busy[1], decode.instances)},
    )
    if requests is None or decoded is None:
        return found
    crossing = float(requests.transfer_seconds.sum()) / found.end_seconds
    channels = decode.source_groups * decode.source_channels, decode.instances * decode.ranks * decode.target_channels
    return replace(
        found,
        link_wait_seconds=decoded.link_wait_seconds,
        link_utilisation={"prefill": crossing / channels[0], "decode": crossing / channels[1]},
    )
