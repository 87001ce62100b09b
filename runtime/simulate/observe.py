"""What a run shows of itself while it goes on: samples over time, spans of steps, a row per request, progress."""

import json
from collections.abc import Callable
from typing import IO

import numpy as np

from ground.errors import BadInput
from ground.units import MICRO
from runtime.simulate.ledger import Measured, Outcomes, latencies
from runtime.simulate.system import Part, System

MOST_SPANS = 2_000_000
MOST_ROWS = 1_000_000
_MOST_SAMPLES = 256

REQUEST_COLUMNS = (
    "request,class,outcome,arrival_seconds,start_seconds,first_token_seconds,end_seconds,input_tokens,output_tokens,"
    "reused_tokens,queueing_seconds,ttft_seconds,tpot_seconds,e2e_seconds,retries\n"
)
SERIES_COLUMNS = (
    "seconds,running_requests,waiting_requests,decoding_requests,kv_occupancy,slot_occupancy,rank_kv_imbalance,"
    "prefill_busy,decode_busy,mixed_busy,completed,failed\n"
)


class Observer:
    """Writes what was asked for into open text files; all of them optional."""

    def __init__(
        self,
        *,
        requests: IO[str] | None = None,
        series: IO[str] | None = None,
        timeline: IO[str] | None = None,
        series_seconds: float = 1.0,
        progress: Callable[[float, int, int], None] | None = None,
    ) -> None:
        self._requests, self.series, self.timeline = requests, series, timeline
        self.series_seconds, self.progress = series_seconds, progress
        self.spans = self.samples = 0
        self._threads: dict[str, int] = {}
        if requests is not None:
            requests.write(REQUEST_COLUMNS)
        if series is not None:
            series.write(SERIES_COLUMNS)
        if timeline is not None:
            timeline.write("[\n")

    def span(self, instance: str, name: str, start: float, seconds: float, figures: dict[str, float]) -> None:
        """Write one step as a complete event of Chrome's trace format (microseconds), a thread per instance."""
        assert self.timeline is not None, "told only where it is wanted"
        if self.spans >= MOST_SPANS:
            return
        thread = self._threads.get(instance)
        if thread is None:
            thread = self._threads[instance] = len(self._threads) + 1
            named = {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": instance}}
            self.timeline.write(json.dumps(named) + ",\n")
        event = {"name": name, "ph": "X", "pid": 1, "tid": thread, "ts": start / MICRO, "dur": seconds / MICRO}
        self.timeline.write(json.dumps(event | {"args": figures}) + ",\n")
        self.spans += 1

    def outcomes(self, done: Outcomes) -> None:
        """Write a row for each request that ended."""
        if self._requests is None:
            return
        times = latencies(done)
        for i in range(done.number.size):
            kind = "offline" if done.offline[i] else "online"
            outcome = "completed" if done.completed[i] else "failed"
            stamps = [done.arrival[i], done.started[i], done.first_token[i], done.end[i]]
            counts = [done.inputs[i], done.outputs[i], done.reused[i]]
            measured = [times[name][i] if done.completed[i] else np.nan for name in ("queueing", "ttft", "tpot", "e2e")]
            cells = [str(done.number[i]), kind, outcome, *map(_cell, stamps), *map(str, counts), *map(_cell, measured)]
            self._requests.write(",".join([*cells, str(done.retries[i])]) + "\n")

    def sample(self, row: tuple[float, ...]) -> None:
        """Write one row of the time series."""
        if self.series is not None:
            if self.samples >= MOST_ROWS:
                raise BadInput(f"--timeseries-step: makes more than {MOST_ROWS} rows of this run; use a longer one")
            self.samples += 1
            self.series.write(",".join(f"{value:.9g}" for value in row) + "\n")

    def close(self) -> None:
        """End the documents."""
        if self.timeline is not None:
            done = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "podplan simulate, virtual time"}}
            self.timeline.write(json.dumps(done) + "\n]\n")


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.9g}"


