"""One run of a manifest under a workload on the virtual clock."""

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import get_args

import numpy as np

from ground.errors import BadInput
from planner.manifest.schema import Manifest, Routing
from runtime.simulate.changes import Autoscaler, MigrationRun, Standby
from runtime.simulate.device import Shared
from runtime.simulate.direct import Blocked, plain, run_direct
from runtime.simulate.engine import ARRIVAL, COMPLETION, NEVER, EventEngine
from runtime.simulate.faults import Faults
from runtime.simulate.ledger import Ledger, Measured
from runtime.simulate.metrics import SimulationResult, Spent, link_devices, ran_of, result_of
from runtime.simulate.observe import Observer, Watcher
from runtime.simulate.options import SimulationOptions
from runtime.simulate.placement import RankSlots
from runtime.simulate.request import Request
from runtime.simulate.system import System
from runtime.simulate.workload import Requests, Row

POLICIES: dict[str, tuple[str, ...]] = {
    name: values for name, field in Routing.model_fields.items() if (values := get_args(field.annotation))
}


def simulate(
    manifest: Manifest,
    requests: Requests | Sequence[Requests] | Callable[[], Iterable[Requests]],
    options: SimulationOptions | None = None,
    observer: Observer | None = None,
) -> SimulationResult:
    """Return what ``manifest`` does under ``requests``; the same arguments give the same result but for wall time.

    ``requests`` may come in parts, so that memory does not grow with their number. Long runs in which nothing
    interferes go through the compiled loops (``simulate.direct``), all others through the event engine.

    Raises BadInput: a step cost gives no positive, finite duration, or a fault names what the manifest has not.
    """
    options = options or SimulationOptions()
    if not 0 <= options.warmup_seconds < min(options.until_seconds, options.measured_until_seconds):
        raise BadInput(f"--warmup: {options.warmup_seconds:g} s must be from 0 to before the end of the run")
    made = requests if callable(requests) else lambda: [requests] if isinstance(requests, Requests) else requests
    first = next(iter(made()), None)
    watched = observer is not None and (observer.timeline or observer.series) is not None
    if first is not None and plain(manifest, options, first, watched):
        with suppress(Blocked):
            return run_direct(manifest, made(), options, observer)
    return _Run(manifest, made(), options, observer).result()


