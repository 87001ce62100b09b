"""Runs that need no event engine: prompts, links and answers go through the compiled loops, part by part.

Where nothing interferes (no faults, role flips, offline work, sessions, closed loop, shared queue or cache look-ups,
and no step that somebody wants to see), what happens follows from the rules of ``planner.serving`` alone. The event
engine has the same rules and is some ten times as slow; step times are read off the same cost, here off one table.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.manifest.schema import Manifest, Pool
from planner.manifest.terms import StepCost
from planner.serving.decode import DecodeRequests, DecodeRun, Gone
from planner.serving.deployed import separate_pools
from planner.serving.prefill import PrefillRun
from planner.serving.streams import Stream
from runtime.simulate.drafts import IterationCounts
from runtime.simulate.engine import NEVER, generator
from runtime.simulate.ledger import Ledger, Outcomes, Window
from runtime.simulate.metrics import Ran, SimulationResult, result_of
from runtime.simulate.observe import Observer
from runtime.simulate.options import SimulationOptions
from runtime.simulate.workload import Requests

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST_DIRECT = 2_000
"""Requests from which tables and compiled loops pay; shorter runs step through the cost itself."""
_PIECE = 2048
"""Requests between two samples of how full decode is."""
_TOO_LONG = "longer than the KV cache of a rank"


class Blocked(Exception):
    """Prompts filled the KV of prefill while decode had no room: passes wait, which only the event engine plays."""


def plain(manifest: Manifest, options: SimulationOptions, first: Requests, watched: bool) -> bool:
    """Whether a run goes through the compiled loops alone; ``watched``: somebody wants to see steps or samples."""
    routing, roles = manifest.routing, [pool.role for pool in manifest.pools]
    return (
        not watched
        and sorted(roles) == ["decode", "prefill"]
        and not (options.faults or options.offline or options.stepping or options.migrating or options.autoscale)
        and options.until_seconds == NEVER
        and (routing.roles, routing.decode_reservation) == ("fixed", "whole")
        and routing.prefill in ("least_load", "round_robin")
        and manifest.caching is None
        and not first.concurrency
        and first.blocks is None
        and first.session is None
        and len(first) >= FEWEST_DIRECT
    )


def run_direct(
    manifest: Manifest, parts: Iterable[Requests], options: SimulationOptions, observer: Observer | None = None
) -> SimulationResult:
    """Return what the manifest does under the requests, whose first part ``plain`` has accepted.

    Raises:
        Blocked: prompts would have waited for KV in prefill.
    """
    ledger = Ledger(manifest.service_levels, Window(options.warmup_seconds, options.measured_until_seconds))
    if observer is not None:
        ledger.on_outcomes = observer.outcomes
    return _Direct(manifest, options, ledger, observer).result(parts)


class _Direct:
    """Both pools, and the requests that are in the system."""

    def __init__(
        self, manifest: Manifest, options: SimulationOptions, ledger: Ledger, observer: Observer | None
    ) -> None:
        self._options, self._ledger, self._observer = options, ledger, observer
        pools = {pool.role: pool for pool in manifest.pools}
        self._pools = self._source, self._target = pools["prefill"], pools["decode"]
        self._costs: dict[str, StepCost] = {pool.role: _cost(pool, options) for pool in self._pools}
        played = separate_pools(manifest, self._pools, self._costs)
        self._width, self._held, self._reserved = played.links, played.transfer_seconds, played.reserved_tokens
        self._prefill, self._decode = PrefillRun(played.prefill), DecodeRun(played.decode)
        counts: Literal["sampled", "expected"] = "expected" if options.mtp == "expected" else "sampled"
        self._iterations = IterationCounts(self._target.mtp, counts, generator(options.seed, "drafts"))
        self._alive = _Alive()
        self._busy: list[dict[str, float]] = []
        self._samples: list[tuple[float, float, float, float]] = []  # seconds, KV, slots, fullest rank over the mean
        self._waited = self._sent = self._last = self._now = 0.0
        self._transfers = 0

    def result(self, parts: Iterable[Requests]) -> SimulationResult:
        """Play all parts and summarise."""
        options, started = self._options, time.perf_counter()
        marks = [mark for mark in (options.warmup_seconds, options.measured_until_seconds) if 0 < mark < NEVER]
        for part, until in _pieces(parts, marks):
            self._play(part, until)
            if until in marks:
                self._busy.append(self._busy_seconds(until))
        self._busy += [self._busy_seconds(np.inf)] * (1 + len(marks) - len(self._busy))
        wall = time.perf_counter() - started
        window = Window(options.warmup_seconds, min(options.measured_until_seconds, self._ledger.last_seconds))
        return result_of(self._ledger, self._ran(), window=window, warm=options.warmup_seconds > 0, wall_seconds=wall)

    def _ran(self) -> Ran:
        devices = {pool.role: len(pool.instances) * pool.devices_per_instance for pool in self._pools}
        steps = {"prefill": self._prefill.passes, "decode": self._decode.iterations}
        return Ran(
            instances={pool.role: len(pool.instances) for pool in self._pools},
            busy=self._busy,
            steps=steps,
            occupancy=self._occupancy(),
            expert_imbalance={role: float(cost.balance) for role, cost in self._costs.items() if cost.experts},
            waited_seconds=self._waited,
            transfers=self._transfers,
            link_utilisation={role: self._sent / (count * self._last) for role, count in devices.items() if self._last},
            events=sum(steps.values()),
        )

    def _busy_seconds(self, until: float) -> dict[str, float]:
        return {"prefill": self._prefill.busy_seconds(until), "decode": self._decode.busy_seconds(until)}

    def _play(self, part: Requests, until: float) -> None:
        """Let a part arrive and play until a time; who is in decode already is there at once."""
        begun = part.under_way
        numbers = self._alive.add(part)
        self._ledger.arrive_all(self._alive.rows(numbers)["arrival"])
        stream = Stream(
            arrival_seconds=part.arrival_seconds[begun:],
            prompt_tokens=part.input_tokens[begun:],
            reused_tokens=part.reused_tokens[begun:],
            answer_tokens=part.output_tokens[begun:],
        )
        ended = self._prefill.play(stream, until, numbers[begun:])
        self._alive.note(
            ended.number, first=ended.first_token_seconds, started=ended.started_seconds, origin=ended.origin
        )
        handed = self._sorted_out(np.append(numbers[:begun], ended.number))
        self._collect(self._decode.play(self._handed_over(handed), until, handed))
        self._sample(min(until, self._ledger.last_seconds))

    def _sorted_out(self, numbers: Ints) -> Ints:
        """Let those leave that do not go on to decode; return the others."""
        rows = self._alive.rows(numbers)
        long = self._reserved(rows["inputs"] + rows["outputs"]) > self._target.kv.capacity_tokens_per_rank
        single = (rows["outputs"] <= 1) & ~long
        self._leave(numbers[long], rows["first"][long], completed=False)
        self._leave(numbers[single], rows["first"][single])
        return numbers[~long & ~single]

    def _handed_over(self, numbers: Ints) -> DecodeRequests:
        rows = self._alive.rows(numbers)
        return DecodeRequests(
            ready_seconds=rows["first"],
            cached_tokens=rows["inputs"],
            answer_tokens=(rows["outputs"] - 1).astype(np.int64),
            reserved_tokens=self._reserved(rows["inputs"] + rows["outputs"]),
            transfer_seconds=np.where(rows["begun"] > 0, 0.0, self._held(rows["inputs"])),
            source=rows["origin"].astype(np.int64),
            iterations=self._iterations.draw_all((rows["outputs"] - 1).astype(np.int64)),
        )

    def _collect(self, gone: Gone) -> None:
        """Count those that have left decode."""
        rows = self._alive.rows(gone.number)
        crossed = rows["begun"] == 0
        self._waited += float(gone.link_wait_seconds[crossed].sum())
        self._sent += float(self._held(rows["inputs"][crossed]).sum()) * self._width
        self._transfers += int(crossed.sum())
        self._last = max(self._last, float(gone.there_seconds.max(initial=0.0)))
        self._leave(gone.number, gone.left_seconds)

    def _leave(self, numbers: Ints, end: Floats, completed: bool = True) -> None:
        """Let requests out of the system and into the ledger."""
        if not numbers.size:
            return
        rows, count = self._alive.take(numbers), numbers.size
        done = Outcomes(
            number=numbers,
            arrival=rows["arrival"],
            started=np.where(rows["begun"] > 0, np.nan, rows["started"]),
            first_token=rows["first"],
            end=end,
            inputs=rows["inputs"].astype(np.int64),
            outputs=(rows["outputs"] + rows["begun"]).astype(np.int64),
            reused=rows["reused"].astype(np.int64),
            offline=np.zeros(count, dtype=bool),
            completed=np.full(count, completed),
            retries=np.zeros(count, dtype=np.int64),
        )
        self._ledger.take(done, reason="" if completed else _TOO_LONG)

    def _sample(self, now: float) -> None:
        """Note how full decode is; Blocked where prompts hold more KV in prefill than there is."""
        reserved, taken = self._decode.reserved()
        capacity = self._target.kv.capacity_tokens_per_rank * reserved.size
        slots = self._target.limits.requests_per_dp_rank * taken.size
        fullest = float(reserved.max() / reserved.mean()) if reserved.any() else 1.0
        self._samples.append((now - self._now, reserved.sum() / capacity, taken.sum() / slots, fullest))
        self._now = now
        if self._observer is not None and self._observer.progress:
            self._observer.progress(now, self._ledger.arrived, self._ledger.completed)
        waiting = self._alive.rows(self._decode.not_pulled(now))
        held = np.bincount((waiting["origin"] // self._source.degrees.attention_dp).astype(np.int64), waiting["inputs"])
        if held.max(initial=0.0) > self._source.kv.capacity_tokens_per_rank * self._source.degrees.attention_dp:
            raise Blocked

    def _occupancy(self) -> dict[str, float] | None:
        samples = np.array(self._samples)
        seconds = samples[:, 0].sum() if samples.size else 0.0
        if seconds <= 0:
            return None
        means = samples[:, 0] @ samples[:, 1:] / seconds
        names = ("kv", "slots", "rank_kv_imbalance")
        return dict(zip(names, means.tolist(), strict=True)) | {"peak_kv": float(samples[:, 1].max())}


def _cost(pool: Pool, options: SimulationOptions) -> StepCost:
    cost = pool.step_costs[pool.role].to_step_cost()
    balance = options.balance.get(pool.role)
    return cost if balance is None else replace(cost, balance=balance, sampling_deviations=0.0)


def _pieces(parts: Iterable[Requests], marks: list[float]) -> Iterator[tuple[Requests, float]]:
    """Yield the parts in pieces with the time until which each is played, cut at the marks; the last one to its end."""
    left, before = list(marks), None
    for part in parts:
        begun = part.under_way
        cuts = [*range(begun + _PIECE, len(part), _PIECE), len(part)]
        while left and part.arrival_seconds[-1] > left[0]:
            cuts.append(max(int(np.searchsorted(part.arrival_seconds, left.pop(0), side="right")), begun))
        first = 0
        for last in sorted(set(cuts)):
            if before is not None:
                yield before
            piece = part.piece(first, last)
            end = float(piece.arrival_seconds[-1]) if last > first else 0.0
            mark = next((mark for mark in marks if last < len(part) and end <= mark < part.arrival_seconds[last]), end)
            before, first = (piece, mark), last
    if before is not None:
        yield before[0], np.inf


class _Alive:
    """The requests in the system as columns, by rising number."""

    def __init__(self) -> None:
        self._next = 0
        names = ("number", "arrival", "inputs", "outputs", "reused", "begun", "first", "started", "origin")
        self._columns = {name: np.zeros(0) for name in names}

    def add(self, part: Requests) -> Ints:
        """Take requests in and return their numbers; those in decode already have had their first token."""
        count = len(part)
        numbers = np.arange(self._next, self._next + count)
        self._next += count
        begun = np.zeros(count)
        begun[: part.under_way] = part.begun_tokens
        more = {
            "number": numbers,
            "arrival": np.where(np.arange(count) < part.under_way, -1.0, part.arrival_seconds),
            "inputs": part.input_tokens,
            "outputs": part.output_tokens,
            "reused": part.reused_tokens,
            "begun": begun,
        }
        rest = np.zeros(count)
        self._columns = {name: np.append(held, more.get(name, rest)) for name, held in self._columns.items()}
        return numbers

    def _places(self, numbers: Ints) -> Ints:
        return np.searchsorted(self._columns["number"], numbers)

    def note(self, numbers: Ints, **columns: NDArray[np.float64] | Ints) -> None:
        """Note figures of some."""
        places = self._places(numbers)
        for name, column in columns.items():
            self._columns[name][places] = column

    def rows(self, numbers: Ints) -> dict[str, Floats]:
        """Return the columns of some."""
        places = self._places(numbers)
        return {name: column[places] for name, column in self._columns.items()}

    def take(self, numbers: Ints) -> dict[str, Floats]:
        """Return the columns of some, which are gone from then on."""
        places = self._places(numbers)
        found = {name: column[places] for name, column in self._columns.items()}
        stay = np.ones(self._columns["number"].size, dtype=bool)
        stay[places] = False
        self._columns = {name: column[stay] for name, column in self._columns.items()}
        return found