class Occupancy:
    """Averages over the measured time of how full the ranks that answer are, and the most KV."""

    def __init__(self, window: Measured) -> None:
        self._window, self._sums, self._last, self._peak_kv = window, np.zeros(4), 0.0, 0.0

    def add(self, now: float, kv: float, slots: float, imbalance: float) -> float:
        """Take shares of KV and slots and the fullest rank over the mean as those since the last sample.

        Returns the seconds since then.
        """
        (start, end), before, self._last = self._window, self._last, now
        seconds = min(now, end) - max(before, start)
        if seconds > 0:
            self._sums += seconds * np.array([1.0, kv, slots, imbalance])
            self._peak_kv = max(self._peak_kv, kv)
        return now - before

    def means(self) -> dict[str, float] | None:
        """Return the averages by name; None where a run was too short for a sample."""
        seconds, *sums = self._sums.tolist()
        if seconds <= 0:
            return None
        names = ("kv", "slots", "rank_kv_imbalance")
        return {name: total / seconds for name, total in zip(names, sums, strict=True)} | {"peak_kv": self._peak_kv}


class Watcher:
    """Samples the system in virtual time: more and more rarely without a series, so that memory stays flat."""

    def __init__(self, system: System, observer: Observer | None) -> None:
        self._system, self._observer = system, observer
        self._fixed = observer.series_seconds if observer is not None and observer.series is not None else None
        self._period = 0.05 if self._fixed is None else self._fixed
        self._samples = 0
        self.occupancy = Occupancy(system.shared.ledger.window)
        self._busy: dict[str, float] = {}

    def begin(self) -> None:
        """Start to sample."""
        self._system.shared.engine.every(lambda: self._period, self._sample)

    def groups(self) -> dict[str, list[Part]]:
        """Parts of instances by the role that these were planned with."""
        roles = ("encode", "prefill", "decode", "mixed")
        found = {role: [part for part in self._system.parts if part.pool.role == role] for role in roles}
        return {role: parts for role, parts in found.items() if parts}

    def busy_seconds(self) -> dict[str, float]:
        """Return the busy time of each role so far, the rest of a running step not included."""
        now = self._system.shared.engine.now_seconds
        return {role: sum(part.busy_seconds_until(now) for part in parts) for role, parts in self.groups().items()}

    def _occupancy(self) -> tuple[float, float, float, float]:
        """Return KV and slots in use over those that are open, the fullest rank's KV over the mean, and requests."""
        rows = self._system.shared.placement.occupancy()
        rows += [row for part in self._system.mixed for row in part.occupancy()]
        rows = [row for row in rows if row[2] or row[1]]
        if not rows:
            return 0.0, 0.0, 1.0, 0.0
        held, requests, _, capacity, slots = np.array(rows, dtype=np.float64).T
        fullest = held.max() / held.mean() if held.any() else 1.0
        return float(held.sum() / capacity.sum()), float(requests.sum() / slots.sum()), float(fullest), requests.sum()

    def _sample(self) -> None:
        shared = self._system.shared
        now = shared.engine.now_seconds
        kv, slots, imbalance, decoding = self._occupancy()
        seconds = self.occupancy.add(now, kv, slots, imbalance)
        if self._fixed is not None and self._observer is not None:
            busy = self.busy_seconds()
            shares = [self._share(role, busy, seconds) for role in ("prefill", "decode", "mixed")]
            self._busy = busy
            ledger = shared.ledger
            row = (now, ledger.running, self._system.waiting, decoding, kv, slots, imbalance, *shares)
            self._observer.sample((*row, ledger.completed, ledger.failed))
        self._samples += 1
        if self._fixed is None and self._samples % _MOST_SAMPLES == 0:
            self._period *= 2
        if self._observer is not None and self._observer.progress:
            self._observer.progress(now, shared.ledger.arrived, shared.ledger.completed)

    def _share(self, role: str, busy: dict[str, float], seconds: float) -> float:
        parts = len({part.name for part in self.groups().get(role, [])})
        return (busy[role] - self._busy.get(role, 0.0)) / (seconds * parts) if parts and seconds > 0 else 0.0
