"""What happened to every request: nothing is lost, and memory does not grow with those that are gone."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats
from planner.manifest.schema import ServiceLevels
from runtime.simulate.quantiles import BatchMeans, Quantiles
from runtime.simulate.request import COMPLETED, FAILED, Request

MEASURES = ("ttft", "tpot", "e2e", "queueing")
_AT_ONCE = 4096


class Measured(NamedTuple):
    """What is measured: requests that arrive, and completions that happen, from start to end."""

    start_seconds: float = 0.0
    end_seconds: float = float("inf")


class Outcomes(NamedTuple):
    """A few thousand requests that ended: arrays of one element each; not a number where there is no such time."""

    number: NDArray[np.int64]
    arrival: Floats
    started: Floats
    first_token: Floats
    end: Floats
    inputs: NDArray[np.int64]
    outputs: NDArray[np.int64]
    reused: NDArray[np.int64]
    offline: NDArray[np.bool_]
    completed: NDArray[np.bool_]
    retries: NDArray[np.int64]


class Ledger:
    """Counts and latencies of a run. In the window: requests = completed + failed + running."""

    def __init__(self, limits: ServiceLevels, window: Measured) -> None:
        self._limits, self.window = limits, window
        self.arrived = self.completed = self.failed = 0
        self.offered = self.offered_completed = self.offered_failed = 0
        self.offline_offered = self.offline_completed = 0
        self.reasons: Counter[str] = Counter()
        self.finished = self.finished_tokens = self.good = self.attained = 0
        self.offline_tokens = self.retried = 0
        self.prompt_tokens = self.reused_tokens = 0
        self.last_seconds = 0.0
        self.latencies = {name: Quantiles() for name in MEASURES}
        self.batches = BatchMeans((*MEASURES, "attained"))
        self.online = 0
        self.on_leave: Callable[[Request], None] | None = None
        self.on_idle: Callable[[], None] | None = None  # is told whenever the last online request under way has left
        self.on_outcomes: Callable[[Outcomes], None] | None = None
        self._rows: list[tuple[float, ...]] = []

    @property
    def running(self) -> int:
        """Requests that arrived and have not left."""
        return self.arrived - self.completed - self.failed

    def arrive(self, request: Request) -> None:
        """Note a request that enters the system."""
        self.arrived += 1
        if request.offline:
            self.offline_offered += 1
            return
        self.online += 1
        if self.window.start_seconds <= request.arrival <= self.window.end_seconds:
            self.offered += 1

    def arrive_all(self, arrivals: Floats) -> None:
        """Note requests that enter the system, by their arrivals."""
        start, end = self.window
        self.arrived += arrivals.size
        self.offered += int(((arrivals >= start) & (arrivals <= end)).sum())

    def take(self, done: Outcomes, reason: str = "") -> None:
        """Note requests that leave together; ``reason`` is why, where they failed."""
        ended = int(done.completed.sum())
        self.completed += ended
        self.failed += done.number.size - ended
        if done.number.size > ended:
            self.reasons[reason] += done.number.size - ended
        self.last_seconds = max(self.last_seconds, float(done.end.max(initial=0.0)))
        self._count(done)
        if self.on_outcomes:
            self.on_outcomes(done)

    def complete(self, request: Request, seconds: float) -> None:
        """Note that the last token of ``request`` is out."""
        assert request.state < COMPLETED, "a request leaves once"
        request.state = COMPLETED
        self.completed += 1
        self._leave(request, seconds, True)

    def fail(self, request: Request, seconds: float, reason: str) -> None:
        """Note that ``request`` ends without an answer."""
        assert request.state < COMPLETED, "a request leaves once"
        request.state = FAILED
        self.failed += 1
        self.reasons[reason] += 1
        self._leave(request, seconds, False)

    def _leave(self, request: Request, seconds: float, completed: bool) -> None:
        self.last_seconds = seconds
        self._rows.append(
            (
                request.number,
                request.arrival,
                request.started if request.started >= 0 else np.nan,
                request.first_token if request.first_token >= 0 else np.nan,
                seconds,
                request.inputs,
                request.outputs + request.begun,
                request.reused,
                request.offline,
                completed,
                request.retries,
            )
        )
        if len(self._rows) >= _AT_ONCE:
            self.flush()
        if request.offline:
            counted = completed and self.window.start_seconds <= seconds <= self.window.end_seconds
            self.offline_tokens += request.outputs if counted else 0
        else:
            self.online -= 1
            if not self.online and self.on_idle:
                self.on_idle()
        if self.on_leave:
            self.on_leave(request)

    def flush(self) -> None:
        """Take what ended lately into the statistics."""
        if not self._rows:
            return
        outcomes = Outcomes(*(np.array(column) for column in zip(*self._rows, strict=True)))
        self._rows = []
        self._count(outcomes)
        if self.on_outcomes:
            self.on_outcomes(outcomes)

    def _count(self, done: Outcomes) -> None:
        start, end = self.window
        online = ~done.offline
        offered = (done.arrival >= start) & (done.arrival <= end)
        finished = done.completed & (done.end >= start) & (done.end <= end)
        times = latencies(done)
        good = done.completed & self.within(times) & (done.arrival >= 0)
        measured = offered & done.completed & online
        self.offered_completed += int(measured.sum())
        self.offered_failed += int((offered & ~done.completed & online).sum())
        self.offline_completed += int((done.completed & done.offline).sum())
        self.attained += int((good & offered & online).sum())
        self.finished += int((finished & online).sum())
        self.finished_tokens += int(done.outputs[finished & online].sum())
        self.good += int((good & finished & online).sum())
        self.retried += int((done.retries > 0).sum())
        self.prompt_tokens += int(done.inputs[offered].sum())
        self.reused_tokens += int(done.reused[offered].sum())
        for name in MEASURES:
            values = times[name][measured]
            self.latencies[name].add(values[~np.isnan(values)])
        counted = offered & online
        self.batches.add(
            done.number[counted],
            {name: np.where(done.completed, times[name], np.nan)[counted] for name in MEASURES}
            | {"attained": good[counted].astype(np.float64)},
        )

    def within(self, times: dict[str, Floats]) -> NDArray[np.bool_]:
        """Return which keep every limit; a single-token output has no TPOT to miss."""
        good = np.ones(times["e2e"].shape, dtype=bool)
        if self._limits.ttft_seconds is not None:
            good &= times["ttft"] <= self._limits.ttft_seconds
        if self._limits.tpot_seconds is not None:
            good &= np.isnan(times["tpot"]) | (times["tpot"] <= self._limits.tpot_seconds)
        return good


def latencies(done: Outcomes) -> dict[str, Floats]:
    """Return TTFT = first token - arrival, E2E = end - arrival, TPOT = (E2E - TTFT)/(output - 1).

    Queueing is the time before the first pass; [requests] each.
    """
    ttft, e2e = done.first_token - done.arrival, done.end - done.arrival
    tpot = np.where(done.outputs > 1, (done.end - done.first_token) / np.maximum(done.outputs - 1, 1), np.nan)
    return {"ttft": ttft, "tpot": tpot, "e2e": e2e, "queueing": done.started - done.arrival}
