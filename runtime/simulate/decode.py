"""Decode instances: continuous batching per DP rank, all ranks leaving each iteration together."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from planner.manifest.drafts import tokens_per_iteration
from planner.manifest.schema import PhaseName, Pool
from planner.manifest.terms import StepCost
from runtime.simulate.batch import IterationCounts, RunningBatch, Stretch
from runtime.simulate.device import Devices, Shared
from runtime.simulate.engine import COMPLETION, generator
from runtime.simulate.request import DECODE, TRANSFER, Request

if TYPE_CHECKING:
    from runtime.simulate.prefill import PrefillInstance


_EVERY_SECONDS, _UNEVEN_SHARE = 0.5, 0.01
"""Between two looks at how even ranks are, and what the fullest one may hold beyond the mean."""

Lost = Callable[["DecodeInstance", Request, int], None]
"""Called with the instance, a request that it gives up and the tokens that it got there."""


class DecodeInstance:
    """One instance. Iterations between which nobody joins or leaves are summed in one go.

    ``_running`` are the iterations under way: many while the composition is constant, cut to the first that ends at or
    after now when a request joins.
    """

    phase: PhaseName = "decode"

    def __init__(self, shared: Shared, name: str, pool: Pool, lost: Lost, opened: bool = True) -> None:
        self.name, self.pool, self._lost = name, pool, lost
        self._shared, self._engine, self._placement = shared, shared.engine, shared.placement
        self.ranks = pool.degrees.attention_groups
        self.rank_devices = pool.degrees.attention_tp * pool.degrees.pp
        mode = "expected" if shared.expected_drafts else "sampled"
        counts = IterationCounts(pool.mtp, mode, generator(shared.seed, f"drafts {name}"))  # type: ignore[arg-type]
        self.cost = self._cost_of(pool)
        self.batch = RunningBatch(self.ranks, shared.timer(self.cost, pool, self.phase), counts)
        self.devices = Devices()
        self.freed: Callable[[], None] = lambda: None
        self.beside: PrefillInstance | None = None
        """Whose offline prompts are answered here while it takes prompts: what runs gives way to online ones."""
        self.first_rank = self._register(opened)
        self._joining: list[tuple[Request, int]] = []
        self._evicting: list[Request] = []
        self._running: Stretch | None = None
        self._starting = False
        self._epoch = 0
        self._overflows = shared.manifest.routing.decode_reservation != "whole"
        limit = shared.manifest.service_levels.tpot_seconds
        tokens = tokens_per_iteration(pool.mtp.drafts, pool.mtp.acceptance)
        self._most_seconds = None if limit is None else limit * tokens
        self.up = True
        self.resumes_seconds = 0.0
        self.busy_seconds = self.busy_until_seconds = 0.0
        self.steps = 0
        self._evens, self._evens_at = shared.manifest.routing.ranks == "even", 0.0

    def _register(self, opened: bool) -> int:
        return self._placement.register(self, self.pool, self.ranks, opened)

    def _cost_of(self, pool: Pool) -> StepCost:
        cost = pool.step_costs[self.phase].to_step_cost()
        balance = self._shared.balance.get(pool.role)
        return cost if balance is None else replace(cost, balance=balance, sampling_deviations=0.0)

    @property
    def idle(self) -> bool:
        """Whether nothing runs or is about to."""
        return not self.batch.total and not self._joining

    def join(self, request: Request) -> None:
        """Take ``request``, whose KV is here, into the next iteration."""
        request.state, request.kv = DECODE, request.prompt
        if request.started < 0:
            request.started = self._engine.now_seconds
        self._joining.append((request, request.place - self.first_rank))
        if self._running is None:
            self.wake()
        else:
            self._cut()

    def wake(self) -> None:
        """Start an iteration at the end of this instant unless one runs."""
        if self._running is None and not self._starting and self.up:
            self._starting = True
            self._engine.soon(self._start)

    def give_way(self) -> None:
        """Stop after the iteration that runs."""
        self._cut()

    def _cut(self) -> None:
        """Let the iterations under way end with the one that runs now."""
        running = self._running
        if running is None or running.count == 1:
            return
        ended = running.reached(self._engine.now_seconds)
        if ended < running.count:
            kept = self._running = replace(running, count=ended)
            self.busy_seconds -= running.end_seconds - kept.end_seconds
            self.busy_until_seconds = kept.end_seconds
            self._epoch += 1
            self._engine.at(kept.end_seconds, COMPLETION, self._end, self._epoch)

    def _start(self, _: object = None) -> None:
        self._starting = False
        if self._running is not None or not self.up:
            return
        now = self._engine.now_seconds
        if now < self.resumes_seconds:
            self._starting = True
            self._engine.at(self.resumes_seconds, COMPLETION, self._start)
            return
        self._absorb()
        if self._overflows and self.batch.total:
            self._make_room()
        if not self.batch.total:
            return
        if self._evens and now >= self._evens_at:
            self._evens_at = now + _EVERY_SECONDS
            self._even_out()
        if self.beside is not None and self.beside.due:
            self.devices.after(self)
            return
        if not self.devices.take(self):
            return
        single = self._shared.stepping or self._overflows
        self._running = self.batch.stretch(now, 1 if single else math.inf)
        last = self._running.end_seconds
        self.busy_seconds += last - now
        self.busy_until_seconds = last
        self._engine.at(last, COMPLETION, self._end, self._epoch)

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
            self.batch.add(request, rank)
        self._joining.clear()
        if len(evicting) > len(self._evicting):
            self._placement.admit()

    def _even_out(self) -> None:
        """Move requests from the fullest rank to the emptiest one while a rank holds much more than the mean.

        Of those that half the gap holds the longest goes to the emptiest rank that does not run most requests, as long
        as that has room; its KV moves beside the projections of an iteration (xLLM section 4.4), which takes no time
        here. So neither the most KV nor the most requests of a rank grow.
        """
        batch, held, on = self.batch, self.batch.kv_tokens(), self.batch.by_rank()
        while held.max() > (1 + _UNEVEN_SHARE) * held.mean():
            few = batch.sequences < batch.sequences.max()
            top, low = int(held.argmax()), int(np.where(few, held, np.inf).argmin())
            half = (held[top] - held[low]) / 2
            lighter = ((batch.held_by(each), -each.joined, -each.number, each) for each in on[top])
            longest = max((each for each in lighter if each[0] <= half), default=(0, 0, 0, None))[3]
            if longest is None or not few[low] or not self._placement.move(longest, self.first_rank + low):
                return
            batch.move(longest, low)
            on[top].remove(longest)
            on[low].append(longest)
            held = batch.kv_tokens()

    def _end(self, epoch: int) -> None:
        if epoch != self._epoch or self._running is None:
            return
        gone = self._advance(self._running, self._running.count)
        self.devices.free(self)
        if gone:
            self._finish(gone)
        if not self._starting:
            self._starting = True
            self._engine.soon(self._start)

    def _advance(self, running: Stretch, ended: int) -> list[tuple[Request, int]]:
        """Count those iterations under way that have ended; return who left with the last of them."""
        if self._shared.span and ended:
            figures = {"requests": float(self.batch.total), "iterations": float(ended)}
            begin = running.begin_seconds
            self._shared.span(self.name, self.phase, begin, running.end(ended) - begin, figures)
        self._running = None
        self.steps += ended
        return self.batch.advance(ended)

    def _finish(self, gone: list[tuple[Request, int]]) -> None:
        """Let the requests go whose tokens are out, and those in that waited for their room."""
        now, shared = self._engine.now_seconds, self._shared
        for request, _ in gone:
            self._release(request)
            shared.ledger.complete(request, now)
        self._placement.admit()
        self.freed()

    def _release(self, request: Request) -> None:
        self._placement.release(request)

    def _make_room(self) -> None:
        """Send the last requests of ranks back whose KV outgrew the cache; they are computed anew."""
        capacity = self.pool.kv.capacity_tokens_per_rank
        for rank in np.flatnonzero(self.batch.kv_tokens() > capacity).tolist():
            held = [request for request, place in self.batch.requests() if place == rank]
            while len(held) > 1 and self.pool.kv.charged(self.batch.kv_tokens()[rank], len(held)) > capacity:
                self.lose(held.pop())

    def settle(self) -> None:
        """Count the iterations that ended so far, the one that runs is given up."""
        running = self._running
        if running is None:
            return
        now = self._engine.now_seconds
        ended = running.reached(now)
        # Nobody leaves before the last of them, which has an event of its own.
        ended = ended if running.end(ended) <= now and ended < running.count else ended - 1
        self.busy_seconds -= max(running.end_seconds - now, 0.0)
        self.busy_until_seconds = now
        self._advance(running, ended)
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
            generated = self.batch.remove(request)
        self._release(request)
        return generated

    def evict(self, request: Request) -> None:
        """Let an offline request go back to the queue when the iteration that runs has ended; its KV is dropped."""
        self._evicting.append(request)
        self._cut()
        self.wake()

    def admits(self, request: Request) -> bool:
        """Whether one more request keeps iterations within the TPOT limit, or the policy does not ask."""
        if self._shared.manifest.routing.offline != "slo" or self._most_seconds is None:
            return True
        batch, joining = self.batch, len(self._joining)
        kv = float(batch.kv_tokens().max()) + request.prompt + request.left
        sequences = int(batch.sequences.max()) + 1 + joining
        seconds = batch.timer.iteration_seconds(batch.total + joining + 1, sequences, kv)
        return seconds <= self._most_seconds

    def busy_seconds_until(self, now: float) -> float:
        """Seconds of steps up to a time that is not before the last event."""
        return self.busy_seconds - max(self.busy_until_seconds - now, 0.0)

    def holding(self) -> list[Request]:
        """Return the requests that run or are about to."""
        return [request for request, _ in (*self.batch.requests(), *self._joining)]

    def _seconds(self, share: float = 1.0) -> float:
        """Return the duration of an iteration with a multiple of what runs now; 0 with nothing."""
        batch = self.batch
        if not batch.total:
            return 0.0
        kv, sequences = float(batch.kv_tokens().max()) * share, math.ceil(int(batch.sequences.max()) * share)
        return batch.timer.iteration_seconds(round(batch.total * share), sequences, kv)

    def over_limit(self, guard: float) -> bool:
        """Whether an iteration with what runs now takes more than a share of the TPOT limit's."""
        return self._most_seconds is not None and self._seconds() > guard * self._most_seconds

    def could_take(self, more: float, guard: float) -> bool:
        """Whether so many more requests find slots, and iterations keep a share of the TPOT limit."""
        total = self.batch.total + more
        if total > guard * self.ranks * self.pool.limits.requests_per_dp_rank:
            return False
        if self._most_seconds is None or not self.batch.total:
            return True
        return self._seconds(total / self.batch.total) <= guard * self._most_seconds

    def spare(self, guard: float) -> float:
        """Return the share of time that iterations leave to prompts while they keep a share of the TPOT limit."""
        if self._most_seconds is None:
            return 0.5
        return max(1.0 - self._seconds() / (guard * self._most_seconds), 0.0)

    @property
    def reserved_tokens(self) -> int:
        """KV that is set aside on all ranks."""
        return sum(self._placement.reserved[self.first_rank : self.first_rank + self.ranks])

    @property
    def stall_seconds(self) -> float:
        """Longest pass that running requests may wait for: an iteration at the TPOT limit, for short answers."""
        return math.inf if self._most_seconds is None else self._most_seconds

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
        return [*self.batch.requests(), *self._joining]

    def reshape(self, cost: StepCost) -> None:
        """Go on with another step cost, of fewer ranks or of all again."""
        self._cut()
        self.cost = cost
        self.batch.timer = self._shared.timer(cost, self.pool, self.phase)
