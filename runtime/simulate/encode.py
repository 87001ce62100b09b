"""Encode instances: passes over the pictures of requests that wait, and their embeddings on the way to prefill."""

from collections import deque
from collections.abc import Callable

from planner.manifest.schema import Pool
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from runtime.simulate.device import Shared
from runtime.simulate.engine import ARRIVAL, COMPLETION
from runtime.simulate.request import PREFILL, Request
from runtime.simulate.steps import checked_seconds


class EncodeInstance:
    """One device that takes the pictures of what waits, up to its tokens of a pass, and passes the embeddings on.

    A request goes on when they are there. The device sends those of a pass one after the other over its link, while
    the next pass runs. Requests of a lost instance, and prompts that are computed again, are encoded again.
    """

    def __init__(self, shared: Shared, name: str, pool: Pool, encoded: Callable[[Request], None]) -> None:
        transfer, workload = shared.manifest.embedding_transfer, shared.manifest.workload
        assert transfer is not None, "a manifest with encode instances says how embeddings cross"
        self.name, self.pool, self.phase = name, pool, pool.phase
        self._shared, self._engine, self._encoded = shared, shared.engine, encoded
        self.cost = pool.step_costs[self.phase].to_step_cost()
        self._seconds: dict[int, float] = {}  # of a pass, by requests
        self._tokens = workload.picture_tokens
        self._most = max(int(pool.limits.tokens_per_device / self._tokens * (1 + 1e-9)), 1)
        self._sending_seconds = self._tokens * transfer.bytes_per_token / transfer.bandwidth_bytes_per_second
        self._latency_seconds = transfer.latency_seconds
        self._free_seconds = 0.0
        self._queue: deque[Request] = deque()
        self._here: dict[Request, None] = {}
        self._running: list[Request] = []
        self._starting = self._hangs = False
        self._epoch = 0
        self.accepts = self.up = True
        self.waiting_tokens = 0
        self.busy_seconds = self.busy_until_seconds = 0.0
        self.steps = 0

    @property
    def idle(self) -> bool:
        """Whether no request is here."""
        return not self._here

    def busy_seconds_until(self, now: float) -> float:
        """Seconds of passes up to a time that is not before the last event."""
        return self.busy_seconds - max(self.busy_until_seconds - now, 0.0)

    def found_here(self, request: Request) -> int:
        """No embeddings are kept here."""
        return 0

    def enqueue(self, request: Request) -> None:
        """Let the pictures of a request wait for a pass."""
        request.state = PREFILL
        self._queue.append(request)
        self._here[request] = None
        self.waiting_tokens += request.prompt
        self._wake()

    def _wake(self) -> None:
        if not self._running and not self._starting and self.up and not self._hangs:
            self._starting = True
            self._engine.soon(self._start)

    def _start(self, _: object = None) -> None:
        self._starting = False
        if self._running or not self._queue or not self.up or self._hangs:
            return
        taken = [self._queue.popleft() for _ in range(min(self._most, len(self._queue)))]
        # Seconds of a pass over the pictures of so many requests
        requests = len(taken)
        found = self._seconds.get(requests)
        if found is None:
            tokens = requests * self._tokens
            load = StepLoad(prefill_tokens=tokens, finishing_prompts=float(requests), mean_tokens=tokens)
            found = self._seconds[requests] = checked_seconds(float(evaluate(self.cost, load).seconds))
        now, seconds = self._engine.now_seconds, found
        for request in taken:
            request.started = now
        self._running = taken
        self.busy_seconds += seconds
        self.busy_until_seconds = now + seconds
        self.steps += 1
        if self._shared.span:
            self._shared.span(self.name, "encode", now, seconds, {"requests": float(len(taken))})
        self._engine.at(now + seconds, COMPLETION, self._end, self._epoch)

    def _end(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        done, self._running = self._running, []
        for request in done:
            self.waiting_tokens -= request.prompt
            self._free_seconds = max(self._free_seconds, self._engine.now_seconds) + self._sending_seconds
            self._engine.at(
                self._free_seconds + self._latency_seconds, ARRIVAL, self._pass_on, (request, request.epoch)
            )
        self._wake()

    def _pass_on(self, what: tuple[Request, int]) -> None:
        request, epoch = what
        if request.epoch == epoch and request in self._here:
            del self._here[request]
            self._encoded(request)

    def pause(self, seconds: float) -> None:
        """Send no embeddings for so many seconds, as the link is down."""
        self._free_seconds = max(self._free_seconds, self._engine.now_seconds + seconds)

    def hang(self) -> None:
        """Do nothing until ``stop``: a pass that runs never ends, and what comes waits."""
        self._epoch += 1
        self._hangs = True

    def stop(self) -> list[Request]:
        """Go down; return the requests that were here, in order of arrival."""
        here = sorted(self._here, key=lambda request: request.number)
        if self._running:
            self.busy_seconds, self.busy_until_seconds = self.busy_seconds_until(self._engine.now_seconds), 0.0
        self._epoch += 1
        self.up = self._hangs = False
        self.waiting_tokens = 0
        self._running = []
        self._queue.clear()
        self._here.clear()
        return here

    def holding(self) -> list[Request]:
        """Return the requests whose embeddings are not yet where they go."""
        return list(self._here)
