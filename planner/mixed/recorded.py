"""Every request of a recorded stream at aggregated instances: a recursion over their own steps.

A step begins when the last one ends, or with the next arrival, takes of every DP rank what prompt tokens have come
there by then, first come first served, up to the room beside the running requests, and lasts as long as its slowest
rank.
Requests join with their first token and leave after the steps that their answer takes. Between arrivals and departures
steps without prompts are added up. It is the rule of ``runtime.simulate.mixed``; nothing is drawn.

Ref: Sarathi-Serve (arXiv 2403.02310) section 4; D. V. Lindley, The theory of queues with a single server, Proc. Camb.
Phil. Soc. 48:277, 1952.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.mixed.step_times import StepTimes
from planner.mixed.steps import Aggregate
from planner.queues.prefill_queue import Policy
from planner.queues.queueing import Array
from planner.queues.recorded_stream import dealt, prompt_tokens
from planner.workload import Trace

RankPolicy = Literal["round_robin", "least_requests", "least_kv"]
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedMachines:
    """Instances that are alike, and who takes what."""

    aggregate: Aggregate
    times: StepTimes
    """Of the aggregate."""
    instances: int
    policy: Policy
    """Which instance a request goes to: in turn, or to the one with fewest prompt tokens that wait or run."""
    rank_policy: RankPolicy
    """Which of its ranks: whose turn is longest ago, or who has least; full ones are passed over."""
    capacity_tokens: float
    """KV of a rank, of which a request takes all it will need at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of every request, [requests]."""

    first_token_seconds: Array
    left_seconds: Array
    busy_seconds: float
    """Of all instances."""


@dataclass(slots=True)
class _Requests:
    """The stream as lists, for one number at a time."""

    tokens: list[int]
    reused: list[int]
    iterations: list[int]
    """After the first token."""
    growth: list[float]
    """Cached tokens that each of them adds."""
    needs: list[float]
    """KV that is set aside."""
    first_token: list[float]
    left: list[float]


class _Ranks:
    """Places and KV of an instance's ranks, and who waits for them."""

    def __init__(self, machines: MixedMachines, requests: _Requests) -> None:
        ranks = machines.aggregate.ranks
        self._most, self._capacity = machines.aggregate.most_requests, machines.capacity_tokens
        self._needs = requests.needs
        self._held, self._taken, self._turns = [0.0] * ranks, [0] * ranks, [0] * ranks
        keys: dict[RankPolicy, list[int] | list[float]] = {
            "round_robin": self._turns,
            "least_requests": self._taken,
            "least_kv": self._held,
        }
        self._by = keys[machines.rank_policy]
        self._turn = 0
        self.waiting: deque[int] = deque()

    def place(self) -> tuple[int, int] | None:
        """Take the first that waits to a rank that has room for it; None where there is none."""
        if not self.waiting:
            return None
        need = self._needs[self.waiting[0]]
        rank = min(range(len(self._by)), key=lambda each: (not self._fits(each, need), self._by[each]))
        if not self._fits(rank, need):
            return None
        self._turn += 1
        self._turns[rank] = self._turn
        self._taken[rank] += 1
        self._held[rank] += need
        return self.waiting.popleft(), rank

    def _fits(self, rank: int, need: float) -> bool:
        """Whether a request has room; one that no rank could hold takes an empty one."""
        taken = self._taken[rank]
        return taken < self._most and (not taken or self._held[rank] + need <= self._capacity)

    def release(self, request: int, rank: int) -> None:
        """Free what a request takes."""
        if self._taken[rank] == self._most:  # a full rank takes its turn again when it has room
            self._turns[rank] = self._turn
        self._taken[rank] -= 1
        self._held[rank] -= self._needs[request]


