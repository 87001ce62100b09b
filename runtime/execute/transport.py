"""Ranks as coroutines, and messages between them.

A rank program is an ``async`` function of an ``Endpoint``. Sending never waits; receiving waits until the message is
there. Messages of one sender on one channel arrive in the order in which they were sent. The loop below runs tasks in a
fixed order, so that every run of a program is the same; asyncio would cost several times as much per message, and could
not say who waits for what.

With a clock every task carries its own time: it advances by waiting for messages and by computing, and the task whose
time is least runs first, so that messages enter the links in the order of virtual time.
"""

import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from ground.arrays import Ints
from ground.errors import PodplanError

if TYPE_CHECKING:
    from runtime.execute.clock import Clock

Program = Coroutine[Any, Any, Any]
Key = tuple[int, int, Any]  # receiver, sender, channel


class Stuck(PodplanError):
    """Ranks wait for messages that nobody will send; the message names rank and operation."""


class RankFailed(PodplanError):
    """A rank raised in the middle of its program; the message names rank, operation and cause."""


class _Request:
    """What a task yields to the loop, and is resumed with an answer to."""

    __slots__ = ()

    def __await__(self) -> Generator["_Request", Any, Any]:
        return (yield self)


@dataclass(slots=True)
class _Wait(_Request):
    """A message that the task needs."""

    key: Key
    label: str


@dataclass(slots=True)
class _Fork(_Request):
    """Programs to run beside each other until all are done."""

    programs: Sequence[Program]


@dataclass(slots=True)
class _Compute(_Request):
    """Work of the task's device."""

    seconds: float
    label: str


@dataclass(slots=True, eq=False)
class _Task:
    """One coroutine of a rank, with its own time."""

    rank: int
    program: Program
    now: float = 0.0
    value: Any = None
    parent: "_Task | None" = None
    place: int = 0
    results: list[Any] = field(default_factory=list)
    open_children: int = 0
    waits_for: _Wait | None = None


@dataclass(slots=True)
class _Table:
    """Numbers that every rank of a group has for every other, [n, n], and how many rows are still missing."""

    rows: Ints
    missing: int


class Endpoint:
    """What a rank program holds: its number, and the ways to talk."""

    def __init__(self, loop: "Loop", rank: int) -> None:
        """``loop`` runs the rank."""
        self.loop, self.rank = loop, rank

    @property
    def now(self) -> float:
        """This task's time in seconds; 0 without a clock."""
        return self.loop.now

    def send(self, to: int, channel: Any, payload: Any, label: str = "") -> None:
        """Send a message; never waits. The payload must not be changed afterwards."""
        self.loop.send(self.rank, to, channel, payload, label)

    async def receive(self, source: int, channel: Any, label: str = "") -> Any:
        """Return the next message of ``source`` on a channel."""
        key = (self.rank, source, channel)
        box = self.loop.boxes.get(key)
        if box:
            return box.popleft()
        return await _Wait(key, label)

    async def together(self, *programs: Program) -> list[Any]:
        """Run programs of this rank beside each other and return their results in order."""
        return await _Fork(programs)

    async def compute(self, seconds: float, label: str) -> None:
        """Keep this rank's device busy, in turn with its other tasks; nothing without a clock."""
        if self.loop.clock is not None:
            await _Compute(seconds, label)

    async def counts(self, ranks: Sequence[int], index: int, channel: Any, row: Ints, label: str) -> Ints:
        """Put the row of this rank into its group's table and return its column, when all rows are there."""
        table, awaited = self.loop.counted(ranks, index, channel, row), (self.rank, -1, channel)
        if table.missing:
            await _Wait(awaited, label)
        else:
            self.loop.boxes.pop(awaited, None)
        return table.rows[:, index]