class _Run:
    """Builds the system, lets requests in, and takes the result out."""

    def __init__(
        self, manifest: Manifest, parts: Iterable[Requests], options: SimulationOptions, observer: Observer | None
    ) -> None:
        self._manifest, self._options, self._observer = manifest, options, observer
        engine = EventEngine()
        window = Measured(options.warmup_seconds, options.measured_until_seconds)
        ledger = Ledger(manifest.service_levels, window)
        self._shared = Shared(
            manifest=manifest,
            engine=engine,
            ledger=ledger,
            placement=RankSlots(manifest.routing, ledger, lambda: engine.now_seconds),
            cache=manifest.cache(1),
            seed=options.seed,
            stepping=options.stepping,
            expected_drafts=options.mtp == "expected",
            balance=options.balance,
            offline=options.offline is not None,
            span=observer.span if observer is not None and observer.timeline is not None else None,
        )
        self._system = System(self._shared)
        self._feed = ArrivalFeed(engine, self._with_cache(parts), self._system.arrive)
        self._watcher = Watcher(self._system, observer)
        self._faults = Faults(self._system, options.faults)
        self._standby = Standby(self._system, self._faults)
        migrating, rule = options.migrating, options.autoscale
        self._migration = None if migrating is None else MigrationRun(migrating, self._standby, engine)
        self._scaler = None if rule is None else Autoscaler(rule, self._system, self._standby)
        ledger.on_leave = self._feed.left
        self._idle: tuple[float, Spent, int] | None = None
        if options.offline is not None and options.measured_until_seconds == NEVER:
            ledger.on_idle = self._mark
        if observer is not None:
            ledger.on_outcomes = observer.outcomes

    def _with_cache(self, parts: Iterable[Requests]) -> Iterable[Requests]:
        """Yield the parts; the first one tells the size of the trace's blocks."""
        for part in parts:
            if part.blocks is not None and not len(self._shared.cache):
                self._shared.cache = self._manifest.cache(part.block_tokens)
            yield part

    def result(self) -> SimulationResult:
        """Run to the end and summarise."""
        options, engine, ledger = self._options, self._shared.engine, self._shared.ledger
        marks: list[Spent] = []
        for seconds in (options.warmup_seconds, options.measured_until_seconds):
            if 0 < seconds < NEVER:
                engine.at(seconds, COMPLETION, lambda _: marks.append(self._spent()))
        started = time.perf_counter()
        collecting = gc.isenabled()
        gc.disable()  # nothing here is cyclic, and scanning tens of thousands of requests again and again is slow
        try:
            self._begin()
            engine.run(options.until_seconds)
        finally:
            if collecting:
                gc.enable()
        wall = time.perf_counter() - started
        ledger.flush()
        self._system.check()
        # Repairs and samples after the last request are no part of the run.
        ended = ledger.last_seconds if not ledger.running else engine.now_seconds
        last = options.until_seconds if options.until_seconds < NEVER else ended
        end = min(options.measured_until_seconds, last)
        if self._idle is not None and not ledger.online:
            end, spent, ledger.offline_tokens = self._idle
            marks.append(spent)
        else:
            marks.append(self._spent())
        if self._observer is not None:
            self._observer.close()
        faults, changes = self._faults.begun, self._changes(end)
        ran = ran_of(self._system, self._watcher, faults=faults, changes=changes)
        instances = {role: len({each.name for each in parts}) for role, parts in self._watcher.groups().items()}
        window, links = Measured(options.warmup_seconds, end), link_devices(self._system)
        return result_of(ledger, ran, instances, links, marks, window, wall)

    def _spent(self) -> Spent:
        busy, links = self._watcher.busy_seconds(), self._system.links
        return Spent(busy, links.link_seconds, links.waited_seconds, links.transfers) if links else Spent(busy)

    def _mark(self) -> None:
        """Note what offline requests came to by now: what is measured ends with the last online request."""
        self._idle = self._shared.engine.now_seconds, self._spent(), self._shared.ledger.offline_tokens

    def _changes(self, end: float) -> dict[str, float]:
        """Return what came of a migration or an autoscaler; nothing without one."""
        if self._migration is None and self._scaler is None:
            return {}
        found = {"device_seconds": self._standby.device_seconds(end)}
        if self._migration is not None:
            ended = self._migration.ended_seconds
            found |= {"steps_ended": self._migration.steps_ended} | ({} if ended is None else {"ended_seconds": ended})
        if self._scaler is not None:
            found |= {"started": self._scaler.started, "stopped": self._scaler.stopped}
        return found

    def _begin(self) -> None:
        for request in self._feed.begin():
            self._system.begin_decode(request)
        self._shared.engine.feed, self._shared.follows = self._feed, self._feed.follows
        for request in _offline(self._options.offline):
            self._shared.engine.at(request.arrival, ARRIVAL, self._system.arrive, request)
        for seconds, balance in self._options.rebalances:
            self._shared.engine.at(seconds, COMPLETION, self._system.rebalance, balance)
        self._faults.begin()
        if self._migration is not None:
            self._migration.begin()
        if self._scaler is not None:
            self._scaler.begin()
        self._watcher.begin()
        if self._system.roles is not None and self._manifest.routing.roles == "dynamic":
            self._system.roles.watch()


def _offline(requests: Requests | None) -> list[Request]:
    """Return the offline requests; their numbers follow those of any online ones."""
    if requests is None:
        return []
    return [Request(number, *row, offline=True) for number, row in enumerate(requests.rows(), start=1 << 40)]


def with_policies(manifest: Manifest, names: list[str]) -> Manifest:
    """Return the manifest with policies by name, ``field=value`` or a value that only one field of routing has.

    Raises BadInput naming what is not known.
    """
    routing = manifest.routing.model_dump()
    for name in names:
        key, value = _policy(name)
        routing[key] = value
    return manifest.model_copy(update={"routing": type(manifest.routing).model_validate(routing)})


def _policy(name: str) -> tuple[str, str]:
    """Return (field, value); a bare value means the first field that has it."""
    key, _, value = name.rpartition("=")
    for known, values in POLICIES.items():
        if value in values and key in ("", known):
            return known, value
    told = "; ".join(f"{known}={'|'.join(values)}" for known, values in POLICIES.items())
    raise BadInput(f"--policies: {name[:40]!r} is not a policy; use {told}")


