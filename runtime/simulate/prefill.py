"""Prefill instances: elastic passes that take what waits, up to the token budget of each DP rank."""

import heapq
import math
from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from ground.prefix_cache import CacheHit
from planner.manifest.schema import PhaseName, Pool
from planner.manifest.terms import StepCost
from planner.serving.prefill import IN_TIME, OFFLINE_GUARD
from runtime.simulate.device import Devices, Shared
from runtime.simulate.engine import COMPLETION
from runtime.simulate.prefixes import Loading
from runtime.simulate.request import PREFILL, Request
from runtime.simulate.steps import Pass, RankLoad

if TYPE_CHECKING:
    from runtime.simulate.decode import DecodeInstance

_LEAST_SHARE, _LEAST_CHUNK = 0.05, 16  # of time and of tokens that prompts have at least beside running requests
_SPARE_GUARD = 0.8  # share of the TPOT limit that running requests may come to with prompts beside them

Finished = Callable[["PrefillInstance", int, Request], None]
"""Called with the instance, the DP rank and the request when a prompt's last pass ends."""


class PrefillInstance:
    """One instance; ``queue`` may be shared with others (collaborative routing)."""

    phase: PhaseName = "prefill"

    def __init__(
        self, shared: Shared, name: str, pool: Pool, queue: deque[Request], offline: deque[Request], finished: Finished
    ) -> None:
        self.name, self.pool = name, pool
        self._shared, self._engine, self._finished = shared, shared.engine, finished
        self.cost = shared.cost(pool, self.phase)
        self.timer = shared.timer(self.cost, pool, self.phase)
        self._collaborative = shared.manifest.routing.prefill == "collaborative"
        self._interrupts = shared.manifest.routing.offline == "slo"
        self._counts_offline = shared.manifest.routing.offline == "equal"
        limit = shared.manifest.service_levels.ttft_seconds
        self._patient_seconds = limit or 0.0
        limit = math.inf if limit is None else limit
        self._offline_seconds, self._in_time_seconds = OFFLINE_GUARD * limit, IN_TIME * limit
        self.ranks = pool.degrees.attention_dp
        self.rank_devices = pool.degrees.attention_tp * pool.degrees.pp
        self.budget = pool.limits.tokens_per_device * self.rank_devices
        self._loading = Loading(shared, pool, self.timer, self.budget)
        self._alone_seconds: dict[int, float] = {}
        self.most_held = pool.kv.capacity_tokens_per_rank * self.ranks
        self.queue, self.offline = queue, offline
        self.devices = Devices()
        self.beside: DecodeInstance | None = None
        self.queued_tokens = 0
        self._rests_until = 0.0
        self._carried: list[tuple[Request, int, int]] = []  # request, rank, prompt tokens done
        self._turn = 0  # the rank that is first among equals
        self._pass: Pass | None = None
        self._starting = False
        self._epoch = 0
        self._blocked = False
        self.accepts = self.up = True
        self.waiting_tokens = self.held_tokens = self._held_offline = 0
        self.busy_seconds = self.busy_until_seconds = 0.0
        self.steps = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is prefilled or waits here alone."""
        return self._pass is None and not self._carried and (self._collaborative or not self.queue)

    def enqueue(self, request: Request) -> None:
        """Let ``request`` wait for a pass."""
        request.state = PREFILL
        self.queue.append(request)
        self.waiting_tokens += request.prompt
        self.queued_tokens += request.prompt
        self.wake()
        running = self._pass
        if self._interrupts and running is not None and running.only_offline:
            rest = self.busy_until_seconds - self._engine.now_seconds
            if rest + self.queued_tokens * self._rank_token_seconds / self.ranks > self._offline_seconds:
                self._interrupt()

    def found_here(self, request: Request) -> int:
        """Return the tokens of a prompt's head that stand in this instance's memory."""
        return self._loading.here(request)

    def _uncount(self, request: Request) -> None:
        if not request.offline or self._counts_offline:
            self.waiting_tokens -= request.prompt

    @property
    def due(self) -> bool:
        """Whether an online prompt waits that a pass can take."""
        return self.up and bool(self.queue) and not self._blocked

    @property
    def kept_tokens(self) -> int:
        """KV of a rank that is left to online prompts: what passes come to within the TTFT limit; half without one."""
        limit = self._shared.manifest.service_levels.ttft_seconds
        return self.most_held // (2 * self.ranks) if limit is None else int(limit / self._rank_token_seconds)

    @property
    def _helps(self) -> bool:
        """Whether offline prompts may come: to prefill instances, and to decode that spares them time.

        Decode takes what has waited for prefill as long as an online prompt may.
        """
        if self.accepts:  # KV that waits for decode leaves online prompts no room
            return self._held_offline <= self.budget * self.ranks
        if not self._interrupts or self.beside is None:
            return False
        placement = self._shared.placement
        queued = placement.waiting or placement.offline_waiting
        waits = not self.offline or self._engine.now_seconds - self.offline[0].arrival <= self._patient_seconds
        return not (queued or waits) and self.beside.could_take(1, _SPARE_GUARD) and self.share_beside() > _LEAST_SHARE

    @cached_property
    def _rank_token_seconds(self) -> float:
        """Seconds of a full pass per token of each rank."""
        return self.token_seconds(max(self._shared.manifest.workload.input_tokens, 1.0)) * self.ranks

    def wake(self) -> None:
        """Start a pass at the end of this instant unless one runs."""
        if self._pass is None and not self._starting and self.up:
            self._starting = True
            self._engine.soon(self._start)

    def give_way(self) -> None:
        """A pass runs to its end."""

    def _start(self, _: object = None) -> None:
        self._starting = False
        # What others share with it is its own only while it takes prompts
        waits = self._carried or (self.queue and (self.accepts or not self._collaborative))
        if self._pass is not None or not self.up or not (waits or (self.offline and self._helps)):
            self.devices.free(self)
            return
        if self._beside_others and self._engine.now_seconds < self._rests_until:
            self._starting = True
            self._engine.at(self._rests_until, COMPLETION, self._start)
            return
        if not self.devices.take(self):
            return
        making = self._fill()
        if not making.ended and not making.carried:
            self.devices.free(self)
            return
        carries = [each[0].offline for each in making.ended] + [each[0].offline for each in making.carried]
        making.only_offline = bool(self.offline or making.before) and all(carries)
        loads = making.loads()
        seconds = self.timer.step_seconds(loads, self.ranks) if loads else 0.0
        seconds += max(making.loading)
        self._pass = making
        now = self._engine.now_seconds
        if self._beside_others:
            self._rests_until = now + seconds / max(self.share_beside(), _LEAST_SHARE)
        self.busy_seconds += seconds
        self.busy_until_seconds = now + seconds
        self.steps += 1
        if self._shared.span:
            self._shared.span(self.name, "prefill", now, seconds, {"tokens": float(sum(making.tokens))})
        self._engine.at(now + seconds, COMPLETION, self._end, self._epoch)

    def _fill(self) -> Pass:
        """Put chunks into a pass: prompts under way, then online ones in order, then offline ones into what is left.

        Where online prompts come first by their limit, offline ones lengthen a pass no further than this allows.
        """
        making = Pass.empty(self.ranks, self._most_tokens)
        making.before, self._carried = self._carried, []
        for request, rank, done in making.before:
            if not request.offline:
                self._chunk(making, request, rank, done)
        if not self._collaborative:
            self._fill_in_order(making, self.queue)
        elif self.accepts:
            self._fill_evenly(making, self.queue)
        if self._interrupts and self.accepts and self._shared.offline:
            self._leave_time(making)
        for request, rank, done in making.before:
            if request.offline:
                self._chunk(making, request, rank, done)
        if self.offline and self._helps and not self.queue:
            self._fill_in_order(making, self.offline)
        return making

    def _leave_time(self, making: Pass) -> None:
        """Cut room to what ``prefill_loop.offline_room`` lets a pass be longer."""
        from planner.loops.prefill_loop import offline_room  # numba: half a second

        token_seconds, longest = self._rank_token_seconds, max(making.tokens)
        carried = [(request, request.prompt - end) for request, _, end in making.carried]
        here = [(r.arrival, left) for r, left in [*((r, 0) for r, _ in making.ended), *carried] if not r.offline]
        oldest = min((arrival for arrival, _ in here), default=math.inf)
        latest = min((arrival - left * token_seconds for arrival, left in here), default=math.inf)
        least = most = 0.0
        if here and (loads := making.loads()):
            least = self.timer.step_seconds(loads, self.ranks)
            most = self.timer.step_seconds([max(loads, key=lambda load: load.tokens)], 1)
        limits = self._offline_seconds, self._in_time_seconds, token_seconds
        most_tokens, share = offline_room(self._engine.now_seconds, (oldest, latest), (least, most), limits)
        for rank, tokens in enumerate(making.tokens):
            more = max(most_tokens - tokens, share * (longest - tokens))
            making.room[rank] = int(min(making.room[rank], more))

    def _fill_in_order(self, making: Pass, queue: deque[Request]) -> None:
        """Give each prompt to the rank with most room, until one fits nowhere; ranks with as much go in turn.

        Prompts longer than a pass are taken in parts, and offline ones where passes are cut to limits. In turn, or the
        first rank's link would carry the KV of every pass that does not fill all ranks.
        """
        most = self._most_tokens
        rooms = [(-room, (rank - self._turn) % self.ranks, rank) for rank, room in enumerate(making.room)]
        heapq.heapify(rooms)
        while queue:
            request = queue[0]
            found, start = self._loading.find(request)
            length = request.prompt - start
            room, turn, rank = rooms[0]
            whole = length <= most and not (request.offline and self._interrupts)
            if -room < (length if whole else 1) or not self._holds(request):
                break
            queue.popleft()
            self._take(making, request, rank, start, found)
            heapq.heapreplace(rooms, (-making.room[rank], turn, rank))
        self._turn += len(making.taken)

    def _fill_evenly(self, making: Pass, queue: deque[Request]) -> None:
        """Take what fits in order, then deal the longest computed parts first, each to the rank with least work.

        The collaborative scheduler of xDeepServe section 4: it knows lengths and prefix hits of all ranks.
        """
        room = sum(making.room)
        chosen: list[tuple[Request, int, CacheHit | None]] = []
        while queue:
            request = queue[0]
            found, start = self._loading.find(request)
            length = request.prompt - start
            if room < min(length, self.budget) or not self._holds(request):
                break
            room -= min(length, self.budget)
            chosen.append((queue.popleft(), start, found))
        chosen.sort(key=lambda item: item[0].reused - item[0].prompt)
        late: list[Request] = []
        for request, start, found in chosen:
            length = min(request.prompt - start, self.budget)
            turned = ((rank + self._turn) % self.ranks for rank in range(self.ranks))
            fitting = [rank for rank in turned if making.room[rank] >= length]
            if fitting:
                self._take(making, request, min(fitting, key=lambda rank: making.pairs[rank]), start, found)
            else:
                late.append(request)
        self._turn += len(making.taken)
        queue.extendleft(sorted(late, key=lambda request: -request.number))

    def _holds(self, request: Request) -> bool:
        """Whether there is KV room for one more prompt; finished ones keep theirs until they are pulled."""
        free = self.free_tokens()
        self._blocked = free < request.prompt and (bool(self.held_tokens) or free < self.most_held)
        return not self._blocked

    def _take(self, making: Pass, request: Request, rank: int, start: int, found: CacheHit | None) -> None:
        if request.started < 0:
            request.started = self._engine.now_seconds
        request.state = PREFILL
        request.hold = request.prompt
        self.held_tokens += request.prompt
        if not request.offline or self._counts_offline:
            self.queued_tokens -= request.prompt
        if found:
            self._shared.cache.count(found, request.prompt)
            making.loading[rank] += self._loading.seconds(found)
        making.taken.append(request)
        self._chunk(making, request, rank, start)

    def _chunk(self, making: Pass, request: Request, rank: int, done: int) -> None:
        """Put the next tokens of a prompt, reused ones included, into the room of its rank.

        Whole chunks of reused tokens cost no pass: ``done`` starts behind them.
        """
        length = request.prompt
        end = min(done + making.room[rank], length)
        making.room[rank] -= end - done
        cached = min(max(done, request.reused), end)
        if end > cached:
            computed = end - cached
            making.tokens[rank] += computed
            making.context[rank] += cached
            making.pairs[rank] += computed * cached + computed * (computed + 1) / 2
            making.finishing[rank] += end == length
        if end == length:
            making.ended.append((request, rank))
        else:
            making.carried.append((request, rank, end))

    def _end(self, epoch: int) -> None:
        if epoch != self._epoch or self._pass is None:
            return
        done, self._pass = self._pass, None
        self._carried = done.carried
        now = self._engine.now_seconds
        for request, rank in done.ended:
            if request.first_token < 0:
                request.first_token = now
            self._uncount(request)
            self._loading.insert(request)
            self._held_offline += request.hold if request.offline else 0
            self._finished(self, rank, request)
        self.devices.free(self)
        self.wake()

    def pulled(self, request: Request) -> None:
        """Free the KV that a request held here."""
        self._held_offline -= request.hold if request.offline else 0
        self._let_go(request)
        self.unblock()

    def _let_go(self, request: Request) -> None:
        self.held_tokens -= request.hold
        request.hold = 0

    def unblock(self) -> None:
        """Look again for KV room, of which there is more, and for offline prompts that there was none for."""
        if self._blocked or (self._pass is None and self.offline and self._helps):
            self.wake()

    def _interrupt(self) -> None:
        """Stop a pass of offline prompts; what it computed of them is lost (xLLM section 3.1)."""
        making = self._abort()
        if making is None:
            return
        self._carried = making.before
        for request in reversed(making.taken):
            self._let_go(request)
            self.offline.appendleft(request)
        self.wake()

    def _abort(self) -> Pass | None:
        """End the pass that runs without its results."""
        making, self._pass = self._pass, None
        self._epoch += 1
        if making is not None:
            self.busy_seconds -= max(self.busy_until_seconds - self._engine.now_seconds, 0.0)
            self.busy_until_seconds = self._engine.now_seconds
            self.devices.free(self)
        return making

    @property
    def _beside_others(self) -> bool:
        """Whether requests decode on these devices, which passes must not keep waiting for long."""
        return self.beside is not None and self.beside.beside is None and not self.beside.idle

    @property
    def _most_tokens(self) -> int:
        """Tokens of a rank and pass: fewer where others wait for its end, or may come."""
        if self.beside is None or (self.accepts and not self._beside_others):
            return self.budget
        full = self.budget * self.ranks * self.token_seconds(self.budget)
        share = min(self.beside.stall_seconds / full, 1.0)
        return min(max(int(self.budget * share), _LEAST_CHUNK), self.budget)

    def share_beside(self) -> float:
        """Return the share of time that prompts have beside running requests; at least half on a prefill instance."""
        spare = self.beside.spare(_SPARE_GUARD) if self.beside is not None else 1.0
        return max(spare, 0.5) if self.accepts else spare

    def free_tokens(self) -> int:
        """KV room for prompts, beside those that wait to be pulled and those that decode here."""
        beside = self.beside.reserved_tokens if self.beside is not None else 0
        return self.most_held - self.held_tokens - beside

    @property
    def nearly_full(self) -> bool:
        """Whether prompts that wait for decode leave few others room."""
        return self.accepts and self.free_tokens() < 0.5 * self.most_held

    def token_seconds(self, prompt_tokens: float) -> float:
        """Return the seconds of a full pass of prompts of one length, per token of the instance."""
        finishing = float(max(round(self.budget / prompt_tokens), 1))
        load = RankLoad(0.0, 0.0, float(self.budget), 0.0, self.budget * prompt_tokens / 2, finishing)
        # All ranks carry as much, so one stands for their mean, too.
        return self.timer.step_seconds([load], 1) / (self.budget * self.ranks)

    def prompt_seconds(self, tokens: int) -> float:
        """Return the seconds of passes of a prompt alone on one rank."""
        found = self._alone_seconds.get(tokens)
        if found is None:
            chunks = -(-tokens // self.budget)
            part = tokens / chunks
            load = RankLoad(0.0, 0.0, part, tokens / 2, tokens * (tokens + 1) / 2 / chunks, 1.0)
            found = self._alone_seconds[tokens] = chunks * self.timer.step_seconds([load], self.ranks)
        return found

    def give_back(self) -> list[Request]:
        """Return the prompts that wait for a pass, which are to wait elsewhere."""
        waiting = [] if self._collaborative else list(self.queue)
        for request in waiting:
            self._uncount(request)
            self.queued_tokens -= request.prompt
        if waiting:
            self.queue.clear()
        return waiting

    def busy_seconds_until(self, now: float) -> float:
        """Seconds of steps up to a time that is not before the last event."""
        return self.busy_seconds - max(self.busy_until_seconds - now, 0.0)

    def holding(self) -> list[Request]:
        """Return the prompts in the pass that runs and those under way between passes."""
        here = [request for request, _, _ in self._carried]
        if self._pass is not None:
            here += [request for request, _ in self._pass.ended]
            here += [request for request, _, _ in self._pass.carried]
        return here

    def reshape(self, cost: StepCost) -> None:
        """Go on with another step cost."""
        self.cost, self.timer = cost, self._shared.timer(cost, self.pool, self.phase)
        self._alone_seconds.clear()

    def hang(self) -> None:
        """Do nothing until ``stop``: a pass that runs never ends, and what comes waits."""
        self._epoch += 1
        self._pass = self._pass or Pass.empty(self.ranks, 0)

    def stop(self) -> list[Request]:
        """Go down; return the requests that were here, in order of arrival, all computed anew elsewhere."""
        here = dict.fromkeys(self.holding())
        self._abort()
        self._carried = []
        for request in here:
            self._let_go(request)
            self._uncount(request)
        here |= dict.fromkeys(self.give_back())
        self.up = False
        return sorted(here, key=lambda request: request.number)
