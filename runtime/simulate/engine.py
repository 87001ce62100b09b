"""The event loop: a heap ordered by time, then priority, then order of scheduling."""

import heapq
import zlib
from collections.abc import Callable
from itertools import count

import numpy as np

Action = Callable[[], None]

# At one instant completions free room first, then requests move, and steps start last with all of them.
COMPLETION, ARRIVAL, START = 0, 1, 2


class Engine:
    """A virtual clock; the same schedule gives the same run."""

    __slots__ = ("_counter", "_heap", "now_seconds")

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self._heap: list[tuple[float, int, int, Action]] = []
        self._counter = count()

    def at(self, seconds: float, priority: int, action: Action) -> None:
        """Run ``action`` at ``seconds`` of virtual time."""
        heapq.heappush(self._heap, (seconds, priority, next(self._counter), action))

    def soon(self, action: Action) -> None:
        """Run ``action`` at this instant, after everything else that happens in it."""
        self.at(self.now_seconds, START, action)

    def run(self, until_seconds: float = float("inf")) -> None:
        """Run events in order until none is left or the next one lies after ``until_seconds``."""
        heap = self._heap
        while heap and heap[0][0] <= until_seconds:
            self.now_seconds, _, _, action = heapq.heappop(heap)
            action()


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the random stream called ``name``: streams of one seed are independent of each other's use."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])
