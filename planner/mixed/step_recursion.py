"""Steps of many aggregated instances at once, prompts and requests in decode.

An instance's steps follow from one another: a step takes of every DP rank what has come there by then, first come first
served, up to the room that the budget leaves beside the running requests; all ranks leave it together, and the slowest
decides how long it lasts. Prompts are dealt over the ranks in turn. The rule is that of ``runtime.simulate.mixed``,
prompt by prompt; what is averaged is how the tokens of an answer lengthen steps (``mixed.decoding``), and of steps in
a row without prompts each is taken to last as the first.

Prompts of a rank lie behind each other as tokens of one line. What has come and what is computed are places on it, so
that a step needs no loop over prompts; instances that have nothing to do with one another (*lanes*) stand side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.mixed.decoding import Decoding
from planner.queues.machine import Loads
from planner.queues.queueing import Array

Ints = NDArray[np.int64]
_CLOSE = 1e-12
"""An arrival at the very moment of a step's start is in it, rounding apart."""
_IDLE = 0.5
"""Running requests, which begin as a mean, below which there is no step without prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Prompts by lane, arrays [lanes, prompts]: a multiple of the ranks, of which some behind the last come later."""

    arrivals: Array
    """Seconds, not falling."""
    tokens: Array
    """To compute."""
    reused: Array
    """That are there before."""
    lives: Ints
    """Steps of the answer after its first token."""
    begin_seconds: Array
    """When each lane begins, [lanes]."""
    heads: Ints
    """The prompt under way or next on each rank then, counted on that rank; [lanes, ranks]."""
    done: Array
    """What is computed of it, 0 to 1, [lanes, ranks]."""
    first: int
    """The first prompt that is asked for."""
    last: int
    """The one after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What plays the streams, each lane for itself."""

    ranks: int
    room: Callable[[Array], Array]
    """Prompt tokens of a step on a rank, by its running requests."""
    with_prompts: Callable[[Loads, Array, Array], Array]
    """Seconds of steps by (tokens, context, pairs, ended prompts) of a rank and, of all, the mean prompt tokens and the
    running requests."""
    without: Callable[[Array, Array], Array]
    """Seconds of a rank without prompts, by the mean prompt tokens and the running requests of all."""
    pair_tokens: float
    """Prompt tokens that lengthen a step as much as one query-key pair does."""
    token_seconds: float
    """By which one prompt token lengthens a step."""
    held_seconds: float
    """By which one token that running requests hold lengthens it."""
    held_tokens: float
    """Of a running request on average, which the two functions count with."""
    answer_tokens: float
    """Of those, tokens of its answer."""
    running: float
    """Requests in decode at the begin, on all ranks."""
    lives: Ints
    """Steps of answers, [levels], equally likely."""
    most: float
    """Running requests beyond which steps get no longer: they have no place."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of it."""

    ends: Array
    """Seconds at which each prompt that is asked for has its first token, [lanes, asked]."""
    step_seconds: Array
    """Sum over the steps that begin while prompts that are asked for come, [lanes], as are the two below."""
    steps: Array
    prompt_steps: Array


