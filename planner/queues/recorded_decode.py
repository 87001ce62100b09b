"""When every request of a recorded stream leaves decode: processor sharing on a clock of iterations.

All running requests advance by one iteration at a time, so on a clock that counts iterations each leaves a known count
after it joined; the clock runs at one over the iteration time, which depends on how many run (virtual time). Who comes
joins at the next whole count, when the iteration under way ends. Between two events nothing changes, so the recursion
takes one step an event. Past the slots requests wait in line.

Ref: virtual time of processor sharing, A. Demers, S. Keshav, S. Shenker, SIGCOMM 1989, section 2; load-dependent
servers, L. Kleinrock, Queueing Systems I, chapter 3.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from planner.queues.queueing import Array

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """When requests leave, [requests], and how much of the instances' time is busy."""

    left_seconds: Array
    busy_seconds: float


def decode_recorded(ready_seconds: Array, iterations: Array, iteration_seconds: Array, instances: int) -> Decoded:
    """Return when requests leave that are ready at given times and take given iterations, [requests] each.

    Instances share evenly: with n requests over c of them an iteration takes what n/c requests take.

    Args:
        ready_seconds: when the KV of each is there, in any order.
        iterations: of each request, above 0.
        iteration_seconds: [slots of an instance], with 1, 2, ... running requests.
        instances: of the pool.
    """
    slots = iteration_seconds.size * instances
    shared = np.maximum(np.arange(slots + 1.0) / instances, 1.0)
    pace = np.interp(shared, np.arange(1.0, iteration_seconds.size + 1), iteration_seconds).tolist()
    order = np.argsort(ready_seconds, kind="stable").tolist()
    clock = _Clock(pace, instances, iterations.tolist(), [0.0] * len(order))
    for request, ready in zip(order, ready_seconds[order].tolist(), strict=True):
        clock.run(ready)
        clock.join(request)
    clock.run(np.inf)
    return Decoded(left_seconds=np.array(clock.left), busy_seconds=clock.busy_seconds)


class _Clock:
    """The running requests by the iteration at which they leave."""

    def __init__(self, pace: list[float], instances: int, iterations: list[float], left: list[float]) -> None:
        self._pace, self._instances, self._iterations = pace, instances, iterations
        self._running: list[tuple[float, int]] = []
        self._waiting: deque[int] = deque()
        self._now = self._turned = 0.0
        self.left, self.busy_seconds = left, 0.0

    def join(self, request: int) -> None:
        """Let a request run from the next iteration on, or wait where all slots are taken."""
        if not self._running:
            self._turned = 0.0
        if len(self._running) < len(self._pace) - 1:
            begin = math.ceil(self._turned - _ROUNDING)
            heapq.heappush(self._running, (begin + self._iterations[request], request))
        else:
            self._waiting.append(request)

    def run(self, until: float) -> None:
        """Run to a time, letting out whoever is done before."""
        while self._running:
            mark, request = self._running[0]
            end = self._now + (mark - self._turned) * self._pace[len(self._running)]
            if end > until:
                self._turned += (until - self._now) / self._pace[len(self._running)]
                break
            self._pass(end)
            self._turned = mark
            heapq.heappop(self._running)
            self.left[request] = end
            if self._waiting:
                self.join(self._waiting.popleft())
        self._pass(until)

    def _pass(self, now: float) -> None:
        if now > self._now and self._running:
            self.busy_seconds += (now - self._now) * min(len(self._running), self._instances)
        self._now = max(now, self._now)
