"""Prefill instances: elastic passes that take what waits, up to the token budget of each DP rank."""

from collections import deque
from collections.abc import Callable

from planner.manifest.schema import Pool
from runtime.simulate.engine import COMPLETION, Engine
from runtime.simulate.ledger import Ledger
from runtime.simulate.steps import RankLoads, StepTimer

Finished = Callable[["PrefillInstance", int, int], None]
"""Called with the instance, the DP rank and the request when a prompt's last pass ends."""


class PrefillInstance:
    """One instance; ``queue`` may be shared with others (collaborative routing)."""

    def __init__(self, engine: Engine, ledger: Ledger, pool: Pool, queue: deque[int], finished: Finished) -> None:
        self._engine, self._ledger, self._finished = engine, ledger, finished
        self._timer = StepTimer(pool.step_costs["prefill"].to_step_cost(), pool.microbatches)
        self.ranks = pool.degrees.attention_dp
        self.rank_devices = pool.degrees.attention_tp * pool.degrees.pp
        self._budget = pool.limits.tokens_per_device * self.rank_devices
        self._queue = queue
        self._carried: list[tuple[int, int, int]] = []  # request, rank, prompt tokens done
        self._running = self._starting = False
        self.waiting_tokens = 0
        self.busy_seconds = self.busy_until_seconds = 0.0
        self.steps = 0

    def enqueue(self, request: int) -> None:
        """Let ``request`` wait for a pass."""
        self._queue.append(request)
        self.waiting_tokens += self._ledger.inputs[request]
        self.wake()

    def wake(self) -> None:
        """Start a pass at the end of this instant unless one runs."""
        if not self._running and not self._starting:
            self._starting = True
            self._engine.soon(self._start)

    def _start(self) -> None:
        self._starting = False
        if not self._queue and not self._carried:
            return
        loads = RankLoads.empty(self.ranks)
        ended = self._fill(loads)
        seconds = self._timer.step_seconds(loads)
        self._running = True
        self.busy_seconds += seconds
        self.busy_until_seconds = self._engine.now_seconds + seconds
        self.steps += 1
        self._engine.at(self._engine.now_seconds + seconds, COMPLETION, lambda: self._end(ended))

    def _fill(self, loads: RankLoads) -> list[tuple[int, int]]:
        """Put chunks into the pass; return (request, rank) of the prompts that it ends."""
        room = [self._budget] * self.ranks
        carried, self._carried = self._carried, []
        ended: list[tuple[int, int]] = []
        for request, rank, done in carried:
            self._chunk(request, rank, done, room, loads, ended)
        while self._queue:
            request = self._queue[0]
            rank = max(range(self.ranks), key=room.__getitem__)
            start = self._first_position(request)
            length = self._ledger.inputs[request] - start
            if room[rank] < (length if length <= self._budget else 1):
                break
            self._queue.popleft()
            self._chunk(request, rank, start, room, loads, ended)
        return ended

    def _first_position(self, request: int) -> int:
        """Prompt tokens before the first chunk that computes anything: whole chunks of reused ones cost no pass."""
        return self._ledger.reused[request] // self._budget * self._budget

    def _chunk(
        self, request: int, rank: int, done: int, room: list[int], loads: RankLoads, ended: list[tuple[int, int]]
    ) -> None:
        """Put the next tokens of a prompt, reused ones included, into the room of its rank."""
        length = self._ledger.inputs[request]
        end = min(done + room[rank], length)
        room[rank] -= end - done
        cached = min(max(done, self._ledger.reused[request]), end)
        if end > cached:
            loads.add_chunk(rank, cached, end - cached, end == length)
        if end == length:
            ended.append((request, rank))
        else:
            self._carried.append((request, rank, end))

    def _end(self, ended: list[tuple[int, int]]) -> None:
        self._running = False
        now = self._engine.now_seconds
        for request, rank in ended:
            self._ledger.first_token[request] = now
            self.waiting_tokens -= self._ledger.inputs[request]
            self._finished(self, rank, request)
        self.wake()
