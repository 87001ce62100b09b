"""The running requests of one instance: KV per DP rank as lines over the count of iterations, and who leaves when.

A request that needs I iterations for its tokens adds tokens/I to its rank's KV in each of them. So a rank's KV is a
line over the iteration count until somebody joins or leaves, iterations grow evenly while one rank is the fullest, and
the iteration at which a request leaves is known when it joins.
"""

import heapq
import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from ground.arrays import Floats, Ints
from planner.manifest.drafts import MOST_DRAWN, Acceptance, drawn_iterations, drawn_sums, mean_iterations
from planner.manifest.schema import Drafts
from runtime.simulate.request import Request
from runtime.simulate.steps import FIXED_POINT_BITS, StepTimer

_OFFSETS_AT_ONCE = 4096


@cache
def _sums(drafts: int, acceptance: Acceptance) -> "array[int]":
    """Return what is drawn once as Python's own numbers, which bisection of one answer is quicker with."""
    return array("q", drawn_sums(drafts, acceptance).tobytes())


class IterationCounts:
    """Draws the number of iterations of an answer when it is admitted."""

    def __init__(self, mtp: Drafts, mode: Literal["sampled", "expected"], random: np.random.Generator) -> None:
        self._mtp = mtp
        self._random = random
        self._offsets: list[int] = []
        self._sums = _sums(mtp.drafts, mtp.acceptance) if mode == "sampled" and mtp.drafts else None

    def draw(self, tokens: int) -> int:
        """Return the iterations that ``tokens`` take, at least 1."""
        if not self._mtp.drafts:
            return max(tokens, 1)
        if self._sums is None or tokens > MOST_DRAWN:
            return int(self.draw_all(np.array([tokens]))[0])
        if not self._offsets:
            self._offsets = self._random.integers(0, 2 * MOST_DRAWN, _OFFSETS_AT_ONCE).tolist()
        start = self._offsets.pop()
        least = start + tokens // (1 + self._mtp.drafts)
        return max(bisect_left(self._sums, self._sums[start] + tokens, least, start + tokens + 1) - start, 1)

    def draw_all(self, tokens: Ints) -> Ints:
        """Return the iterations of many answers, as ``draw`` does of one."""
        drafts, acceptance = self._mtp.drafts, self._mtp.acceptance
        if self._sums is None:
            return mean_iterations(tokens, drafts, acceptance)
        return drawn_iterations(tokens, drafts, acceptance, self._random)


