"""Steps of an aggregated instance: what they take, by the requests that run and the prompt tokens that wait.

Continuous batching with chunked prefill: a step carries one token (with drafts several) of every running request and,
first come first served, as many waiting prompt tokens as its budget leaves, on each DP rank for itself. All ranks leave
a step together.

Ref: Sarathi-Serve (arXiv 2403.02310) section 4, whose rule vLLM's V1 scheduler follows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.costs.latency import deviations
from planner.instances.aggregated import Aggregate as PlayedAggregate
from planner.instances.decode_candidates import kv_of_busiest
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepCost, StepLoad
from planner.queues.machine import Loads
from planner.queues.prompts import Prompts, prompts_of
from planner.queues.queueing import Array
from planner.workload import Lengths, Workload, running_kv_tokens

_RUNNING_NODES, _CHUNK_NODES, _SPREAD_NODES = 8, 9, 3
_FULL = 0.9995
_CONTEXTS = 96
"""Steps in which what is cached before a part is told apart."""


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """One aggregated instance and its traffic; ``budget_tokens`` and ``most_requests`` are of one DP rank."""

    cost: StepCost
    workload: Workload
    ranks: int
    budget_tokens: float
    most_requests: int
    microbatches: int = 1
    accepted: float = 1.0
    """Tokens per running request and step, above 1 with MTP."""

    @property
    def most(self) -> float:
        """Requests that the instance holds at most, those in prefill included."""
        return float(self.ranks * self.most_requests)

    @property
    def iterations(self) -> Lengths:
        """Steps of one request after its first token."""
        answer = self.workload.output_tokens
        return Lengths(mean=max(answer.mean - 1, 1.0) / self.accepted, squared_cv=answer.squared_cv)

    @cached_property
    def prompts(self) -> Prompts:
        """Kinds of prompts."""
        return prompts_of(self.workload)

    @cached_property
    def new_tokens(self) -> Array:
        """Tokens to compute of each kind of prompt, at least one; [kinds]."""
        return np.maximum(self.prompts.tokens - self.prompts.reused, 1.0)

    @cached_property
    def mean_new_tokens(self) -> float:
        """Tokens to compute of a prompt, on average."""
        return float(self.new_tokens @ self.prompts.weights)

    @cached_property
    def pairs_per_token(self) -> float:
        """Query-key pairs of a prompt token, averaged over all tokens of all prompts."""
        pairs = self.new_tokens * (self.prompts.reused + (self.new_tokens + 1) / 2)
        return float(pairs @ self.prompts.weights) / self.mean_new_tokens

    def room(self, running: Array) -> Array:
        """Prompt tokens that a step takes on one rank beside ``running`` requests in all; at least one."""
        return np.maximum(self.budget_tokens - running / self.ranks * self.cost.queries_per_sequence, 1.0)


def recorded(played: PlayedAggregate) -> Aggregate:
    """Return an instance as the recursion over a trace sees it."""
    return Aggregate(
        cost=played.cost,
        workload=played.workload,
        ranks=played.ranks,
        budget_tokens=float(played.budget_tokens),
        most_requests=played.most_requests,
        microbatches=played.microbatches,
        accepted=played.accepted,
    )


def step_seconds(aggregate: Aggregate, running: Array, busiest: Array, total: Array) -> Array:
    """Seconds of steps with ``running`` requests in all and prompt tokens: on the busiest rank, and of all ranks.

    The arguments broadcast. The step lasts as long as its slowest rank: that with most prompt tokens, or that with most
    cached tokens; experts and exchanges follow the mean rank.
    """
    running, busiest, total = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (running, busiest, total)))
    context, pairs = _prompt_context(aggregate, running, busiest, total / np.maximum(busiest, 1e-9))
    load = (busiest, context, pairs, busiest / aggregate.mean_new_tokens)
    found = loaded_seconds(aggregate, running, load, total / aggregate.ranks)
    return (
        found if aggregate.ranks == 1 else np.maximum(found, bare_seconds(aggregate, running, total / aggregate.ranks))
    )


def loaded_seconds(
    aggregate: Aggregate, running: Array, load: Loads, mean_tokens: Array, kv_tokens: Array | None = None
) -> Array:
    """Seconds of a rank with its share of ``running`` requests and prompts (tokens, context, pairs, ended prompts).

    Args: ``mean_tokens`` of prompts on all ranks, which experts and exchanges follow; ``kv_tokens`` of the rank's
        running requests, where they are not as many as is usual; all of one shape.
    """
    each = running / aggregate.ranks
    tokens, context, pairs, finishing = load
    step = StepLoad(
        decode_sequences=each,
        decode_kv_tokens=each * running_kv_tokens(aggregate.workload).mean_tokens if kv_tokens is None else kv_tokens,
        prefill_tokens=tokens,
        prefill_context_tokens=context,
        prefill_pairs=pairs,
        finishing_prompts=finishing,
        mean_tokens=each * aggregate.cost.queries_per_sequence + mean_tokens,
    )
    return _fastest(aggregate, step, tokens + _fullest(aggregate, running) >= 2)


def part_slopes(seconds: Callable[[float, float], float], room: float, depth: float) -> tuple[float, float]:
    """Seconds that a token and a query-key pair add to a part of a prompt, about where parts are usual.

    Args: ``seconds`` by tokens and pairs; ``room`` for prompt tokens in a step; ``depth``, what parts usually read.
    """
    less, usual, deeper = (
        seconds(0.8 * room, room * depth),
        seconds(room, room * depth),
        seconds(room, 2 * room * depth),
    )
    return (usual - less) / (0.2 * room), (deeper - usual) / (room * depth)


def bare_seconds(aggregate: Aggregate, running: Array, mean_tokens: Array) -> Array:
    """Seconds of the rank with most cached tokens of ``running`` requests, without prompts of its own."""
    fullest = _fullest(aggregate, running)
    held = kv_of_busiest(deviations(aggregate.ranks), fullest, running_kv_tokens(aggregate.workload))
    mean = running / aggregate.ranks * aggregate.cost.queries_per_sequence + mean_tokens
    return _fastest(
        aggregate, StepLoad(decode_sequences=fullest, decode_kv_tokens=held, mean_tokens=mean), fullest >= 2
    )


def without_prompts_seconds(aggregate: Aggregate, running: Array, mean_tokens: Array) -> Array:
    """Seconds of a rank with its share of ``running`` requests and no prompts, while all ranks have ``mean_tokens``."""
    none = np.zeros(mean_tokens.shape)
    return loaded_seconds(aggregate, running, (none, none, none, none), mean_tokens)


def _fullest(aggregate: Aggregate, running: Array) -> Array:
    """Requests of the fullest rank: at least one where any run."""
    return np.maximum(running / aggregate.ranks, np.minimum(running, 1.0))


@dataclass(frozen=True)
class StepTable:
    """``step_seconds`` on a grid, linear between its nodes: for queues, which ask for thousands of steps."""

    aggregate: Aggregate

    @cached_property
    def running(self) -> Array:
        """Numbers of running requests, [running]."""
        most = self.aggregate.most
        return np.append(0.0, np.geomspace(min(1.0, most / 2), most, _RUNNING_NODES - 1))

    @cached_property
    def chunks(self) -> Array:
        """Prompt tokens of the busiest rank over its room, [chunks]: close at the small end, and just below full."""
        return np.concatenate([[1e-4], np.linspace(0.0, 1.0, _CHUNK_NODES)[1:-1] ** 2, [0.999, 1.0]])

    @cached_property
    def spreads(self) -> Array:
        """Prompt tokens of all ranks over those of the busiest, [spreads]."""
        ranks = self.aggregate.ranks
        return np.geomspace(1.0, ranks, _SPREAD_NODES) if ranks > 1 else np.ones(1)

    @cached_property
    def alone(self) -> Array:
        """Seconds of steps without prompts, [running]; nothing runs in the first."""
        return self._nodes[:, 0, 0]

    @cached_property
    def mixed(self) -> Array:
        """Seconds of steps with prompts, [running, chunks, spreads]."""
        return self._nodes[:, 1:]

    @cached_property
    def _nodes(self) -> Array:
        """Seconds of steps with no prompt and with all ``chunks``, [running, 1 + chunks, spreads]."""
        chunks = np.append(0.0, self.chunks)[:, None]
        busiest = self.aggregate.room(self.running)[:, None, None] * chunks
        return step_seconds(self.aggregate, self.running[:, None, None], busiest, busiest * self.spreads)

    def even(self, parts: Array) -> tuple[Array, Array]:
        """(seconds, prompt tokens of all ranks) of steps that fill such parts of the room on every rank, [running,
        parts].
        """
        row, below = _between(self.chunks, parts)
        full = self.mixed[:, :, -1]
        seconds = full[:, row] * (1 - below) + full[:, row + 1] * below
        tokens = self.aggregate.room(self.running)[:, None] * parts * self.aggregate.ranks
        return np.where(parts > 0, seconds, self.alone[:, None]), tokens

    def seconds(self, running: float, busiest: Array, total: Array) -> Array:
        """Seconds of steps with so many running requests and prompt tokens, the shape of ``busiest``."""
        place = float(np.interp(running, self.running, np.arange(self.running.size)))
        low = min(int(place), self.running.size - 2)
        part = place - low
        alone = float(self.alone[low] * (1 - part) + self.alone[low + 1] * part)
        plane = self.mixed[low] * (1 - part) + self.mixed[low + 1] * part  # [chunks, spreads]
        row, below = _between(self.chunks, busiest / self.aggregate.room(np.array(running)))
        column, left = _between(self.spreads, total / np.maximum(busiest, 1e-9))
        near, far = (
            plane[row + step, column] * (1 - left)
            + plane[row + step, np.minimum(column + 1, self.spreads.size - 1)] * left
            for step in (0, 1)
        )
        return np.where(busiest > 0, near * (1 - below) + far * below, alone)


def _between(nodes: Array, values: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the node at or below each value and how far beyond it the value lies, from 0 to 1."""
    if nodes.size == 1:
        return np.zeros(values.shape, dtype=np.intp), np.zeros(values.shape)
    place = np.interp(values, nodes, np.arange(float(nodes.size)))
    low = np.minimum(place.astype(np.intp), nodes.size - 2)
    return low, place - low


