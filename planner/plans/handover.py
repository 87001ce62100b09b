"""What lies between a plan's prefill and decode pools: KV links, and decode fed by prefill where answers are short."""

from dataclasses import replace
from functools import partial

from ground.identity import Kept, Same
from planner.costs.cache import model_cache
from planner.costs.memory import granted_tokens
from planner.instances.handover import Handover
from planner.instances.kv_links import KvLinks, LinkState, Sink, Source, link_state, links_of, mean_wait
from planner.instances.operating import DecodeServer, PrefillServer
from planner.question import Question
from planner.serving.capacity import Capacity
from planner.serving.decode import SeparatePools, prefill_pool
from planner.serving.played import MANY, Played

_WAITS = Kept[float](most=8)  # a plan is told over few requests and over many at the same rate

Pair = tuple[tuple[PrefillServer, int], tuple[DecodeServer, int]]  # (server, instances) of prefill and of decode


def links_between(question: Question, pair: Pair) -> KvLinks:
    """Return the KV links between two pools."""
    (first, first_count), (second, second_count) = pair
    source, target = first.candidate.row.strategy, second.candidate.row.strategy
    return links_of(question, model_cache(first.candidate.deployment), (source, first_count), (target, second_count))


def state_of_links(question: Question, pair: Pair, rate_per_second: float, requests: int = MANY) -> LinkState | None:
    """Return the state of the KV links between two pools; None beyond their saturation.

    Args: ``requests``: see ``Handover.state``.
    """
    (first, first_count), (second, second_count) = pair
    links, each, workload = links_between(question, pair), question.requests_each, question.decoded
    rate, source, sink = rate_per_second * each, Source(first.passes, first_count), Sink(second.queue, second_count)
    if second.handover is None:
        key = Same(question), Same(first.candidate), Same(second.candidate), first_count, second_count, rate
        wait_seconds = partial(_WAITS.of, key, partial(mean_wait, links, rate, workload, source, sink))
    else:
        own = rate_per_second / second_count, second_count, requests
        wait_seconds = partial(second.handover.link_wait_seconds, *own)
    state = link_state(links, rate, workload, wait_seconds)
    most = {role: carried / each for role, carried in state.most_per_second.items()} if state else {}
    return state and state._replace(most_per_second=most)


def separate_pools_of(question: Question, pair: Pair) -> SeparatePools:
    """Return two pools in the form that is played."""
    (first, first_count), (second, second_count) = pair
    links, strategy = links_between(question, pair), first.candidate.row.strategy
    longest = max((tokens for tokens, _, _ in question.workload.prompts or ()), default=first.budget_tokens)
    return SeparatePools(
        prefill=prefill_pool(
            first.cost,
            ranks=strategy.attention_dp,
            budget_tokens=first.budget_tokens,
            longest_prompt=float(longest),
            microbatches=first.candidate.microbatches,
            instances=first_count,
        ),
        decode=replace(
            second.pool,
            instances=second_count,
            source_groups=links.prefill.groups,
            source_channels=links.channels(links.prefill),
            target_channels=links.channels(links.decode),
            latency_seconds=links.latency_seconds,
        ),
        transfer_seconds=links.held_seconds,
        reserved_tokens=partial(granted_tokens, second.candidate.deployment),
    )


def fed(question: Question, pair: Pair) -> DecodeServer:
    """Return the decode instance of a pair, fed by its prefill instances where answers are short."""
    (first, first_count), (second, second_count) = pair
    if question.offline is not None or question.queueing == "mixserve" or second.handover is not None:
        return second
    pools, context = partial(separate_pools_of, question, pair), float(question.model.max_position)
    source, sink = Source(first.passes, first_count), Sink(second.queue, second_count)
    handover = Handover.of(pools, question.workload, source, sink, context)
    return second if handover is None else replace(second, handover=handover)  # as it is, with what it has solved


def both_played(
    prefill: Played | None, decode: tuple[Capacity, int], planned: tuple[float, float, float], asked_requests: int
) -> Played | None:
    """Return the sample and intervals of a plan whose decode and maybe prefill were played; None where none decides.

    Args: ``decode``: what one of so many instances carries; ``planned``: the plan's rate, its TTFT at the percentile,
    which is exact where prefill was not played, and the rate that prefill carries; ``asked_requests`` of the streams.
    """
    (found, instances), (rate, ttft_seconds, carried) = decode, planned
    low, high = found.low * instances, max(min(found.high * instances, carried), rate)
    if low >= high:  # prefill binds, or the whole interval of the sample keeps the limit
        return prefill
    requests = found.trial.outcome.tpot_seconds.size
    if prefill is None:
        return Played(requests, (ttft_seconds, ttft_seconds), (low, high), asked_requests=asked_requests)
    ends = (min(low, prefill.requests_per_second[0]), min(high, prefill.requests_per_second[1]))
    return prefill._replace(requests=min(requests, prefill.requests), requests_per_second=ends)