class ArrivalFeed:
    """Gives the engine one arrival at a time; parts are taken from an iterator as they are needed."""

    def __init__(self, engine: EventEngine, parts: Iterable[Requests], arrive: Callable[[Request], None]) -> None:
        self._engine, self._arrive = engine, arrive
        self._parts = iter(parts)
        self._rows: Iterator[Row] = iter(())
        self._part: Requests | None = None
        self._next: Row | None = None
        self._number = self._position = 0
        self._closed = False
        self._turns: dict[int, deque[tuple[float, list[Request]]]] = {}
        self._open: dict[int, int] = {}
        self.seconds = NEVER

    def begin(self) -> list[Request]:
        """Take the first part; return the requests that are in decode already, which are measured nowhere."""
        self._next_part()
        part = self._part
        begun = []
        for tokens in part.begun_tokens.tolist() if part is not None else []:
            request = self._request(next(self._rows))
            request.arrival, request.begun = -1.0, tokens
            begun.append(request)
        if part is not None and part.concurrency:
            self._closed = True
            for _ in range(min(part.concurrency, len(part) - part.under_way)):
                self._one_more()
        else:
            if part is not None and part.session is not None:
                self._hold_turns(part)
            self._look_ahead()
        return begun

    @property
    def follows(self) -> bool:
        """Whether requests are sent when others leave."""
        return self._closed or bool(self._turns)

    def _next_part(self) -> bool:
        part = next(self._parts, None)
        if part is None:
            return False
        self._part, self._position = part, 0
        self._rows = part.rows()
        return True

    def _request(self, row: Row) -> Request:
        request = Request(self._number, row[0], row[1], row[2], row[3])
        part = self._part
        if part is not None and part.blocks is not None:
            request.blocks = part.blocks[self._position].tolist()
        if part is not None and part.session is not None:
            request.session = int(part.session[self._position])
        self._number += 1
        self._position += 1
        return request

    def _hold_turns(self, part: Requests) -> None:
        """Keep later turns back until the turn before them ends; requests of a delay below 0 go with those before."""
        assert part.session is not None and part.delay_seconds is not None
        first: list[tuple[Row, list[Request]]] = []
        last: dict[int, list[Request]] = {}
        for row, delay in zip(self._rows, part.delay_seconds.tolist(), strict=True):
            request = self._request(row)
            if delay < 0 and request.session in last:
                last[request.session].append(request)
                continue
            turn = [request]
            if np.isnan(delay):
                first.append((row, turn))
            else:
                self._turns.setdefault(request.session, deque()).append((delay, turn))
            if request.session >= 0:
                last[request.session] = turn
        for row, turn in first:
            self._send(turn, row[0])
        self._rows = iter(())

    def _send(self, turn: list[Request], seconds: float) -> None:
        """Let the requests of a turn arrive together."""
        if turn[0].session >= 0:
            self._open[turn[0].session] = len(turn)
        for request in turn:
            request.arrival = seconds
            self._engine.at(seconds, ARRIVAL, self._arrive, request)

    def _look_ahead(self) -> None:
        row = next(self._rows, None)
        while row is None:
            if not self._next_part():
                self.seconds, self._next = NEVER, None
                return
            row = next(self._rows, None)
        self._next = row
        self.seconds = row[0]

    def deliver(self) -> None:
        """Let the next request arrive."""
        row = self._next
        assert row is not None, "the engine asks for arrivals that are there"
        request = self._request(row)
        self._look_ahead()
        self._arrive(request)

    def left(self, request: Request) -> None:
        """Let the closed loop's next request in, or the next turn of a session some time later."""
        if self._closed:
            if not request.offline:
                self._one_more()
        elif request.session >= 0 and self._turns.get(request.session):
            self._open[request.session] -= 1
            if self._open[request.session]:
                return
            delay, turn = self._turns[request.session].popleft()
            self._send(turn, self._engine.now_seconds + delay)

    def _one_more(self) -> None:
        row = next(self._rows, None)
        if row is not None:
            self._send([self._request(row)], self._engine.now_seconds)
