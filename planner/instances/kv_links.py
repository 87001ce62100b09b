"""KV from prefill to decode: the links of both sides as servers of their own.

A transfer occupies as many links as the narrower of the two attention groups has devices. So a group of n devices sends
or pulls n // links prompts at once over its channels (CloudMatrix384 section 4.3.3 maps decode ranks to them). Each
side serves its transfers first come, first served, and a transfer ends when both sides are done.

The wait for links is played: prompts of one pass end together, and decode slots free up with each iteration, so
transfers come in bursts that no stationary queue models. Passes take as long as those of mean prompts, iterations as
long as with the mean number of running requests, which the decode queue tells. The play is short and plain Python: the
compiled loops of ``planner.serving`` tell the same and take a second to load, which plans of long answers are spared.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from planner.closed_forms.birth_death import DecodeQueue
from planner.closed_forms.bulk_lattice import Passes
from planner.costs.cache import Cache, model_cache
from planner.costs.deployment import Deployment
from planner.manifest.terms import Number
from planner.question import Question, Role
from planner.serving.streams import Stream, decoded_share, prompts_of, stationary
from planner.strategy import Strategy
from planner.workload import Workload

MOST_LINK_UTILISATION = 0.8
"""Highest utilisation of a side's links in a plan: the wait there is two transfers, and soon much more."""
_PLAYED, _PLAYED_MORE, _BUSY = 3_000, 10_000, 0.2
"""Prompts that are played; more where they differ, or links carry KV a fifth of the time. The last two thirds count."""


class LinkSide(NamedTuple):
    """The links of a role: attention groups of all its instances, and devices per group, each with one link."""

    groups: int
    devices: int


class KvLinks(NamedTuple):
    """The links between two pools."""

    prefill: LinkSide
    decode: LinkSide
    link_bytes_per_second: float  # bandwidth of one link, one way
    latency_seconds: float
    cache: Cache  # cache of the whole model, each layer once

    @property
    def width(self) -> int:
        """Links of one transfer."""
        return min(self.prefill.devices, self.decode.devices)

    def channels(self, side: LinkSide) -> int:
        """Concurrent transfers of one group of a side."""
        return side.devices // self.width

    def servers(self, side: LinkSide) -> float:
        """Concurrent transfers of all groups of a side."""
        return side.groups * side.devices / self.width

    @property
    def sides(self) -> tuple[tuple[Role, LinkSide], tuple[Role, LinkSide]]:
        """Both sides with their roles."""
        return ("prefill", self.prefill), ("decode", self.decode)

    def held_seconds(self, prompt_tokens: Floats) -> Floats:
        """Seconds for which prompts of so many tokens occupy their links, [prompts]."""
        rate = self.width * self.link_bytes_per_second
        return np.asarray(self.cache.bytes(prompt_tokens, 1.0) / rate, dtype=np.float64)


class LinkState(NamedTuple):
    """Links at a rate: means over prompts."""

    transfer_seconds: float  # seconds of a transfer alone, with its latency
    wait_seconds: float  # seconds until the links of a transfer are free on both sides
    utilisation: dict[Role, float]  # share of time in which a link of each role carries KV
    most_per_second: dict[Role, float]
    """Requests that the links of each role carry at ``MOST_LINK_UTILISATION``; none where no KV is sent."""
    sent_bytes: float  # bytes sent for one prompt
    width: int  # links of one transfer
    link_bytes_per_second: float

    @property
    def seconds(self) -> float:
        """Seconds from the first token until the KV has arrived."""
        return self.transfer_seconds + self.wait_seconds


class Source(NamedTuple):
    """The prefill side: instances that prompts are dealt to in turn."""

    passes: Passes  # pass times of mean prompts
    instances: int


class Sink(NamedTuple):
    """The decode side: instances whose ranks are chosen by least reserved KV."""

    queue: DecodeQueue  # the queue of an instance
    instances: int


def link_state(
    links: KvLinks, rate_per_second: float, workload: Workload, wait_seconds: Callable[[], float]
) -> LinkState | None:
    """Return transfer and wait at a rate of requests; None where the links of a side are saturated.

    Args: ``wait_seconds`` returns the mean wait; it is asked where links are crossed and not saturated.
    """
    mean, share = _mean_held(links, workload), decoded_share(workload)
    loads = _loads(links, rate_per_second * share, mean)
    if max(loads.values()) >= 1:
        return None
    return LinkState(
        transfer_seconds=mean + links.latency_seconds if mean else 0.0,
        wait_seconds=wait_seconds() if mean else 0.0,
        utilisation=loads,
        most_per_second={
            role: MOST_LINK_UTILISATION * links.servers(side) / (mean * share)
            for role, side in links.sides
            if mean * share
        },
        sent_bytes=mean * links.width * links.link_bytes_per_second,
        width=links.width,
        link_bytes_per_second=links.link_bytes_per_second,
    )


