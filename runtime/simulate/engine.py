"""The event loop: a heap ordered by time, then priority, then order of scheduling, beside a feed of arrivals."""

import heapq
import zlib
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from runtime.simulate.run import ArrivalFeed

Action = Callable[[Any], None]

# At one instant completions free room first, then requests move, and steps start last with all of them.
COMPLETION, ARRIVAL, START = 0, 1, 2
NEVER = float("inf")


class _Nothing:
    """In place of arrivals in order of time, of which it has the ``seconds`` of the next one: there is none."""

    seconds = NEVER

    def deliver(self) -> None:
        """Nothing arrives."""


class EventEngine:
    """A virtual clock; the same schedule gives the same run."""

    __slots__ = ("_counter", "_heap", "_tickers", "events", "feed", "now_seconds")

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.events = self._tickers = 0
        self.feed: ArrivalFeed | _Nothing = _Nothing()
        self._heap: list[tuple[float, int, int, Action, Any]] = []
        self._counter = count()

    def at(self, seconds: float, priority: int, action: Action, argument: Any = None) -> None:
        """Run ``action(argument)`` at ``seconds`` of virtual time."""
        heapq.heappush(self._heap, (seconds, priority, next(self._counter), action, argument))

    def soon(self, action: Action) -> None:
        """Run ``action(None)`` at this instant, after everything else that happens in it."""
        self.at(self.now_seconds, START, action)

    @property
    def happens_now(self) -> bool:
        """Whether anything else is scheduled for this instant."""
        return self.feed.seconds <= self.now_seconds or bool(self._heap and self._heap[0][0] <= self.now_seconds)

    def every(self, period: Callable[[], float], action: Callable[[], bool | None], quiet: bool = False) -> None:
        """Run ``action`` again and again while anything else is to happen; ``period`` gives the seconds between.

        An action that returns False has nothing to do until something else happens: periods without an event are
        passed over (``quiet``), so that a fault of months costs no more than one of seconds.
        """
        seconds, periods = period(), 1.0
        if quiet and self._heap:
            periods = max(np.ceil((min(self._heap[0][0], self.feed.seconds) - self.now_seconds) / seconds), 1.0)
        self._tickers += 1
        self.at(self.now_seconds + periods * seconds, COMPLETION, self._tick, (period, action))

    def _tick(self, what: tuple[Callable[[], float], Callable[[], bool | None]]) -> None:
        self._tickers -= 1
        if len(self._heap) > self._tickers or self.feed.seconds < NEVER:
            self.every(*what, quiet=what[1]() is False)

    def run(self, until_seconds: float = NEVER) -> None:
        """Run events in order until none is left or the next one lies after ``until_seconds``.

        An arrival of the feed comes after completions of its instant and before all else that was scheduled for it.
        """
        heap, feed, pop = self._heap, self.feed, heapq.heappop
        events = 0
        while True:
            arrival = feed.seconds
            if heap and (heap[0][0] < arrival or (heap[0][0] == arrival and heap[0][1] < ARRIVAL)):
                if heap[0][0] > until_seconds:
                    break
                self.now_seconds, _, _, action, argument = pop(heap)
                action(argument)
            elif arrival <= until_seconds and arrival < NEVER:
                self.now_seconds = arrival
                feed.deliver()
            else:
                break
            events += 1
        self.events += events


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the random stream called ``name``: streams of one seed are independent of each other's use."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])
