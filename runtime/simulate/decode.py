"""Decode instances: continuous batching per DP rank, all ranks leaving each iteration together."""

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from planner.manifest.schema import PhaseName, Pool
from planner.manifest.terms import StepCost
from planner.serving.aggregated import AggregatedPool
from planner.serving.aggregated_run import DrivenInstance
from runtime.simulate.device import Devices, Shared
from runtime.simulate.engine import COMPLETION
from runtime.simulate.request import DECODE, TRANSFER, Request
from runtime.simulate.steps import checked_seconds

if TYPE_CHECKING:
    from runtime.simulate.prefill import PrefillInstance


EVEN_EVERY_SECONDS, UNEVEN_SHARE = 0.5, 0.01
"""Between two looks at how even ranks are, and what the fullest one may hold beyond the mean."""

Lost = Callable[["DecodeInstance", Request, int], None]
"""Called with the instance, a request that it gives up and the tokens that it got there."""


class DecodeInstance:
    """One instance. Iterations between which nobody joins or leaves are summed in one go by the compiled loop.

    They are cut to the first that ends at or after now when a request joins.
    """

    phase: PhaseName = "decode"

    def __init__(self, shared: Shared, name: str, pool: Pool, lost: Lost, opened: bool = True) -> None:
        self.name, self.pool, self._lost = name, pool, lost
        self._shared, self._engine, self._placement = shared, shared.engine, shared.placement
        self.ranks = pool.degrees.attention_groups
        self.rank_devices = pool.degrees.attention_tp * pool.degrees.pp
        self._counts, self.cost = shared.counts(pool, name), shared.cost(pool, self.phase)
        self.timer = shared.timer(self.cost, pool, self.phase)
        self._here: dict[int, Request] = {}
        self.devices = Devices()
        self.freed: Callable[[], None] = lambda: None
        self.beside: PrefillInstance | None = None
        """Whose offline prompts are answered here while it takes prompts: what runs gives way to online ones."""
        self.first_rank = self._placement.register(self, pool, self.ranks, opened)
        self._joining: list[tuple[Request, int]] = []
        self._evicting: list[Request] = []
        self._running = False
        self._starting = False
        self._epoch, self._last_begins = 0, 0.0
        self._overflows = shared.manifest.routing.decode_reservation != "whole"
        self.stall_seconds = shared.most_seconds(pool)
        """Longest pass that running requests may wait for: an iteration at the TPOT limit, for short answers."""
        self.up = True
        self.resumes_seconds = 0.0
        self._evens, self._evens_at = shared.manifest.routing.ranks == "even", 0.0

    @cached_property
    def _run(self) -> DrivenInstance:
        """The compiled loop, which is begun when somebody decodes."""
        pool = AggregatedPool(
            times=self.timer.table,
            ranks=self.ranks,
            budget_tokens=1,
            slots=self.pool.limits.requests_per_dp_rank,
            capacity_tokens=float(self.pool.kv.capacity_tokens_per_rank),
        )
        return DrivenInstance(pool)

    @property
    def total(self) -> int:
        """Requests that run."""
        return len(self._here)

    @property
    def steps(self) -> int:
        """Iterations so far."""
        return self._run.steps

    def _most_held(self) -> tuple[float, int]:
        """Return the most cached tokens and the most requests of any rank."""
        return float(self._run.kv_tokens().max()), int(self._run.ranks["running"].max())

    @property
    def idle(self) -> bool:
        """Whether nothing runs or is about to."""
        return not self._here and not self._joining

    def join(self, request: Request) -> None:
        """Take ``request``, whose KV is here, into the next iteration."""
        request.state = DECODE
        if request.started < 0:
            request.started = self._engine.now_seconds
        self._joining.append((request, request.place - self.first_rank))
        if self._running:
            self.give_way()
        else:
            self.wake()

    def wake(self) -> None:
        """Start an iteration at the end of this instant unless one runs."""
        if not self._running and not self._starting and self.up:
            self._starting = True
            self._engine.soon(self._start)

    def give_way(self) -> None:
        """Let the iterations under way end with the one that runs now."""
        if not self._running or self._engine.now_seconds >= self._last_begins:
            return
        self._end_with(*self._run.end_early(self._engine.now_seconds))

    def _end_with(self, last_begins: float, ends: float) -> None:
        """Let the iterations that run end with one that begins and ends then."""
        self._last_begins = last_begins
        self._epoch += 1
        self._engine.at(ends, COMPLETION, self._end, self._epoch)

    def _start(self, _: object = None) -> None:
        self._starting = False
        if self._running or not self.up:
            return
        now = self._engine.now_seconds
        if now < self.resumes_seconds:
            self._starting = True
            self._engine.at(self.resumes_seconds, COMPLETION, self._start)
            return
        self._absorb()
        if self._overflows and self._here:
            self._make_room()
        if not self._here:
            return
        if self._evens and now >= self._evens_at:
            self._evens_at = now + EVEN_EVERY_SECONDS
            self._run.even_out(UNEVEN_SHARE, self._may_move)
        if self.beside is not None and self.beside.due:
            self.devices.after(self)
            return
        if not self.devices.take(self):
            return
        single = self._shared.stepping or self._overflows
        self._running, self._run.times = True, self.timer.table
        last_begins, ends = self._run.iterate(now, single)
        checked_seconds(ends - now)
        self._end_with(last_begins, ends)

    def _absorb(self) -> None:
        """Between iterations: let those go that must, then those in that have come."""
        evicting, self._evicting = self._evicting, []
        for request in evicting:
            if request.state == TRANSFER and request.place >= 0:  # its KV is on its way
                self._evicting.append(request)
                continue
            self._placement.evicted(request, request.state == DECODE)
            if request.state == DECODE:
                self.lose(request)
        for request, rank in self._joining:
            tokens, now = (request.prompt, request.prompt, request.left + 1), self._engine.now_seconds
            record = self._run.add(now, tokens, self._counts.draw(request.left), rank=rank)
            request.record, self._here[record] = record, request
        if self._joining:
            self._run.enter(self._engine.now_seconds)
        self._joining.clear()
        if len(evicting) > len(self._evicting):
            self._placement.admit()

    def _may_move(self, record: int, rank: int) -> bool:
        """Give a request its slot and KV on another rank, if that has room; whether it has (xLLM section 4.4).

        Its KV moves beside the projections of an iteration, which takes no time here.
        """
        return self._placement.move(self._here[record], self.first_rank + rank)

    def _end(self, epoch: int) -> None:
        if epoch != self._epoch or not self._running:
            return
        self._tell_span()
        self._running = False
        gone = [self._here.pop(record) for record in self._run.finish()]
        self.devices.free(self)
        for request in gone:
            self._run.release(request.record)
            self._placement.release(request)
            self._shared.ledger.complete(request, self._engine.now_seconds)
        if gone:
            self._placement.admit()
            self.freed()
        if not self._starting:
            self._starting = True
            self._engine.soon(self._start)

    def _tell_span(self) -> None:
        """Show the iterations that have ended."""
        step = self._run.step if self._shared.span else None
        if self._shared.span and step is not None and step.iterations:
            figures = {"requests": float(step.running), "iterations": float(step.iterations)}
            seconds = step.end_seconds - step.start_seconds
            self._shared.span(self.name, self.phase, step.start_seconds, seconds, figures)

    def _make_room(self) -> None:
        """Send the last requests of ranks back whose KV outgrew the cache; they are computed anew."""
        capacity = self.pool.kv.capacity_tokens_per_rank
        for rank in np.flatnonzero(self._run.kv_tokens() > capacity).tolist():
            held = [request for request in self._here.values() if request.place == self.first_rank + rank]
            while len(held) > 1 and self.pool.kv.charged(self._run.kv_tokens()[rank], len(held)) > capacity:
                self.lose(held.pop())

    def settle(self) -> None:
        """Count the iterations that ended so far, the one that runs is given up."""
        if self._running:
            self._run.give_up(self._engine.now_seconds)
            self._tell_span()
            self._running = False
            self._epoch += 1
            self.devices.free(self)

    def lose(self, request: Request) -> int:
        """Take a running or joining request out; return the tokens that it got, and let it be computed anew."""
        generated = self.take_out(request)
        self._lost(self, request, generated)
        return generated

    def take_out(self, request: Request) -> int:
        """Take a request out between iterations and free its room; return the tokens that it got here."""
        generated = 0
        for index, (joining, _) in enumerate(self._joining):
            if joining is request:
                del self._joining[index]
                break
        else:
            generated = self._run.answered(request.record) - 1
            self._run.take_out(request.record)
            del self._here[request.record]
        self._placement.release(request)
        return generated

    def evict(self, request: Request) -> None:
        """Let an offline request go back to the queue when the iteration that runs has ended; its KV is dropped."""
        self._evicting.append(request)
        self.give_way()
        self.wake()

    def admits(self, request: Request) -> bool:
        """Whether one more request keeps iterations within the TPOT limit, or the policy does not ask."""
        if self._shared.manifest.routing.offline != "slo" or self.stall_seconds == math.inf:
            return True
        (kv, sequences), joining = self._most_held(), len(self._joining) + 1
        kv += request.prompt + request.left
        return self.timer.iteration_seconds(self.total + joining, sequences + joining, kv) <= self.stall_seconds

    def busy_seconds_until(self, now: float) -> float:
        """Seconds of steps up to a time that is not before the last event."""
        return self._run.busy_seconds(now)

    def holding(self) -> list[Request]:
        """Return the requests that run or are about to."""
        return [*self._here.values(), *(request for request, _ in self._joining)]

    def _seconds(self, share: float = 1.0) -> float:
        """Return the duration of an iteration with a multiple of what runs now; 0 with nothing."""
        if not self._here:
            return 0.0
        kv, sequences = self._most_held()
        return self.timer.iteration_seconds(round(self.total * share), math.ceil(sequences * share), kv * share)

    def over_limit(self, guard: float) -> bool:
        """Whether an iteration with what runs now takes more than a share of the TPOT limit's."""
        return self._seconds() > guard * self.stall_seconds

    def could_take(self, more: float, guard: float) -> bool:
        """Whether so many more requests find slots, and iterations keep a share of the TPOT limit."""
        total = self.total + more
        if total > guard * self.ranks * self.pool.limits.requests_per_dp_rank:
            return False
        return not self._here or self._seconds(total / self.total) <= guard * self.stall_seconds

    def spare(self, guard: float) -> float:
        """Return the share of time that iterations leave to prompts while they keep a share of the TPOT limit."""
        if self.stall_seconds == math.inf:
            return 0.5
        return max(1.0 - self._seconds() / (guard * self.stall_seconds), 0.0)

    @property
    def reserved_tokens(self) -> int:
        """KV that is set aside on all ranks."""
        return sum(self._placement.reserved[self.first_rank : self.first_rank + self.ranks])

    def pause(self, seconds: float) -> None:
        """Give up the iteration that runs and do nothing for so many seconds."""
        self.stop(pause_seconds=seconds)

    def stop(self, pause_seconds: float = 0.0) -> list[tuple[Request, int]]:
        """Give up the iteration that runs, for ``pause_seconds`` or, if 0, until ``up`` again; return all requests
        here.

        Of each: the request and its rank, those about to join included; they stay until they are taken out.
        """
        self.settle()
        if pause_seconds:
            self.resumes_seconds = max(self.resumes_seconds, self._engine.now_seconds + pause_seconds)
            self.wake()
        else:
            self.up = False
        running = [(request, request.place - self.first_rank) for request in self._here.values()]
        return [*running, *self._joining]

    def reshape(self, cost: StepCost) -> None:
        """Go on with another step cost, of fewer ranks or of all again."""
        self.give_way()
        self.cost, self.timer = cost, self._shared.timer(cost, self.pool, self.phase)