class _Head:
    """One instance: prompts by rank, running requests by the step with which they leave, and their cached tokens."""

    def __init__(self, machines: MixedMachines, requests: _Requests) -> None:
        aggregate = machines.aggregate
        self._ranks, self._queries = aggregate.ranks, aggregate.cost.queries_per_sequence
        self._budget = int(aggregate.budget_tokens)
        self._times, self._requests = machines.times, requests
        self._places = _Ranks(machines, requests)
        self._prompts: dict[int, deque[list[int]]] = {}  # of ranks that have any: request, tokens done
        self._leaving: list[tuple[int, int, int]] = []  # step count, request, rank
        self._running = [0] * self._ranks
        self._cached, self._growth = np.zeros(self._ranks), np.zeros(self._ranks)  # at count 0, and per step
        self._count = 0
        self._ended: list[tuple[int, int]] | None = None  # prompts of the step under way that it ends; None: none is
        self._now = self.busy_seconds = 0.0  # when the step under way ends, or the last one did
        self.held_tokens = 0
        """Prompt tokens that wait or run."""

    def add(self, request: int, now: float) -> None:
        """Let a request wait for room."""
        if self._ended is None:
            self._now = max(self._now, now)
        self.held_tokens += self._requests.tokens[request]
        self._places.waiting.append(request)
        self._admit()

    def advance(self, until: float) -> None:
        """Run every step that begins before ``until``; what arrives at the very moment of a begin is in the step.

        Who is done with one that ends later has not left.
        """
        while True:
            if self._ended is not None:
                if self._now > until:
                    return
                self._finish(self._ended)
            if self._now >= until or not (self._prompts or self._leaving):
                return
            if self._prompts:
                self._step()
            else:
                self._stretch(until)

    def _admit(self) -> None:
        while (placed := self._places.place()) is not None:
            request, rank = placed
            self._prompts.setdefault(rank, deque()).append([request, self._requests.reused[request]])

    def _stretch(self, until: float) -> None:
        """Run steps without prompts until somebody leaves, or up to the first that ends at ``until`` or behind it."""
        beside, steps = self._times.beside(len(self._leaving)), self._leaving[0][0] - self._count
        cached = self._cached + self._growth * self._count
        top = int(cached.argmax())
        first = beside.alone(0.0, float(cached[top]))
        more = beside.token_seconds * float(self._growth[top])
        if first * steps + more * steps * (steps - 1) / 2 > until - self._now:
            steps = _reached(until - self._now, first, more, steps)
        self._run(first * steps + more * steps * (steps - 1) / 2, steps, [])

    def _step(self) -> None:
        """Fill a step with prompts and run it."""
        requests = self._requests
        ended: list[tuple[int, int]] = []
        beside = self._times.beside(len(self._leaving))
        cached = self._cached + self._growth * self._count
        total, heaviest = 0, (0.0, [0.0] * 4, 0)
        for rank, waiting in list(self._prompts.items()):
            room = max(self._budget - int(self._running[rank] * self._queries), 1)
            tokens = context = pairs = finishing = 0
            for prompt in waiting:
                request, done = prompt
                computed = min(room, requests.tokens[request] - done)
                room, tokens, context = room - computed, tokens + computed, context + done
                pairs += computed * done + computed * (computed + 1) // 2
                prompt[1] = done + computed
                if prompt[1] == requests.tokens[request]:
                    finishing += 1
                if not room:
                    break
            for _ in range(finishing):
                ended.append((waiting.popleft()[0], rank))
            if not waiting:
                del self._prompts[rank]
            total += tokens
            weight = tokens + pairs * beside.pair_tokens
            if weight > heaviest[0]:
                heaviest = weight, [tokens, context, pairs, finishing], rank
        seconds = beside.loaded(heaviest[1], total / self._ranks, float(cached[heaviest[2]]))
        if self._ranks > 1:
            seconds = max(seconds, beside.alone(total / self._ranks, float(cached.max())))
        self._run(seconds, 1, ended)

    def _first_token(self, request: int, rank: int) -> None:
        """A prompt ended: decode what is left of its request, on the same rank."""
        requests = self._requests
        requests.first_token[request] = self._now
        self.held_tokens -= requests.tokens[request]
        if not requests.iterations[request]:
            requests.left[request] = self._now
            self._places.release(request, rank)
            return
        growth = requests.growth[request]
        self._running[rank] += 1
        self._cached[rank] += requests.tokens[request] - growth * self._count
        self._growth[rank] += growth
        heapq.heappush(self._leaving, (self._count + requests.iterations[request], request, rank))

    def _run(self, seconds: float, steps: int, ended: list[tuple[int, int]]) -> None:
        self._now += seconds
        self.busy_seconds += seconds
        self._count += steps
        self._ended = ended

    def _finish(self, ended: list[tuple[int, int]]) -> None:
        """End the steps under way: who has all tokens leaves, who has the first runs, and who waits is let in."""
        self._ended = None
        self._leave()
        for request, rank in ended:
            self._first_token(request, rank)
        self._admit()

    def _leave(self) -> None:
        """Let out whoever has all tokens."""
        requests = self._requests
        while self._leaving and self._leaving[0][0] <= self._count:
            ends, request, rank = heapq.heappop(self._leaving)
            growth = requests.growth[request]
            self._running[rank] -= 1
            self._cached[rank] -= requests.tokens[request] - growth * (ends - requests.iterations[request])
            self._growth[rank] -= growth
            requests.left[request] = self._now
            self._places.release(request, rank)


def _reached(seconds: float, first: float, more: float, most: int) -> int:
    """Return the least number of steps that take ``seconds``: the first so long, each next one so much longer."""
    slope = first - more / 2
    root = (math.sqrt(slope * slope + 2 * more * seconds) - slope) / more if more > 0 else seconds / first
    return min(max(math.ceil(root * (1 - _ROUNDING)), 1), most)


def serve_recorded(machines: MixedMachines, trace: Trace, needs: Array) -> Served:
    """Return when every request of a trace has its first and its last token.

    Args: arrivals of the ``trace`` in seconds, not falling; reused tokens are those that stand in it; ``needs`` is the
        KV that each request is granted, [requests].
    """
    aggregate = machines.aggregate
    arrival = np.asarray(trace.arrival_seconds, dtype=np.float64)
    tokens, reused = prompt_tokens(trace)
    after = np.maximum(np.asarray(trace.output_tokens, dtype=np.int64) - 1, 0)
    iterations = np.ceil(after / aggregate.accepted - _ROUNDING).astype(np.int64)
    requests = _Requests(
        tokens=tokens.tolist(),
        reused=reused.tolist(),
        iterations=iterations.tolist(),
        growth=(after / np.maximum(iterations, 1)).tolist(),
        needs=needs.tolist(),
        first_token=[0.0] * arrival.size,
        left=[0.0] * arrival.size,
    )
    machines.times.reach(float(tokens.max()))
    heads = [_Head(machines, requests) for _ in range(machines.instances)]
    for request, now, head in dealt(heads, machines.policy, arrival.tolist(), lambda head, _: head.held_tokens):
        head.add(request, now)
    return Served(
        first_token_seconds=np.array(requests.first_token),
        left_seconds=np.array(requests.left),
        busy_seconds=sum(each.busy_seconds for each in heads),
    )