def _mean_held(links: KvLinks, workload: Workload) -> float:
    """Return the mean seconds for which a prompt's KV holds the links; 0 where nothing is decoded."""
    prompts = prompts_of(workload)
    return float(links.held_seconds(prompts.tokens) @ prompts.weights) if workload.decodes else 0.0


def _loads(links: KvLinks, rate_per_second: float, held_seconds: float) -> dict[Role, float]:
    """Return the utilisation of the links of each side at a rate of requests."""
    return {role: rate_per_second * held_seconds / links.servers(side) for role, side in links.sides}


def mean_wait(links: KvLinks, rate_per_second: float, workload: Workload, source: Source, sink: Sink) -> float:
    """Return the mean seconds that prompts wait for links before decode instances with long answers.

    Short answers are played with their passes and iterations instead (``instances.handover``).
    """
    busy = max(_loads(links, rate_per_second, _mean_held(links, workload)).values()) > _BUSY
    stream = stationary(workload, _PLAYED_MORE if busy or workload.varied else _PLAYED).at_rate(rate_per_second)
    ready, group = _ended(stream, source, links.prefill.groups)
    order = np.argsort(ready, kind="stable")
    tokens = stream.answer_tokens[order]
    columns = (
        ready[order],
        group[order],
        links.held_seconds(stream.prompt_tokens[order].astype(np.float64)),
        stream.prompt_tokens[order] + tokens,
        _iterations(sink.queue, tokens - 1),
    )
    room = _Room(
        links.decode.groups, sink, rate_per_second, (float(columns[3].mean()), columns[4]), float(columns[0][-1])
    )
    sources = [[0.0] * links.channels(links.prefill) for _ in range(links.prefill.groups)]
    targets = [[0.0] * links.channels(links.decode) for _ in range(links.decode.groups)]
    waits = []
    for now, origin, held, need, iterations in zip(*(column.tolist() for column in columns), strict=True):
        now, rank = room.take(now, need)
        sends, gets = sources[origin][0], targets[rank][0]
        sends, gets = sends if sends > now else now, gets if gets > now else now
        heapreplace(sources[origin], sends + held)
        heapreplace(targets[rank], gets + held)
        begun = sends if sends > gets else gets
        waits.append(begun - now)
        room.leaves(rank, need, begun + held, iterations)
    return float(np.mean(waits[order.size // 3 :]))


def _iterations(queue: DecodeQueue, tokens: Ints) -> Floats:
    """Return the iterations of answers, [requests]: sums of tokens by chance where drafts may be refused."""
    mean = tokens / queue.tokens_per_iteration
    spread = np.sqrt(mean * queue.tokens_squared_cv)
    return np.maximum(np.random.default_rng(1).normal(mean, spread), 1.0)


def _ended(stream: Stream, source: Source, groups: int) -> tuple[Floats, Ints]:
    """Return when each prompt ends and the group that holds it; a pass takes all that wait, dealt to groups in turn.

    A prompt that is longer than a full pass has some to itself, and shares the last one. Reused tokens take room of a
    pass and none of its time.
    """
    arrivals, tokens = stream.arrival_seconds, stream.prompt_tokens
    computed = tokens - stream.reused_tokens
    passes, ranks = source.passes, groups // source.instances
    few = passes.seconds[:2].tolist()  # from which the line goes on down to an empty pass
    prompts, seconds = [0.0, *passes.prompts.tolist()], [max(2 * few[0] - few[-1], 0.0), *passes.seconds.tolist()]
    most, full = passes.most * (1 + 1e-9), seconds[-1]
    ready, group = np.empty(arrivals.size), np.empty(arrivals.size, dtype=np.int64)
    for instance in range(source.instances):
        own = slice(instance, None, source.instances)
        come: list[float] = arrivals[own].tolist()
        held, total = (
            np.append(0.0, np.cumsum(each[own]) / float(each.mean())).tolist() for each in (tokens, computed)
        )
        ends: list[float] = []
        free, first = 0.0, 0
        while first < len(come):
            alone = [int((each[first + 1] - each[first]) / most) for each in (held, total)]
            begin = max(free, come[first]) + min(alone) * full
            here = bisect_right(come, begin, first)
            fit = bisect_right(held, held[first] + (alone[0] + 1) * most, first) - 1
            last = max(min(here, fit), first + 1)
            free = begin + _between(total[last] - total[first] - min(alone) * most, prompts, seconds)
            ends += [free] * (last - first)
            first = last
        ready[own], group[own] = ends, instance * ranks + np.arange(len(come)) % ranks
    return ready, group


def _between(value: float, axis: Sequence[float], values: Sequence[float]) -> float:
    """Return ``np.interp`` of one number, in a tenth of its time."""
    place = bisect_right(axis, value)
    if place in (0, len(axis)):
        return values[max(place - 1, 0)]
    slope = (values[place] - values[place - 1]) / (axis[place] - axis[place - 1])
    return slope * (value - axis[place - 1]) + values[place - 1]


class _Room:
    """Free room of the decode ranks; the ranks of an instance end their iterations together."""

    def __init__(self, ranks: int, sink: Sink, rate: float, each: tuple[float, Floats], horizon: float) -> None:
        """Begin with the mean number of running requests, of mean KV, each at a random iteration of its own.

        They were dealt as they came, so equal answers leave the ranks in turn. Those that do not leave before the
        ``horizon`` stay for good. Args: ``each``: mean KV, and the iterations of a stream's requests, [requests].
        """
        running, self.seconds = sink.queue.running(rate / sink.instances)
        (need, iterations), random = each, np.random.default_rng(0)
        self._each = ranks // sink.instances
        phase = random.random(sink.instances) * self.seconds
        self._phase: list[float] = phase.tolist()
        self._running, self._most = round(running * sink.instances), sink.queue.most_requests * sink.instances
        whole = random.choice(iterations, self._running, p=iterations / iterations.sum())
        done = random.random(self._running) * whole
        # Equal answers leave in the order in which they came; others lose it within some answers.
        came = np.argsort(-done) if np.ptp(iterations) == 0 else random.permutation(self._running)
        # In turn over the ranks, so that they begin about equally full.
        ranks_of = np.arange(self._running) % ranks
        self._held = np.bincount(ranks_of, minlength=ranks) * need
        left = np.floor((whole - done)[came])
        chosen = np.flatnonzero(left * self.seconds < horizon)
        ends = phase[ranks_of[chosen] // self._each] + left[chosen] * self.seconds
        self._leaving = [(end, rank, need) for end, rank in zip(ends.tolist(), ranks_of[chosen].tolist(), strict=True)]
        heapify(self._leaving)

    def take(self, now: float, need: float) -> tuple[float, int]:
        """Place a request on the rank with least reserved KV; return the time and the rank."""
        leaving, held = self._leaving, self._held
        while leaving and (leaving[0][0] <= now or self._running >= self._most):
            seconds, rank, freed = heappop(leaving)
            now = seconds if seconds > now else now
            held[rank] -= freed
            self._running -= 1
        rank = int(held.argmin())
        held[rank] += need
        self._running += 1
        return now, rank

    def leaves(self, rank: int, need: float, there: float, iterations: float) -> None:
        """Let a request leave so many iterations after its KV has arrived."""
        phase = self._phase[rank // self._each]
        begun = ceil((there - phase) / self.seconds)
        heappush(self._leaving, (phase + (begun + ceil(iterations)) * self.seconds, rank, need))


def kv_plane(question: Question) -> tuple[float, float]:
    """Return bytes per second of one link, one way, and latency: large transfers on the slower machine's KV plane."""
    planes = [machines.hardware.plane(machines.hardware.kv_plane) for machines in (question.prefill, question.decode)]
    rate = min(plane.reached_bytes_per_second for plane in planes)
    return rate, max(plane.latency_seconds.value for plane in planes)


def transfer_seconds(question: Question, deployment: Deployment, links: int | None = None) -> Number:
    """Seconds to send one prompt's KV from prefill to decode over the slower machine's KV plane.

    Each device of the prompt's DP group sends its share over its own link (CloudMatrix384 section 4.3.3), or so many
    ``links`` of them as both groups have.
    """
    if not question.workload.decodes:
        return 0.0
    rate, latency = kv_plane(question)
    sent = float(model_cache(deployment).bytes(question.workload.input_tokens.mean, 1.0))
    return sent / (rate * (links or deployment.strategy.attention_tp)) + latency


def links_of(question: Question, cache: Cache, prefill: tuple[Strategy, int], decode: tuple[Strategy, int]) -> KvLinks:
    """Return the links between prefill and decode instances, each given by strategy and number of instances."""
    rate, latency = kv_plane(question)
    sides = [
        LinkSide(groups=count * strategy.attention_groups, devices=strategy.attention_tp * strategy.pp)
        for strategy, count in (prefill, decode)
    ]
    return KvLinks(
        prefill=sides[0],
        decode=sides[1],
        link_bytes_per_second=rate,
        latency_seconds=latency,
        cache=cache,
    )


def most_linked(question: Question, deployment: Deployment) -> Floats:
    """Online requests per second whose KV the links of one instance carry; [instances] where degrees are arrays.

    Every attention device has its own link on the KV plane, used up to ``MOST_LINK_UTILISATION``.
    """
    prompts, strategy = prompts_of(question.decoded), deployment.strategy
    sent = float(np.asarray(model_cache(deployment).bytes(prompts.tokens, 1.0)) @ prompts.weights)
    links = np.asarray(strategy.attention_groups * strategy.attention_tp * strategy.pp, dtype=np.float64)
    each = sent * question.requests_each * decoded_share(question.decoded)
    return links * (MOST_LINK_UTILISATION * kv_plane(question)[0] / each if each else np.inf)