@dataclass(frozen=True, slots=True)
class _Lines:
    """Prompts as places on the line of their rank; flat over [lanes, ranks, prompts and some behind the last]."""

    starts: Array
    """First token of each prompt; infinite behind the last."""
    pairs: Array
    """Query-key pairs before it."""
    reused: Array
    keys: Array
    """Arrivals, each lane behind the one before it."""
    apart: float
    """By how much."""

    @classmethod
    def of(cls, streams: Streams, ranks: int) -> "_Lines":
        """Lay the prompts of each rank behind each other."""
        lanes, prompts = streams.tokens.shape
        tokens, reused = (
            each.reshape(lanes, prompts // ranks, ranks).transpose(0, 2, 1) for each in (streams.tokens, streams.reused)
        )
        none = np.zeros((lanes, ranks, 1))
        starts = np.concatenate([none, np.cumsum(tokens, axis=-1)], axis=-1)
        pairs = np.concatenate([none, np.cumsum(tokens * (reused + (tokens + 1) / 2), axis=-1), none], axis=-1)
        apart = float(streams.arrivals.max()) + 1.0
        return cls(
            starts=np.concatenate([starts, none + np.inf], axis=-1).ravel(),
            pairs=pairs.ravel(),
            reused=np.concatenate([reused, none, none], axis=-1).ravel(),
            keys=(streams.arrivals + apart * np.arange(lanes)[:, None]).ravel(),
            apart=apart,
        )


class _Progress:
    """Where lanes stand, arrays [lanes] and [lanes, ranks]; rows are ranks of all lanes in turn."""

    def __init__(self, lines: _Lines, streams: Streams, length: int) -> None:
        lanes, ranks = streams.heads.shape
        self.lanes, self.rows = np.arange(lanes), np.arange(lanes * ranks).reshape(lanes, ranks)
        self.seconds = streams.begin_seconds.copy()
        self.begins = np.arange(lanes * ranks).reshape(lanes, ranks) * length
        self.heads = self.begins + streams.heads
        self.start, self.following = lines.starts[self.heads], lines.starts[self.heads + 1]
        self.before, self.reused = lines.pairs[self.heads], lines.reused[self.heads]
        into = np.floor(streams.done * (self.following - self.start))
        self.done = self.start + into
        self.pairs = self.before + into * (self.reused + (into + 1) / 2)

    def keep(self, left: Ints) -> None:
        """Go on with some of the lanes."""
        for name, value in vars(self).items():
            setattr(self, name, value[left])

    def advance(self, lines: _Lines, takes: Array) -> tuple[Loads, Ints]:
        """Compute ``takes`` tokens more; return the loads and the flat places of prompts that it ends."""
        context = self.done - self.start + self.reused
        done = self.done + takes
        ended, finished = [], np.flatnonzero(done >= self.following)
        counts = np.zeros(done.size)
        while finished.size:
            heads = self.heads.ravel()[finished]
            ended.append(heads)
            counts[finished] += 1
            heads = heads + 1
            for name, source in (("start", lines.starts), ("before", lines.pairs), ("reused", lines.reused)):
                getattr(self, name).reshape(-1)[finished] = source[heads]
            self.heads.reshape(-1)[finished] = heads
            following = lines.starts[heads + 1]
            self.following.reshape(-1)[finished] = following
            further = done.ravel()[finished] >= following
            finished = finished[further]
        into = done - self.start
        pairs = self.before + into * (self.reused + (into + 1) / 2)
        added = pairs - self.pairs
        self.done, self.pairs = done, pairs
        return (takes, context, added, counts.reshape(done.shape)), np.concatenate([*ended, np.zeros(0, np.int64)])


def play(instance: Instance, streams: Streams) -> Played:
    """Run every lane from its first prompt until the last that is asked for has its first token."""
    lanes, prompts = streams.tokens.shape
    ranks, length = instance.ranks, prompts // instance.ranks + 2
    lines = _Lines.of(streams, ranks)
    now = _Progress(lines, streams, length)
    opens, closes = streams.arrivals[:, streams.first], streams.arrivals[:, streams.last - 1]
    asked = -(-(streams.last - np.arange(ranks)) // ranks)  # prompts of a rank up to the last that is asked for
    sums, later = np.zeros((3, lanes)), ranks - 1 - np.arange(ranks)
    decoding = Decoding(instance.running / ranks, instance.held_tokens, instance.lives, lanes * ranks)
    ends, lives = np.full(lanes * ranks * length, np.nan), streams.lives.ravel()
    kept = (streams.tokens + streams.reused).ravel()
    while now.lanes.size:
        reached = lines.keys.searchsorted(now.seconds * (1 + _CLOSE) + lines.apart * now.lanes, side="right")
        reached = np.minimum(reached, (now.lanes + 1) * prompts)
        came = (reached - now.lanes * prompts)[:, None]
        come = lines.starts.take(now.begins + (came + later) // ranks)  # of each rank, every so many-th
        on_ranks, held = decoding.held[:, now.rows]
        running = np.minimum(on_ranks.sum(axis=1), instance.most)
        takes = np.minimum(come - now.done, instance.room(on_ranks))
        loads, ended = now.advance(lines, takes)
        tokens = takes.sum(axis=1)
        more = held - instance.held_tokens / ranks * running[:, None]
        lasts, steps = _seconds(instance, loads, running, more), np.ones(now.lanes.size, dtype=np.int64)
        none = np.flatnonzero(tokens <= 0)
        if none.size:
            until = lines.keys[np.minimum(reached[none], lines.keys.size - 1)] - lines.apart * now.lanes[none]
            until = np.maximum(until - now.seconds[none], 0.0)
            needed = np.clip(np.ceil(until / lasts[none] * (1 - _CLOSE)), 1.0, decoding.most_steps)
            paused = running[none] < _IDLE
            steps[none] = np.where(paused, 0, needed)
            lasts[none] = np.where(paused, until, lasts[none] * needed)
        counted = (now.seconds >= opens[now.lanes]) & (now.seconds < closes[now.lanes])
        sums[:, now.lanes] += np.stack([lasts * (steps > 0), steps, tokens > 0]) * counted
        now.seconds = now.seconds + lasts
        decoding.advance(now.rows.ravel(), np.repeat(steps, ranks))
        if ended.size:
            row, place = ended // length, ended % length
            ends[ended] = now.seconds[np.searchsorted(now.lanes, row // ranks)]
            prompt = row // ranks * prompts + place * ranks + row % ranks
            decoding.join(row, lives[prompt], instance.answer_tokens + kept[prompt])
        left = (now.heads - now.begins < asked).any(axis=1)
        if np.count_nonzero(left) < left.size:
            now.keep(np.flatnonzero(left))
    found = ends.reshape(lanes, ranks, length)[:, :, : length - 2].transpose(0, 2, 1).reshape(lanes, prompts)
    return Played(found[:, streams.first : streams.last], *sums)


def _seconds(instance: Instance, loads: Loads, running: Array, more: Array) -> Array:
    """Durations, [lanes]: of the slowest rank, the one whose tokens and pairs, and what its requests hold, weigh most.

    Args: ``more``: what running requests hold beyond the mean, [lanes, ranks].
    """
    mean = loads[0].sum(axis=1) / instance.ranks
    weights = (loads[0] + instance.pair_tokens * loads[2]) * instance.token_seconds + instance.held_seconds * more
    rows = weights.argmax(axis=1)
    rows += np.arange(rows.size) * instance.ranks
    takes, context, pairs, finishing = (load.ravel().take(rows) for load in loads)
    found: Array = instance.held_seconds * more.ravel().take(rows)
    busy, bare = np.flatnonzero(takes > 0), np.flatnonzero(takes <= 0)
    if busy.size:
        load = (takes[busy], context[busy], pairs[busy], finishing[busy])
        found[busy] += instance.with_prompts(load, mean[busy], running[busy])
    if bare.size:
        found[bare] += instance.without(mean[bare], running[bare])
    return found