def _fastest(aggregate: Aggregate, load: StepLoad, splittable: NDArray[np.bool_]) -> Array:
    shape = splittable.shape
    single = np.broadcast_to(np.asarray(evaluate(aggregate.cost, load, 1).seconds, dtype=np.float64), shape)
    if aggregate.microbatches < 2 or not aggregate.cost.moe_layers:
        return single
    double = np.broadcast_to(np.asarray(evaluate(aggregate.cost, load, 2).seconds, dtype=np.float64), shape)
    return np.where(splittable, np.minimum(single, double), single)


def _prompt_context(aggregate: Aggregate, running: Array, chunk: Array, busy: Array) -> tuple[Array, Array]:
    """(cached tokens that a chunk of prompts attends to, its query-key pairs), on average.

    What is cached was reused or is an earlier part of the same prompt. A chunk that fills the room is a part of a long
    prompt with others behind it; a smaller one is whole prompts, or the last part of a long one. One rank takes what
    waits, so its chunks hold the tokens of all prompts alike; of several ranks the slowest has one prompt, and of those
    with a full chunk, which ``busy`` of them are, it is the one with most before it.
    """
    prompts, new, weights = aggregate.prompts, aggregate.new_tokens, aggregate.prompts.weights
    room = aggregate.room(running)[..., None]  # [..., kinds]
    long = new > room
    earlier = np.maximum(np.ceil(new / room) - 2, 0.0) * room / 2  # before a part that others follow
    reused = float(prompts.reused @ weights)
    before = np.where(long, np.maximum(new - chunk[..., None], 0.0), 0.0) @ weights
    full_chunk = chunk >= room[..., 0] * _FULL
    if aggregate.ranks == 1:
        share = weights * new / aggregate.mean_new_tokens
        full = np.where(long, prompts.reused + earlier, prompts.reused * room / new) @ share
        several = np.maximum(chunk / aggregate.mean_new_tokens, 1.0)
        context = np.where(full_chunk, full, before + reused * several)
        return np.where(chunk > 0, context, 0.0), chunk * aggregate.pairs_per_token
    followed = np.where(long, np.ceil(new / room) - 1, 0.0)  # parts that fill the room
    most = _most_before(aggregate, room, followed, np.clip(busy, 1.0, aggregate.ranks))
    context = np.where(full_chunk & (followed @ weights > 0), most, before + reused)
    return np.where(chunk > 0, context, 0.0), chunk * (context + (chunk + 1) / 2)


def _most_before(aggregate: Aggregate, room: Array, parts: Array, busy: Array) -> Array:
    """Mean of the most cached tokens before ``busy`` full parts of any prompts, [...]: the integral of 1 - F^busy.

    F is the distribution over full parts, of which prompts have ``parts`` [..., kinds], one room [..., 1] after the
    other.
    """
    prompts, weights = aggregate.prompts, aggregate.prompts.weights
    ends = np.linspace(0.0, float((prompts.reused + aggregate.new_tokens).max()), _CONTEXTS + 1)
    middles = (ends[1:] + ends[:-1]) / 2
    rooms, where = np.unique(room[..., 0], return_inverse=True)
    kept = parts.reshape(-1, parts.shape[-1])[np.unique(where.ravel(), return_index=True)[1]]  # [rooms, kinds]
    begun = np.floor((middles[:, None] - prompts.reused) / rooms[:, None, None]) + 1
    below = np.clip(begun, 0.0, kept[:, None, :]) @ weights / np.maximum(kept @ weights, 1e-12)[:, None]
    powers = np.minimum(below, 1.0)[where.reshape(room.shape[:-1])] ** busy[..., None]
    return np.asarray((1 - powers).sum(axis=-1) * ends[1])
