"""Separate prefill and decode pools, by what their steps cost, under a stream: passes, then links, then iterations."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ground.arrays import Bools, Floats, Ints
from planner.loops.arrays import TableArrays
from planner.manifest.terms import StepCost
from planner.serving.decode import Decoded, DecodePool, DecodeRequests, play_decode
from planner.serving.prefill import Policy, Prefilled, PrefillPool, play_prefill
from planner.serving.streams import Stream
from planner.serving.tables import Loads, step_table

if TYPE_CHECKING:
    from planner.manifest.schema import Role


def prefill_pool(
    cost: StepCost,
    *,
    ranks: int,
    budget_tokens: int,
    longest_prompt: float,
    microbatches: int,
    instances: int = 1,
    policy: Policy = "round_robin",
) -> PrefillPool:
    """Return prefill instances by what a step costs, ready to be played with prompts of so many tokens at most."""
    loads = Loads(ranks=ranks, budget_tokens=budget_tokens, longest_prompt=longest_prompt, microbatches=microbatches)
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
    reserved_tokens: Callable[[Floats], Floats]
    """KV that is set aside in decode for requests of so many tokens in all."""
    links: int = 1
    """That a transfer takes at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """What became of every request of a stream, [requests]; TPOT is not a number where an answer has one token."""

    ttft_seconds: Floats
    tpot_seconds: Floats
    e2e_seconds: Floats
    answer_tokens: Floats
    end_seconds: float
    """When the last answer is out, from 0 on as arrivals are counted."""
    busy: "dict[Role, float]"
    """Share of the time until then in which a role's instances work."""
    link_wait_seconds: Floats | None = None
    """From a place in decode until its links were free, of requests that cross; None where none does."""
    link_utilisation: "dict[Role, float] | None" = None
    """Share of the time in which a link of each role carries KV."""


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


def play_separate(pools: SeparatePools, stream: Stream) -> Served:
    """Return what happens to every request; answers of one token never reach decode."""
    prefilled, decode = play_prefill(pools.prefill, stream), pools.decode
    sent = np.flatnonzero(stream.answer_tokens > 1)
    left, decoded = prefilled.first_token_seconds.copy(), None
    if sent.size:
        decoded = _decode(pools, stream, prefilled, sent)
        left[sent] = decoded.left_seconds
    busy = prefilled.busy_seconds, decoded.busy_seconds if decoded else 0.0
    found = served(
        stream,
        prefilled.first_token_seconds,
        left,
        {"prefill": (busy[0], pools.prefill.instances), "decode": (busy[1], decode.instances)},
    )
    if decoded is None:
        return found
    crossing = float(pools.transfer_seconds(stream.prompt_tokens[sent].astype(np.float64)).sum()) / found.end_seconds
    channels = decode.source_groups * decode.source_channels, decode.instances * decode.ranks * decode.target_channels
    return replace(
        found,
        link_wait_seconds=decoded.link_wait_seconds,
        link_utilisation={"prefill": crossing / channels[0], "decode": crossing / channels[1]},
    )


def _decode(pools: SeparatePools, stream: Stream, prefilled: Prefilled, sent: Ints) -> Decoded:
    prompts, answers = stream.prompt_tokens[sent].astype(np.float64), stream.answer_tokens[sent]
    return play_decode(
        pools.decode,
        DecodeRequests(
            ready_seconds=prefilled.first_token_seconds[sent],
            cached_tokens=prompts,
            answer_tokens=answers - 1,
            reserved_tokens=pools.reserved_tokens(prompts + answers),
            transfer_seconds=pools.transfer_seconds(prompts),
            source=prefilled.origin[sent],
        ),
    )
