"""A pool of prefill instances under a stream, pass by pass.

The rule: an instance begins a pass when the last one has ended and somebody waits. A pass takes who waits, first come
first served, each prompt on the DP rank with most room left of its token budget, until one does not fit. A prompt
within the budget is never split; a longer one takes its rank's whole budget pass after pass, and its last part shares
a pass with others. Reused tokens take room; whole budgets of them take no pass. A pass lasts as long as its slowest
rank, and all first tokens of a pass come out at its end. What a pool brings is loaded before the pass of its prompts;
what full passes compute sooner is computed anew.

Ref: N. T. J. Bailey, On queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954; the recursion is D. V.
Lindley's, Proc. Camb. Phil. Soc. 48:277, 1952.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from planner.loops.arrays import TableArrays, joined, kept
from planner.serving.streams import Stream, parts_of
from planner.workload import Offline

if TYPE_CHECKING:
    from planner.loops import prefill_loop as loop_types

Policy = Literal["round_robin", "least_load"]

_LOOK = 1250  # prompts that are played while one looks whether enough is known

OFFLINE_GUARD, IN_TIME = 0.4, 0.8
"""Shares of the TTFT limit: what an online prompt may come to behind offline ones, and what counts as in time."""


class OfflineBeside(NamedTuple):
    """Offline prompts that passes take besides, as the rule ``slo`` has it (xLLM section 3.1)."""

    offline: Offline  # so many for each prompt of the stream, which come evenly
    ttft_seconds: float  # the limit of the stream's prompts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillPool:
    """Instances that are alike, and who takes a prompt: in turn, or the one that holds fewest prompt tokens."""

    times: TableArrays
    ranks: int
    budget_tokens: int  # of one DP rank and pass
    instances: int = 1
    policy: Policy = "round_robin"
    beside: OfflineBeside | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """What became of every prompt, [requests]."""

    first_token_seconds: Floats
    origin: Ints  # the DP rank that holds its KV, counted over all instances
    busy_seconds: float  # of all instances
    ended: bool = False  # whether the play ended early: those who waited have their first tokens then at the earliest


class Look(NamedTuple):
    """What ends a play before its stream does."""

    limit_seconds: float  # on TTFT
    counting: slice
    parts: int
    enough: Callable[[Ints, Ints], bool]
    """Whether enough is known by how many are late, and how many have come, in each of so many parts, [parts]."""


def play_prefill(pool: PrefillPool, stream: Stream, look: Look | None = None) -> Prefilled:
    """Return when every prompt of a stream has its first token; the stream's arrivals must not fall.

    Args: ``look`` tells now and then of the prompts that have come whether enough is known: the play ends there.
    """
    return PrefillRun(pool).whole(stream, look)


class Ended(NamedTuple):
    """Prompts whose last pass has ended, in that order."""

    number: Ints  # of the request in the whole stream
    first_token_seconds: Floats
    origin: Ints
    started_seconds: Floats


class PrefillRun:
    """A pool that is played part by part: what has not left is all that it keeps between them."""

    def __init__(self, pool: PrefillPool) -> None:
        """Begin with empty instances."""
        from planner.loops import prefill_loop as loop

        self.pool, self._loop = pool, loop
        each, shape = pool.instances, (pool.instances, pool.ranks)
        self._held = loop.Instances(
            head=np.full(each, -1),
            tail=np.full(each, -1),
            under=np.full(shape, -1),
            done=np.zeros(shape, dtype=np.int64),
            ended=np.full(each, -1),
            free=np.zeros(each),
            held=np.zeros(each, dtype=np.int64),
            turn=np.zeros(each, dtype=np.int64),
            busy=np.zeros(each),
            passes=np.zeros(each, dtype=np.int64),
            room=np.zeros(pool.ranks, dtype=np.int64),
            load=np.zeros((pool.ranks, 5)),
            offline=np.zeros(each, dtype=np.int64),
        )
        self._beside = loop.OfflinePrompts(np.inf, 1, 0.0, np.inf, np.inf)
        none = np.zeros(0, dtype=np.int64)
        self._prompts = loop.Prompts(np.zeros(0), none, none, none, np.zeros(0), none, np.zeros(0))
        self._numbers, self._dealt = none, 0

    def busy_seconds(self, until: float = np.inf) -> float:
        """Seconds of all passes up to a time that is not before the last one played, of all instances."""
        return float((self._held.busy - np.maximum(self._held.free - until, 0.0)).sum())

    @property
    def steps(self) -> int:
        """Passes so far, of all instances."""
        return int(self._held.passes.sum())

    @property
    def _rule(self) -> tuple[int, int]:
        in_turn = self.pool.policy == "round_robin"
        return self._loop.IN_TURN if in_turn else self._loop.LEAST_LOAD, self.pool.budget_tokens

    def _arriving(self, stream: Stream) -> "loop_types.Prompts":
        count = len(stream)
        fresh = (np.full(count, -1), np.full(count, np.inf), np.zeros(count, dtype=np.int64), np.zeros(count))
        arrival, reused = np.asarray(stream.arrival_seconds, np.float64), stream.reused_tokens
        if self.pool.times.loading_seconds:
            reused = reused.copy()
            self._loop.keep_worth_loading(self.pool.times, self.pool.budget_tokens, reused)
        return self._loop.Prompts(arrival, stream.prompt_tokens, reused, *fresh)

    def whole(self, stream: Stream, look: Look | None = None) -> Prefilled:
        """Play a stream from an idle pool to its end, or until enough is known; see ``play_prefill``."""
        prompts, count = self._arriving(stream), len(stream)
        self._beside = self._beside_of(stream)
        first, ended = prompts.first, False
        for begin, end in parts_of(count, _LOOK) if look else [(0, count)]:
            until = prompts.arrival[end] if end < count else np.inf
            self._loop.play(prompts, self._held, self._rule, self.pool.times, self._beside, (begin, end), begin, until)
            if look and end < count and self._enough(prompts, end, until, look):
                first, ended = np.where(np.isinf(first), np.maximum(until, prompts.arrival), first), True
                break
        return Prefilled(first, prompts.origin, self.busy_seconds(), ended)

    def _beside_of(self, stream: Stream) -> "loop_types.OfflinePrompts":
        """Return the offline prompts beside a whole stream, as each instance has them."""
        pool, own = self.pool, self.pool.beside
        if own is None:
            return self._beside
        prompt = max(round(float(stream.prompt_tokens.mean())), 1)
        seconds = self._loop.computing_seconds(pool.times, pool.budget_tokens, prompt)
        gap = float(stream.arrival_seconds[-1]) / len(stream) * pool.instances / own.offline.per_request
        limits = OFFLINE_GUARD * own.ttft_seconds, IN_TIME * own.ttft_seconds
        return self._loop.OfflinePrompts(gap, round(own.offline.input_tokens), seconds / prompt, *limits)

    def _enough(self, prompts: "loop_types.Prompts", end: int, until: float, look: Look) -> bool:
        """Whether enough is known of the prompts before ``end``, which have come by ``until``."""
        start, stop = look.counting.start, min(look.counting.stop, end)
        if start >= stop:
            return False
        late, there = np.zeros(look.parts, dtype=np.int64), np.zeros(look.parts, dtype=np.int64)
        self._loop.count_late(prompts, (start, stop), until, look.limit_seconds, late, there)
        return look.enough(late, there)

    def play(self, stream: Stream, until: float, numbers: Ints | None = None) -> Ended:
        """Let a part of the stream arrive, play every pass that begins before ``until``; return who ended by then.

        Args: ``numbers`` that the requests are known by; None counts them from 0 on.
        """
        before, held, count = self._prompts, self._held, len(stream)
        prompts = joined(before, self._arriving(stream))
        fresh_numbers = np.arange(self._dealt, self._dealt + count) if numbers is None else numbers
        numbers = np.append(self._numbers, fresh_numbers)
        part = before.arrival.size, prompts.arrival.size
        self._loop.play(prompts, held, self._rule, self.pool.times, self._beside, part, self._dealt, until)
        self._dealt += count
        gone = prompts.first <= until
        stay = np.flatnonzero(~gone)
        self._prompts = kept(prompts, stay, (held.head, held.tail, held.under, held.ended))
        self._numbers = numbers[stay]
        left = np.flatnonzero(gone)
        left = left[np.argsort(prompts.first[left], kind="stable")]
        return Ended(numbers[left], prompts.first[left], prompts.origin[left], prompts.started[left])