_ONE = 1 << FIXED_POINT_BITS


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps under way, one after the other, each by as much longer than the one before it."""

    begin_seconds: float
    first_seconds: float
    more_seconds: float = 0.0
    count: int = 1

    def end(self, count: int) -> float:
        """Return when so many of them have ended."""
        return self.begin_seconds + self.first_seconds * count + self.more_seconds * count * (count - 1) / 2

    @property
    def end_seconds(self) -> float:
        """When all have."""
        return self.end(self.count)

    def reached(self, seconds: float) -> int:
        """Return how many it takes until the first one that ends at or after a time, all of them at most."""
        slope, more, lasting = (
            self.first_seconds - self.more_seconds / 2,
            self.more_seconds,
            seconds - self.begin_seconds,
        )
        root = (math.sqrt(max(slope * slope + 2 * more * lasting, 0.0)) - slope) / more if more else lasting / slope
        count = min(max(math.ceil(root), 1), self.count)
        while count > 1 and self.end(count - 1) >= seconds:
            count -= 1
        while count < self.count and self.end(count) < seconds:
            count += 1
        return count


class RunningBatch:
    """Requests in decode on ``ranks`` DP ranks; ``iteration`` counts those that have ended."""

    __slots__ = (
        "_counts",
        "_ends",
        "_intercepts",
        "_leaving",
        "_slopes",
        "iteration",
        "sequences",
        "timer",
        "total",
    )

    def __init__(self, ranks: int, timer: StepTimer, counts: IterationCounts) -> None:
        self.timer, self._counts = timer, counts
        self._intercepts: Ints = np.zeros(ranks, dtype=np.int64)
        self._slopes: Ints = np.zeros(ranks, dtype=np.int64)
        self.sequences: Ints = np.zeros(ranks, dtype=np.int64)
        self.total = self.iteration = 0
        self._ends: list[int] = []
        self._leaving: dict[int, dict[Request, int]] = {}

    def add(self, request: Request, rank: int) -> None:
        """Take a request with ``kv`` cached tokens and ``left`` tokens to go into the next iteration."""
        iterations = self._counts.draw(request.left)
        request.joined, request.iterations = self.iteration, iterations
        request.slope = (request.left << FIXED_POINT_BITS) // iterations
        self._count(request, rank, 1)
        self.total += 1
        end = self.iteration + iterations
        group = self._leaving.get(end)
        if group is None:
            group = self._leaving[end] = {}
            heapq.heappush(self._ends, end)
        group[request] = rank

    def _forget(self, request: Request, rank: int) -> None:
        self._count(request, rank, -1)
        self.total -= 1

    def _count(self, request: Request, rank: int, sign: int) -> None:
        """Let a rank hold a request, or with the sign -1 no longer: its KV is a line in the iterations."""
        self._intercepts[rank] += sign * ((request.kv << FIXED_POINT_BITS) - request.slope * request.joined)
        self._slopes[rank] += sign * request.slope
        self.sequences[rank] += sign

    def remove(self, request: Request) -> int:
        """Take a request out before its end; return the tokens that it got, the iteration under way not counted."""
        group = self._leaving[request.joined + request.iterations]
        self._forget(request, group.pop(request))
        return self.held_by(request) - request.kv

    def move(self, request: Request, rank: int) -> None:
        """Let a request run on on another rank, with its KV."""
        group = self._leaving[request.joined + request.iterations]
        self._count(request, group[request], -1)
        self._count(request, rank, 1)
        group[request] = rank

    def held_by(self, request: Request) -> int:
        """Return the cached tokens of a running request at the last iteration's end."""
        return request.kv + (request.slope * (self.iteration - request.joined) >> FIXED_POINT_BITS)

    def requests(self) -> list[tuple[Request, int]]:
        """Return running requests and their ranks, those that joined first first."""
        found = [pair for group in self._leaving.values() for pair in group.items()]
        return sorted(found, key=lambda pair: (pair[0].joined, pair[0].number))

    def by_rank(self) -> list[list[Request]]:
        """Return the running requests of each rank."""
        found: list[list[Request]] = [[] for _ in self.sequences]
        for group in self._leaving.values():
            for request, rank in group.items():
                found[rank].append(request)
        return found

    def stretch(self, begin_seconds: float, most: float) -> Stretch:
        """Return the next iterations: up to ``most``, until somebody leaves or another rank becomes the fullest."""
        count = min(self._next_end() - self.iteration, most)
        heights = self._intercepts + self._slopes * self.iteration
        top = int(heights.argmax())
        if count > 1:
            steeper = np.flatnonzero(self._slopes > self._slopes[top])
            if steeper.size:
                meet = (heights[top] - heights[steeper]) // (self._slopes[steeper] - self._slopes[top]) + 1
                count = min(count, int(meet.min()))
        kv, slowest = float(heights[top]) / _ONE, int(self.sequences.max())
        first = self.timer.iteration_seconds(self.total, slowest, kv)
        more = self.timer.line(self.total).kv_seconds * float(self._slopes[top]) / _ONE
        return Stretch(begin_seconds, first, more, int(count))

    def advance(self, iterations: int) -> list[tuple[Request, int]]:
        """Let so many iterations end; return who left with the last of them, and their ranks."""
        self.iteration += iterations
        if not self._ends or self._ends[0] > self.iteration:
            return []
        gone = list(self._leaving.pop(heapq.heappop(self._ends)).items())
        for request, rank in gone:
            self._forget(request, rank)
        return gone

    def _next_end(self) -> int:
        while not self._leaving[self._ends[0]]:  # all of them were taken out
            del self._leaving[heapq.heappop(self._ends)]
        return self._ends[0]

    def kv_tokens(self) -> Floats:
        """Return the cached tokens of each rank at the last iteration's end, [ranks]."""
        return np.asarray((self._intercepts + self._slopes * self.iteration) / _ONE)