class Loop:
    """Runs the ranks of one process; ``clock`` gives messages their durations."""

    def __init__(self, clock: "Clock | None" = None) -> None:
        """Without a clock messages take no time and tasks run in the order in which they can."""
        self.clock = clock
        self.boxes: dict[Key, deque[Any]] = {}
        self.now = 0.0
        self._waiting: dict[Key, _Task] = {}
        self._ready: deque[_Task] = deque()
        self._timed: list[tuple[float, int, _Task | Callable[[], None]]] = []
        self._order = count()
        self._tables: dict[Any, _Table] = {}
        self._open = 0

    def run(self, programs: dict[int, Callable[[Endpoint], Program]]) -> dict[int, Any]:
        """Run a program per rank until all are done, and return their results by rank.

        Raises Stuck: ranks are left that wait for messages which nobody sent; RankFailed: a rank raised.
        """
        tasks = [_Task(rank, program(Endpoint(self, rank))) for rank, program in programs.items()]
        self._open = len(tasks)
        for task in tasks:
            self._schedule(task)
        try:
            self._work()
        except PodplanError:
            self.boxes.clear()
            self._tables.clear()
            raise
        finally:
            for left in [*tasks, *self._waiting.values(), *self._ready, *(entry[2] for entry in self._timed)]:
                if isinstance(left, _Task):
                    left.program.close()
            for held in (self._waiting, self._ready, self._timed):
                held.clear()
        return {task.rank: task.value for task in tasks}

    def _work(self) -> None:
        """Run what can run until every task has ended."""
        while self._open:
            task = self._next()
            if task is not None:
                self._step(task)
            elif not self.poll():
                raise Stuck(self.waiting_sentence())

    def local(self, ranks: Iterable[int]) -> list[int]:
        """Return those of ``ranks`` that this process runs: all."""
        return list(ranks)

    def gathered(self, report: Any) -> list[Any] | None:
        """Return the reports of all processes, this one's alone; None where another process gets them."""
        return [report]

    def poll(self) -> bool:
        """Wait for news from outside this process; False where there is no outside."""
        return False

    def _schedule(self, task: _Task) -> None:
        if self.clock is None:
            self._ready.append(task)
        else:
            heapq.heappush(self._timed, (task.now, next(self._order), task))

    def _next(self) -> _Task | None:
        if self.clock is None:
            return self._ready.popleft() if self._ready else None
        while self._timed:
            self.now, _, event = heapq.heappop(self._timed)
            if isinstance(event, _Task):
                return event
            event()
        return None

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Call ``event`` when the clock reaches a time."""
        heapq.heappush(self._timed, (time, next(self._order), event))

    def _step(self, task: _Task) -> None:
        """Run one task until it waits or ends."""
        self.now = task.now
        try:
            request = task.program.send(task.value)
        except StopIteration as end:
            self._finish(task, end.value)
            return
        except PodplanError:
            raise
        except Exception as error:
            raise RankFailed(f"rank {task.rank}: {type(error).__name__}: {error}") from error
        if isinstance(request, _Wait):
            self._await(task, request)
        elif isinstance(request, _Fork):
            task.results = [None] * len(request.programs)
            task.open_children = len(request.programs)
            if not request.programs:
                task.value = []
                self._schedule(task)
            for place, program in enumerate(request.programs):
                self._schedule(_Task(task.rank, program, task.now, None, task, place))
        else:
            assert self.clock is not None, "computing takes time by a clock only"
            task.now = self.clock.occupy(task.rank, request.seconds, task.now, request.label)
            task.value = None
            self._schedule(task)

    def _await(self, task: _Task, wait: _Wait) -> None:
        box = self.boxes.get(wait.key)
        if box:
            self._give(task, box.popleft())
        elif wait.key in self._waiting:
            raise RankFailed(f"rank {task.rank}: two tasks wait for the same message: {wait.label}")
        else:
            task.waits_for = wait
            self._waiting[wait.key] = task

    def _give(self, task: _Task, message: Any) -> None:
        """Hand a message over; with a clock a message is (arrival, payload)."""
        task.value, task.waits_for = message, None
        task.now = max(task.now, self.now)
        self._schedule(task)

    def _finish(self, task: _Task, value: Any) -> None:
        task.value, parent = value, task.parent
        if parent is None:
            self._open -= 1
            return
        parent.results[task.place] = value
        parent.now = max(parent.now, task.now)
        parent.open_children -= 1
        if not parent.open_children:
            parent.value = parent.results
            self._schedule(parent)

    def send(self, sender: int, to: int, channel: Any, payload: Any, label: str) -> None:
        """Put a message where its receiver finds it."""
        if self.clock is None:
            self.arrive((to, sender, channel), payload)
        else:
            self.clock.carry(self, (to, sender, channel), payload, label)

    def arrive(self, key: Key, message: Any) -> None:
        """Wake the task that waits for a message, or keep the message."""
        task = self._waiting.pop(key, None)
        if task is not None:
            self._give(task, message)
        else:
            self.boxes.setdefault(key, deque()).append(message)

    def counted(self, ranks: Sequence[int], index: int, channel: Any, row: Any) -> _Table:
        """Put the row of one rank into its group's table."""
        return self.fill((ranks[0], len(ranks), channel), ranks, [index], row)

    def fill(self, key: Any, ranks: Sequence[int], indices: Sequence[int], rows: Any) -> _Table:
        """Put rows into a table, which is returned; the last ones wake the ranks that wait for it."""
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _Table(np.zeros((len(ranks), len(ranks)), dtype=np.int64), len(ranks))
        table.rows[indices] = rows
        table.missing -= len(indices)
        if not table.missing:
            del self._tables[key]
            for rank in self.local(ranks):
                self.arrive((rank, -1, key[-1]), None)
        return table

    def waiting_sentence(self) -> str:
        """Name the first ranks that wait, for whom and in which operation."""
        found = [(task.rank, wait) for task in self._waiting.values() if (wait := task.waits_for)]
        waits = sorted(found, key=lambda pair: (pair[0], pair[1].label))
        shown = [f"rank {rank} waits for {_source(wait)} in {wait.label or 'its program'}" for rank, wait in waits[:3]]
        more = f" and {len(waits) - 3} more" if len(waits) > 3 else ""
        return f"the run is stuck: {', '.join(shown)}{more}"


def _source(wait: _Wait) -> str:
    return f"rank {wait.key[1]}" if wait.key[1] >= 0 else "the others of its group"
