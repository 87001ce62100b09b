"""Aggregated instances: the compiled steps of ``planner.loops``, each at its time on the clock of the run.

A step is formed, and requests are let in and preempted, by the rule of the manifest's engine
(``planner.serving.rules``), as in the plan. Offline requests are served in order with the others. What happens beside
it is played here: prefixes, faults.
"""

import math

from planner.manifest.schema import PhaseName, Pool
from planner.manifest.terms import StepCost
from planner.serving.aggregated_run import DrivenInstance
from planner.serving.deployed import aggregated_pool
from runtime.simulate.decode import EVEN_EVERY_SECONDS, UNEVEN_SHARE
from runtime.simulate.device import Shared
from runtime.simulate.engine import COMPLETION
from runtime.simulate.placement import TOO_LONG, in_blocks
from runtime.simulate.prefixes import Prefixes
from runtime.simulate.request import DECODE, PREFILL, Request
from runtime.simulate.steps import StepTimer


class MixedInstance:
    """One instance with continuous batching and chunked prefill (Sarathi-Serve, arXiv 2403.02310)."""

    phase: PhaseName = "mixed"

    def __init__(self, shared: Shared, name: str, pool: Pool) -> None:
        self.name, self.pool, self._shared, self._engine = name, pool, shared, shared.engine
        self.ranks = pool.degrees.attention_groups
        self.rank_devices = pool.degrees.attention_tp * pool.degrees.pp
        self._counts, self.cost = shared.counts(pool, name), shared.cost(pool, self.phase)
        self._timer: StepTimer = shared.timer(self.cost, pool, self.phase)
        self._prefixes = Prefixes(shared, pool)
        self._evens, self._evens_at = shared.manifest.routing.ranks == "even", 0.0
        self._here: dict[int, Request] = {}
        self.accepts = self.up = True
        self.waiting_tokens = self._epoch = self._past_steps = 0
        self._past_busy = 0.0
        self._looking = False
        self._run = self._idle_run()

    def _idle_run(self) -> DrivenInstance:
        return DrivenInstance(aggregated_pool(self._shared.manifest, self.pool, self.cost, times=self._timer.table))

    @property
    def idle(self) -> bool:
        """Whether nobody is here."""
        return not self._here

    def enqueue(self, request: Request) -> None:
        """Let ``request`` wait for a step, or fail it if no rank could ever hold it."""
        request.state = PREFILL
        tokens = in_blocks(self.pool.kv, request.prompt + 1 + request.left)
        if tokens > self.pool.kv.capacity_tokens_per_rank:
            self._shared.ledger.fail(request, self._engine.now_seconds, TOO_LONG)
            return
        request.need = tokens
        self.waiting_tokens += request.prompt
        self._let_in(request)
        if self._run.iterations > 1 or self._run.due_seconds == math.inf:
            self._look_soon()

    def _let_in(self, request: Request) -> None:
        reused = request.reused
        if request.first_token >= 0 and not request.retries:  # in decode when the run begins: its KV is here
            reused = request.prompt - 1
        elif request.blocks is not None and not request.retries:
            found = self._prefixes.look_up(request)
            self._shared.cache.count(found, request.prompt)
            request.reused = reused = found.tokens
        iterations = self._counts.draw(request.left) if request.left else 0
        tokens = (request.prompt, reused, request.left + 1)
        request.place = self._run.add(self._engine.now_seconds, tokens, iterations, request.need)
        self._here[request.place] = request

    def found_here(self, request: Request) -> int:
        """Return the tokens of a prompt's head that stand in this instance's memory."""
        return self._prefixes.here(request)

    def _look_soon(self) -> None:
        if self.up and not self._looking:
            self._looking = True
            self._engine.soon(self._look)

    def _look(self, _: object = None) -> None:
        self._looking = False
        if not self.up:
            return
        if self._evens and self._engine.now_seconds >= self._evens_at:
            self._evens_at = self._engine.now_seconds + EVEN_EVERY_SECONDS
            self._end_early()
            self._run.even_out(UNEVEN_SHARE)
        self._advance(schedule=True)

    def _step_ends(self, epoch: int) -> None:
        """Advance to the end of a step, or to where the next one is formed; whoever comes just now is in the next."""
        if epoch != self._epoch:
            return
        if self._shared.span:
            self._tell_span()
        alone = not (self._shared.follows or self._evens or self._engine.happens_now)
        self._advance(schedule=alone)
        if not alone:
            self._look_soon()

    def _tell_span(self) -> None:
        step = self._run.step
        if step.end_seconds <= self._engine.now_seconds and self._shared.span:
            figures = {"requests": float(step.running), "tokens": step.prompt_tokens}
            seconds = step.end_seconds - step.start_seconds
            self._shared.span(self.name, self.phase, step.start_seconds, seconds, figures)

    def _advance(self, schedule: bool) -> None:
        """Bring the instance to this instant, let go who has all tokens, and come back when it is due."""
        before, now = self._run.due_seconds, self._engine.now_seconds
        for record in self._run.proceed(now, schedule, self._shared.stepping):
            request = self._here.get(record)
            if request is not None:
                self._has_tokens(record, request)
        due = self._run.due_seconds
        if due != before or due <= now:
            self._epoch += 1
            if due <= now:
                self._look_soon()
            elif due < math.inf:
                self._engine.at(due, COMPLETION, self._step_ends, self._epoch)

    def _end_early(self) -> None:
        """Let the iterations that were added up end with the one that runs now."""
        self._run.end_early(self._engine.now_seconds)
        self._advance(schedule=False)

    def _has_tokens(self, record: int, request: Request) -> None:
        """Note the first token of a request, and let it go with the last one."""
        begun, first, left = self._run.seconds_of(record)
        if request.state == PREFILL:
            request.state = DECODE
            self._note_start(request, begun)
            self.waiting_tokens -= request.prompt
            if request.first_token < 0:
                request.first_token = first
            self._prefixes.insert(request)
        if left >= 0:
            self._leave(record, request)
            request.retries += self._run.release(record)
            self._shared.ledger.complete(request, left)

    def _leave(self, record: int, request: Request) -> None:
        del self._here[record]
        request.place = -1

    @staticmethod
    def _note_start(request: Request, begun: float) -> None:
        if request.started < 0 <= begun:
            request.started = begun

    def holding(self) -> list[Request]:
        """Return all requests that are here."""
        return list(self._here.values())

    @property
    def waiting(self) -> int:
        """Prompts that no step has carried yet."""
        begun = (self._run.seconds_of(record)[0] for record, request in self._here.items() if request.state == PREFILL)
        return sum(seconds < 0 for seconds in begun)

    def pause(self, seconds: float) -> None:
        """Give up the step that runs; it begins anew so many seconds later."""
        self._advance(schedule=False)
        self._run.halt(self._engine.now_seconds, self._engine.now_seconds + seconds)
        self._look_soon()

    def stop(self) -> list[tuple[Request, int]]:
        """Go down; return who was here by number, with the tokens that each got after its first, or -1 before it."""
        self._end_early()
        found = []
        for record, request in self._here.items():
            begun, first, _ = self._run.seconds_of(record)
            self._note_start(request, begun)
            found.append((request, self._run.answered(record) - 1 if first >= 0 else -1))
            request.place = -1
        now = self._engine.now_seconds
        self._past_busy, self._past_steps = self.busy_seconds_until(now), self.steps
        self._here, self.waiting_tokens = {}, 0
        self.up, self._run = False, self._idle_run()
        self._epoch += 1
        return sorted(found, key=lambda pair: pair[0].number)

    def reshape(self, cost: StepCost) -> None:
        """Go on with another step cost."""
        self.cost, self._timer = cost, self._shared.timer(cost, self.pool, self.phase)
        self._end_early()
        self._run.times = self._timer.table
        self._look_soon()

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._past_steps + self._run.steps

    def busy_seconds_until(self, now: float) -> float:
        """Seconds of steps up to a time that is not before the last event."""
        return self._past_busy + self._run.busy_seconds(now)

    def occupancy(self) -> list[tuple[float, int, bool, int, int]]:
        """Return KV tokens and requests held, whether more may come, and the limits of both, by rank."""
        limits = self.pool.kv.capacity_tokens_per_rank, self.pool.limits.requests_per_dp_rank
        tokens, requests = (column.tolist() for column in self._run.held_tokens())
        return [(*held, self.up, *limits) for held in zip(tokens, requests, strict=True)]
