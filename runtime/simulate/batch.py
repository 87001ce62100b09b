"""The running requests of one instance: KV per DP rank as lines over the count of iterations, and who leaves when.

A request that needs I iterations for its tokens adds tokens/I to its rank's KV in each of them. So a rank's KV is a
line over the iteration count until somebody joins or leaves, the slowest rank is the upper envelope of these lines,
and the iteration at which a request leaves is known when it joins.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from runtime.simulate.drafts import IterationCounts
from runtime.simulate.request import Request
from runtime.simulate.steps import FIXED_POINT_BITS, StepTimer

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

LONGEST_STRETCH = 4096
_LONGEST_ENVELOPE = 64


class RunningBatch:
    """Requests in decode on ``ranks`` DP ranks; ``iteration`` counts those that have ended."""

    __slots__ = (
        "_counts",
        "_ends",
        "_intercepts",
        "_leaving",
        "_pending",
        "_sequences",
        "_slopes",
        "iteration",
        "timer",
        "total",
    )

    def __init__(self, ranks: int, timer: StepTimer, counts: IterationCounts) -> None:
        self.timer, self._counts = timer, counts
        self._intercepts: Integers = np.zeros(ranks, dtype=np.int64)
        self._slopes: Integers = np.zeros(ranks, dtype=np.int64)
        self._sequences: Integers = np.zeros(ranks, dtype=np.int64)
        self._pending: list[tuple[int, int, int, int]] = []
        self.total = self.iteration = 0
        self._ends: list[int] = []
        self._leaving: dict[int, dict[Request, int]] = {}

    def add(self, request: Request, rank: int) -> None:
        """Take a request with ``kv`` cached tokens and ``left`` tokens to go into the next iteration."""
        iterations = self._counts.draw(request.left)
        request.joined, request.iterations = self.iteration, iterations
        request.slope = slope = (request.left << FIXED_POINT_BITS) // iterations
        self._pending.append((rank, (request.kv << FIXED_POINT_BITS) - slope * self.iteration, slope, 1))
        self.total += 1
        end = self.iteration + iterations
        group = self._leaving.get(end)
        if group is None:
            group = self._leaving[end] = {}
            heapq.heappush(self._ends, end)
        group[request] = rank

    def _forget(self, request: Request, rank: int) -> None:
        slope = request.slope
        self._pending.append((rank, slope * request.joined - (request.kv << FIXED_POINT_BITS), -slope, -1))
        self.total -= 1

    def _apply(self) -> None:
        """Bring the ranks up to date with who joined and left."""
        if self._pending:
            ranks, intercepts, slopes, sequences = np.array(self._pending, dtype=np.int64).T
            self._pending.clear()
            np.add.at(self._intercepts, ranks, intercepts)
            np.add.at(self._slopes, ranks, slopes)
            np.add.at(self._sequences, ranks, sequences)

    @property
    def sequences(self) -> Integers:
        """Running requests of each rank."""
        self._apply()
        return self._sequences

    def remove(self, request: Request) -> int:
        """Take a request out before its end; return the tokens that it got, the iteration under way not counted."""
        group = self._leaving[request.joined + request.iterations]
        self._forget(request, group.pop(request))
        return request.slope * (self.iteration - request.joined) >> FIXED_POINT_BITS

    def requests(self) -> list[tuple[Request, int]]:
        """Return running requests and their ranks, those that joined first first."""
        found = [pair for end in sorted(self._leaving) for pair in self._leaving[end].items()]
        return sorted(found, key=lambda pair: (pair[0].joined, pair[0].number))

    def stretch(self, start_seconds: float, most: int) -> Floats:
        """Return the ends of the next iterations from ``start_seconds`` on, up to ``most`` or until somebody leaves."""
        count = min(self._next_end() - self.iteration, most)
        slowest = int(self.sequences.max())
        heights = self._intercepts + self._slopes * self.iteration
        if count == 1:
            seconds = self.timer.decode_seconds(slowest, int(heights.max()), self.total)
            return np.array([start_seconds + seconds])
        first, last = int(heights.argmax()), int((heights + self._slopes * (count - 1)).argmax())
        steps = np.arange(count if first == last else min(count, _LONGEST_ENVELOPE))
        if first == last:
            # Lines that meet nowhere between two points where the same one is highest.
            kv = heights[first] + self._slopes[first] * steps
        else:
            kv = (heights[:, None] + self._slopes[:, None] * steps).max(axis=0)
        ends: Floats = np.cumsum(np.append(start_seconds, self.timer.decode_stretch(slowest, kv, self.total)))[1:]
        return ends

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
        self._apply()
        return np.asarray((self._intercepts + self._slopes * self.iteration) / (1 << FIXED_POINT_BITS))
