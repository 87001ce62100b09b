"""Time to first token of every request of a recorded stream: a recursion over its own passes.

The arrivals of a trace are known, so nothing about them needs a distribution. An instance's passes follow from one
another: the next begins when the last ends, or with the next arrival, and takes what has come by then up to its budget,

    T(k+1) = max(T(k) + S(k), arrival of the first that waits),

Lindley's recursion for bulk service. Bursts, drift of the rate, the order of lengths, an empty start and a backlog that
a window never works off are all in it. Durations are those of the step cost; nothing is drawn and nothing is simulated.

Ref: D. V. Lindley, The theory of queues with a single server, Proc. Camb. Phil. Soc. 48:277, 1952; N. T. J. Bailey, On
queueing processes with bulk service, J. R. Stat. Soc. B 16:80, 1954.
"""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from planner.queues.machine import Machine
from planner.queues.pass_table import PassTable
from planner.queues.prefill_queue import Policy
from planner.queues.queueing import Array
from planner.queues.recorded_stream import dealt, prompt_tokens
from planner.workload import Trace


@dataclass(slots=True)
class _Prompts:
    """The stream as lists, for one number at a time."""

    arrival: list[float]
    tokens: list[int]
    reused: list[int]
    first_token: list[float]
    """When each prompt's last pass ends."""
    origin: list[int]
    """The attention group that holds its KV, counted over all instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """What became of every prompt, [requests]."""

    first_token_seconds: Array
    origin: Array
    """The attention group that holds its KV: instance · groups + group."""
    busy_seconds: float
    """Of all instances."""


class _Head:
    """One instance: prompts that wait, prompts under way, and when its running pass ends."""

    def __init__(self, number: int, machine: Machine, table: PassTable, prompts: _Prompts) -> None:
        self._number, self._ranks, self._budget = number, machine.ranks, int(machine.budget_tokens)
        self._table, self._prompts = table, prompts
        self._queue: deque[int] = deque()
        self._carried: list[tuple[int, int, int]] = []  # prompt, group, tokens done
        self._ended: list[int] = []
        self._free = self.busy_seconds = 0.0
        self._held = self._turn = 0

    def waiting_tokens(self, now: float) -> int:
        """Prompt tokens that wait or run at ``now``."""
        if self._free <= now and self._ended:
            self._held -= sum(self._prompts.tokens[prompt] for prompt in self._ended)
            self._ended = []
        return self._held

    def add(self, prompt: int) -> None:
        """Let a prompt wait."""
        self._queue.append(prompt)
        self._held += self._prompts.tokens[prompt]

    def advance(self, now: float) -> None:
        """Run every pass that begins before ``now``; what arrives at the very moment of a begin is in the pass."""
        while self._carried or self._queue:
            begin = self._free
            if not self._carried:
                begin = max(begin, self._prompts.arrival[self._queue[0]])
            if begin >= now:
                return
            self.waiting_tokens(begin)
            seconds = self._run()
            self._free = begin + seconds
            self.busy_seconds += seconds
            for prompt in self._ended:
                self._prompts.first_token[prompt] = self._free

    def _run(self) -> float:
        """Fill a pass, the head of the line first, each to the group with most room; return its seconds."""
        making = _Pass([self._budget] * self._ranks)
        under_way, self._carried = self._carried, []
        for prompt, rank, done in under_way:
            self._chunk(making, prompt, rank, done)
        rooms = [(-room, (rank - self._turn) % self._ranks, rank) for rank, room in enumerate(making.room)]
        heapq.heapify(rooms)
        queue, tokens, reused, budget = self._queue, self._prompts.tokens, self._prompts.reused, self._budget
        while queue:
            prompt = queue[0]
            start = reused[prompt] // budget * budget  # whole parts that were reused take no pass
            length = tokens[prompt] - start
            room, turn, rank = rooms[0]
            if -room < (length if length <= budget else 1):
                break
            self._chunk(making, queue.popleft(), rank, start)
            heapq.heapreplace(rooms, (-making.room[rank], turn, rank))
            self._turn += 1
        return making.seconds(self._table)

    def _chunk(self, making: "_Pass", prompt: int, rank: int, done: int) -> None:
        """Put what fits of a prompt, reused tokens included, into the room of a group."""
        length, reused = self._prompts.tokens[prompt], self._prompts.reused[prompt]
        end = min(done + making.room[rank], length)
        making.room[rank] -= end - done
        cached = min(max(done, reused), end)
        making.add(rank, end - cached, cached, end == length)
        if end == length:
            self._ended.append(prompt)
            self._prompts.origin[prompt] = self._number * self._ranks + rank
        else:
            self._carried.append((prompt, rank, end))


class _Pass:
    """A pass in the making: room and load of every group."""

    def __init__(self, room: list[int]) -> None:
        self.room = room
        self._loads: dict[int, list[float]] = {}

    def add(self, rank: int, computed: int, cached: int, ends: bool) -> None:
        """Add a part of a prompt: so many tokens on top of the cached ones."""
        if not computed:
            return
        load = self._loads.setdefault(rank, [0.0, 0.0, 0.0, 0.0])
        load[0] += computed
        load[1] += cached
        load[2] += computed * cached + computed * (computed + 1) / 2
        load[3] += ends

    def seconds(self, table: PassTable) -> float:
        """Duration: that of the slowest group, the one with most pairs or the one with most tokens."""
        loads = list(self._loads.values())
        if not loads:
            return 0.0
        mean = sum(load[0] for load in loads) / len(self.room)
        slowest = loads if len(loads) == 1 else [max(loads, key=lambda load: load[part]) for part in (0, 2)]
        return max(table.seconds(load, mean) for load in slowest)


def prefill_recorded(machine: Machine, instances: int, policy: Policy, trace: Trace) -> Prefilled:
    """Return when every request of a trace has its first token.

    Prompts are dealt in turn, or with ``least_load`` to the instance with fewest prompt tokens that wait or run.

    Args: arrivals of the ``trace`` in seconds, not falling; reused tokens are those that stand in it.
    """
    arrival = np.asarray(trace.arrival_seconds, dtype=np.float64)
    tokens, reused = prompt_tokens(trace)
    prompts = _Prompts(
        arrival=arrival.tolist(),
        tokens=tokens.tolist(),
        reused=reused.tolist(),
        first_token=[0.0] * arrival.size,
        origin=[0] * arrival.size,
    )
    table = PassTable(machine, float(tokens.max()))
    heads = [_Head(number, machine, table, prompts) for number in range(instances)]
    for prompt, _, head in dealt(heads, policy, prompts.arrival, _Head.waiting_tokens):
        head.add(prompt)
    return Prefilled(
        first_token_seconds=np.array(prompts.first_token),
        origin=np.array(prompts.origin),
        busy_seconds=sum(each.busy_seconds for each in heads),
    )
