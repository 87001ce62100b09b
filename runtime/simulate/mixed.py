"""Aggregated instances: each step decodes what runs and fills the token budget with prompt chunks."""

from collections import deque

from planner.manifest.schema import PhaseName, Pool
from runtime.simulate.batch import Stretch
from runtime.simulate.decode import DecodeInstance, Lost
from runtime.simulate.device import Shared
from runtime.simulate.engine import COMPLETION
from runtime.simulate.placement import Placement
from runtime.simulate.prefixes import Prefixes
from runtime.simulate.request import FAILED, PREFILL, Request
from runtime.simulate.steps import RankLoad


class MixedInstance(DecodeInstance):
    """One instance with continuous batching and chunked prefill (Sarathi-Serve, arXiv 2403.02310).

    The budget of a step is per DP rank and holds the running requests' queries first; with ``prefill_first`` prompts
    have steps of their own while there are any, and running requests wait. Steps without prompts are summed as in
    ``DecodeInstance``.
    """

    phase: PhaseName = "mixed"

    def __init__(self, shared: Shared, name: str, pool: Pool, lost: Lost) -> None:
        super().__init__(shared, name, pool, lost)
        self._budget = pool.limits.tokens_per_device * pool.degrees.attention_tp * pool.degrees.pp
        self._prompts: list[deque[list[int]]] = [deque() for _ in range(self.ranks)]  # positions of prompts, in order
        self._asked: list[deque[Request]] = [deque() for _ in range(self.ranks)]
        self._waiting_prompts = 0
        self._ended: list[tuple[int, Request]] | None = None
        self._pauses = shared.manifest.routing.chunks == "prefill_first"
        self._prefixes = Prefixes(shared, pool)
        self.accepts = True
        self.waiting_tokens = 0

    def _register(self, opened: bool) -> int:
        """Place requests among the instance's own ranks."""
        shared = self._shared
        self._placement = Placement(shared.manifest.routing, shared.ledger, lambda: shared.engine.now_seconds)
        self._placement.placed = self._placed
        return self._placement.register(self, self.pool, self.ranks, opened)

    @property
    def placement(self) -> Placement:
        """Slots and KV of the instance's ranks."""
        return self._placement

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits here."""
        return super().idle and not self.waiting_tokens

    def enqueue(self, request: Request) -> None:
        """Let ``request`` wait for room on a rank, or fail it if no rank could ever hold it."""
        request.state = PREFILL
        self.waiting_tokens += request.prompt
        self._placement.offer(request)
        if request.state == FAILED:
            self.waiting_tokens -= request.prompt

    def found_here(self, request: Request) -> int:
        """Return the tokens of a prompt's head that stand in this instance's memory."""
        return self._prefixes.here(request)

    def holding(self) -> list[Request]:
        """Return the requests that run and the prompts that have room."""
        return [*super().holding(), *(request for asked in self._asked for request in asked)]

    def _placed(self, request: Request) -> None:
        if request.first_token >= 0 and not request.retries:  # in decode when the run begins: its KV is here
            self.waiting_tokens -= request.prompt
            self.join(request)
            return
        if request.blocks is not None and not request.retries:
            found = self._prefixes.look_up(request)
            self._shared.cache.count(found, request.prompt)
            request.reused = found.tokens
        self._prompts[request.place].append([request.reused])
        self._asked[request.place].append(request)
        self._waiting_prompts += 1
        if self._running is not None:
            self._cut()
        else:
            self.wake()

    def _start(self, _: object = None) -> None:
        busy = self._running is not None or self._engine.now_seconds < self.resumes_seconds
        if busy or not self.up or not self._waiting_prompts:
            super()._start()
            return
        self._starting = False
        self._absorb()
        now = self._engine.now_seconds
        loads, ended = self._fill()
        seconds = self.batch.timer.step_seconds(loads, self.ranks)
        self._ended = ended
        self._running = Stretch(now, seconds)
        self.busy_seconds += seconds
        self.busy_until_seconds = now + seconds
        if self._shared.span:
            figures = {"requests": float(self.batch.total), "tokens": sum(load.tokens for load in loads)}
            self._shared.span(self.name, "mixed", now, seconds, figures)
        self._engine.at(now + seconds, COMPLETION, self._end, self._epoch)

    def _fill(self) -> tuple[list[RankLoad], list[tuple[int, Request]]]:
        """Put running requests and prompt chunks into the step; return the loads and the prompts that it ends."""
        loads: list[RankLoad] = []
        ended: list[tuple[int, Request]] = []
        running, kv = self.batch.sequences.tolist(), self.batch.kv_tokens().tolist()
        for rank in range(self.ranks):
            sequences = 0 if self._pauses else running[rank]
            # One token of progress at least, or a rank full of drafts would never take a prompt.
            room = max(self._budget - sequences * (1 + self.pool.mtp.drafts), 1)
            tokens = context = finishing = 0
            pairs = 0.0
            for request, position in zip(self._asked[rank], self._prompts[rank], strict=True):
                if not room:
                    break
                if request.started < 0:
                    request.started = self._engine.now_seconds
                done = position[0]
                computed = min(room, request.prompt - done)
                tokens, context, room = tokens + computed, context + done, room - computed
                pairs += computed * done + computed * (computed + 1) / 2
                position[0] += computed
                if position[0] == request.prompt:
                    finishing += 1
                    ended.append((rank, request))
            if tokens or sequences:
                held = kv[rank] if sequences else 0.0
                loads.append(RankLoad(float(sequences), held, float(tokens), float(context), pairs, float(finishing)))
        return loads, ended

    def _end(self, epoch: int) -> None:
        if epoch != self._epoch or self._ended is None:
            super()._end(epoch)
            return
        ended, self._ended = self._ended, None
        self.steps += 1
        self._running = None
        gone = [] if self._pauses else self.batch.advance(1)
        for rank, request in ended:
            self._asked[rank].popleft()
            self._prompts[rank].popleft()
            self._waiting_prompts -= 1
            self.waiting_tokens -= request.prompt
            self._first_token(request)
        self._finish(gone)
        self.wake()

    def _first_token(self, request: Request) -> None:
        """A prompt ended: its first token is out and the rest is decoded on the same rank."""
        now = self._engine.now_seconds
        if request.first_token < 0:
            request.first_token = now
        self._prefixes.insert(request)
        if request.left:
            self.join(request)
        else:
            self._release(request)
            self._shared.ledger.complete(request, now)

    def settle(self) -> None:
        """Give up the step that runs; prompts lose the chunk that it held."""
        if self._ended is None or self._running is None:
            super().settle()
            return
        self._ended = None
        self.busy_seconds -= max(self._running.end_seconds - self._engine.now_seconds, 0.0)
        self._running = None
        self._epoch += 1

    def abandon_prompts(self) -> list[Request]:
        """Take all prompts out; return them in order of arrival."""
        found = [request for asked in self._asked for request in asked]
        for asked, prompts in zip(self._asked, self._prompts, strict=True):
            asked.clear()
            prompts.clear()
        for request in found:
            self._placement.release(request)
        waiting = [*self._placement.waiting, *self._placement.offline_waiting]
        self._placement.waiting.clear()
        self._placement.offline_waiting.clear()
        self._waiting_prompts = self.waiting_tokens = 0
        return sorted([*found, *waiting], key=lambda request: request.number)
