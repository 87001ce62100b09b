"""Runs that need no event engine: requests go through the compiled loops of the serving core, part by part.

Where nothing interferes (no faults, role flips, offline work, sessions, closed loop, shared queue or cache look-ups,
and no step that somebody wants to see), what happens follows from the rules of ``planner.serving`` alone: aggregated
instances schedule as the manifest's engine does. The event engine has the rules of the reference runtime and is some
ten times as slow; step times are read off the same cost, here off one table.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, Ints
from planner.manifest.schema import Manifest
from planner.manifest.terms import StepCost
from planner.serving.aggregated_run import AggregatedRun
from planner.serving.decode import DecodeRequests, DecodeRun
from planner.serving.deployed import aggregated_pool, separate_pools
from planner.serving.prefill import PrefillRun
from planner.serving.streams import Stream
from runtime.simulate.engine import NEVER, generator
from runtime.simulate.ledger import Ledger, Measured, Outcomes
from runtime.simulate.metrics import Ran, SimulationResult, Spent, result_of
from runtime.simulate.observe import Observer, Occupancy
from runtime.simulate.options import SimulationOptions
from runtime.simulate.placement import TOO_LONG
from runtime.simulate.steps import IterationCounts, balanced
from runtime.simulate.workload import Requests

FEWEST_DIRECT = 2_000
"""Requests from which compiled loops pay; shorter runs go through the event engine, but where the manifest's engine has
another rule than the reference runtime."""
_PIECE = 2048  # requests between two samples of how full an instance is


class Blocked(Exception):
    """Prompts filled the KV of prefill while decode had no room: passes wait, which only the event engine plays."""


def plain(manifest: Manifest, options: SimulationOptions, first: Requests, watched: bool) -> bool:
    """Whether a run goes through the compiled loops alone; ``watched``: somebody wants to see steps or samples."""
    routing, roles = manifest.routing, [pool.role for pool in manifest.pools]
    aggregated = roles == ["mixed"]
    return (
        not watched
        and (aggregated or sorted(roles) == ["decode", "prefill"])
        and not (options.faults or options.offline or options.stepping or options.migrating or options.autoscale)
        and not options.rebalances
        and options.until_seconds == NEVER
        and (routing.roles, routing.decode_reservation, routing.ranks) == ("fixed", "whole", "placed")
        and routing.prefill in ("least_load", "round_robin")
        and (manifest.caching is None or _loads(manifest))
        and not first.concurrency
        and first.blocks is None
        and first.session is None
        and (len(first) >= FEWEST_DIRECT or (aggregated and manifest.engine.id != "reference"))
    )


def _loads(manifest: Manifest) -> bool:
    """Whether the step costs tell what reused prefixes take to come from the pool."""
    return any(pool.step_costs["prefill"].loading_seconds for pool in manifest.pools if pool.role == "prefill")


def run_direct(
    manifest: Manifest, parts: Iterable[Requests], options: SimulationOptions, observer: Observer | None = None
) -> SimulationResult:
    """Return what the manifest does under the requests, whose first part ``plain`` has accepted.

    Raises Blocked: prompts would have waited for KV in prefill.
    """
    ledger = Ledger(manifest.service_levels, Measured(options.warmup_seconds, options.measured_until_seconds))
    if observer is not None:
        ledger.on_outcomes = observer.outcomes
    made = _Aggregated if manifest.pools[0].role == "mixed" else _Separate
    return made(manifest, options, ledger, observer).result(parts)


class _Direct:
    """The pools of a run, and the requests that are in the system."""

    _runs: Mapping[str, PrefillRun | DecodeRun | AggregatedRun]

    def __init__(
        self, manifest: Manifest, options: SimulationOptions, ledger: Ledger, observer: Observer | None
    ) -> None:
        self._options, self._ledger, self._observer, self._pools = options, ledger, observer, tuple(manifest.pools)
        self._costs: dict[str, StepCost] = {
            pool.role: balanced(pool.step_costs[pool.phase].to_step_cost(), options.balance.get(pool.role))
            for pool in self._pools
        }
        self._answering = next(pool for pool in self._pools if pool.role != "prefill")
        drawn = generator(options.seed, "drafts")
        self._iterations = IterationCounts(self._answering.mtp, options.mtp == "expected", drawn)
        self._alive = Alive()
        self._marks: list[Spent] = []
        self._occupancy = Occupancy(ledger.window)
        self._waited = self._sent = 0.0
        self._transfers = 0
        self._begin(manifest)

    def _begin(self, manifest: Manifest) -> None:
        """Set up the loops of the pools, ``_runs`` by role."""
        raise NotImplementedError

    def result(self, parts: Iterable[Requests]) -> SimulationResult:
        """Play all parts and summarise."""
        options, started = self._options, time.perf_counter()
        marks = [mark for mark in (options.warmup_seconds, options.measured_until_seconds) if 0 < mark < NEVER]
        for part, until in pieces(parts, marks):
            numbers = self._alive.add(part)
            self._ledger.arrive_all(self._alive.rows(numbers)["arrival"])
            self._play(part, numbers, until)
            if until in marks:
                self._marks.append(self._spent(until))
        self._marks += [self._spent(np.inf)] * (1 + len(marks) - len(self._marks))
        wall = time.perf_counter() - started
        window = Measured(options.warmup_seconds, min(options.measured_until_seconds, self._ledger.last_seconds))
        instances: dict[str, int] = {pool.role: len(pool.instances) for pool in self._pools}
        devices: dict[str, int] = {pool.role: len(pool.instances) * pool.devices_per_instance for pool in self._pools}
        links = devices if self._sent else {}
        return result_of(self._ledger, self._ran(), instances, links, self._marks, window, wall)

    def _spent(self, until: float) -> Spent:
        busy = {role: run.busy_seconds(until) for role, run in self._runs.items()}
        return Spent(busy, self._sent, self._waited, self._transfers)

    def _ran(self) -> Ran:
        steps = {role: run.steps for role, run in self._runs.items()}
        return Ran(
            steps=steps,
            occupancy=self._occupancy.means(),
            expert_imbalance={role: float(cost.balance) for role, cost in self._costs.items() if cost.experts},
            events=sum(steps.values()),
        )

    def _play(self, part: Requests, numbers: Ints, until: float) -> None:
        """Let a part arrive and play until a time; who is in decode already is there at once."""
        raise NotImplementedError

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
        self._ledger.take(done, reason="" if completed else TOO_LONG)

    def _sample(self, now: float, held: Floats, taken: Ints) -> None:
        """Note how full the ranks that answer are, by KV tokens and requests of each."""
        pool = self._answering
        share = held.sum() / (pool.kv.capacity_tokens_per_rank * held.size)
        slots = taken.sum() / (pool.limits.requests_per_dp_rank * taken.size)
        fullest = float(held.max() / held.mean()) if held.any() else 1.0
        self._occupancy.add(now, share, slots, fullest)
        if self._observer is not None and self._observer.progress:
            self._observer.progress(now, self._ledger.arrived, self._ledger.completed)


class _Separate(_Direct):
    """A prefill and a decode pool, and the links between them."""

    def _begin(self, manifest: Manifest) -> None:
        pools = {pool.role: pool for pool in manifest.pools}
        self._source, self._target = pools["prefill"], pools["decode"]
        self._pools = self._source, self._target
        played = separate_pools(manifest, self._pools, self._costs)
        self._most_held = self._source.kv.capacity_tokens_per_rank * self._source.degrees.attention_dp
        self._width, self._held, self._reserved = played.links, played.transfer_seconds, played.reserved_tokens
        self._prefill, self._decode = PrefillRun(played.prefill), DecodeRun(played.decode)
        self._runs = {"prefill": self._prefill, "decode": self._decode}
        self._left = np.zeros((4, 0))

    def _play(self, part: Requests, numbers: Ints, until: float) -> None:
        begun = part.under_way
        ended = self._prefill.play(_stream(part).select(slice(begun, None)), until, numbers[begun:])
        self._alive.note(
            ended.number, first=ended.first_token_seconds, started=ended.started_seconds, origin=ended.origin
        )
        handed = self._sorted_out(np.append(numbers[:begun], ended.number))
        gone = self._decode.play(self._handed_over(handed), until, handed)
        stay, there = self._decode.under_way()
        late = there > self._alive.rows(handed)["started"].min(initial=np.inf)
        self._check_room(self._holding(gone.number, gone.there_seconds), self._holding(stay[late], there[late]))
        rows = self._alive.rows(gone.number)
        crossed = rows["begun"] == 0
        self._waited += float(gone.link_wait_seconds[crossed].sum())
        self._sent += float(self._held(rows["inputs"][crossed]).sum()) * self._width
        self._transfers += int(crossed.sum())
        self._leave(gone.number, gone.left_seconds)
        self._sample(min(until, self._ledger.last_seconds), *self._decode.reserved())

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

    def _holding(self, numbers: Ints, pulled: Floats) -> Floats:
        """Return prompts that came through prefill: KV tokens, its group, begin and end of holding them, [4, prompts].

        They hold it from the begin of their pass until it is pulled.
        """
        rows = self._alive.rows(numbers)
        held = np.array([rows["inputs"], rows["origin"], rows["started"], pulled])
        return np.asarray(held[:, rows["begun"] == 0])

    def _check_room(self, gone: Floats, stay: Floats) -> None:
        """Blocked where prompts held more KV at once than a prefill instance has.

        Those that left in the part before may have been there when passes of this one began.
        """
        tokens, origin, begin, end = np.concatenate([self._left, gone, stay], axis=1)
        self._left = gone
        instances = origin.astype(np.int64) // self._source.degrees.attention_dp
        for instance in np.flatnonzero(np.bincount(instances, weights=tokens) > self._most_held):
            own = instances == instance
            # What is pulled in an instant makes room for the passes that begin in it.
            when, change = np.append(end[own], begin[own]), np.append(-tokens[own], tokens[own])
            if np.cumsum(change[np.argsort(when, kind="stable")]).max(initial=0.0) > self._most_held:
                raise Blocked


class _Aggregated(_Direct):
    """A pool of aggregated instances, under the rule of their engine."""

    def _begin(self, manifest: Manifest) -> None:
        self._run = AggregatedRun(aggregated_pool(manifest, self._answering, self._costs["mixed"]))
        self._runs = {"mixed": self._run}

    def _play(self, part: Requests, numbers: Ints, until: float) -> None:
        stream = _stream(part)
        fit = self._run.pool.reserved(stream) <= self._answering.kv.capacity_tokens_per_rank
        self._alive.note(numbers, first=np.full(numbers.size, np.nan), started=np.full(numbers.size, np.nan))
        self._leave(numbers[~fit], part.arrival_seconds[~fit], completed=False)
        after = part.output_tokens[fit] - 1
        iterations = np.where(after > 0, self._iterations.draw_all(after), 0)
        gone = self._run.play(stream.select(np.flatnonzero(fit)), until, numbers[fit], iterations)
        self._alive.note(gone.number, first=gone.first_token_seconds, started=gone.begun_seconds)
        self._leave(gone.number, gone.left_seconds)
        self._sample(min(until, self._ledger.last_seconds), *self._run.held_tokens())


def _stream(part: Requests) -> Stream:
    """Return the requests of a part; of those that are in decode already, all but the last cached token is reused."""
    under_way = np.arange(len(part)) < part.under_way
    return Stream(
        arrival_seconds=part.arrival_seconds,
        prompt_tokens=part.input_tokens,
        reused_tokens=np.where(under_way, part.input_tokens - 1, part.reused_tokens),
        answer_tokens=part.output_tokens,
    )


def pieces(parts: Iterable[Requests], marks: list[float]) -> Iterator[tuple[Requests, float]]:
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


class Alive:
    """The requests in the system as columns, by rising number."""

    def __init__(self) -> None:
        self._next = 0
        names = ("arrival", "inputs", "outputs", "reused", "begun", "first", "started", "origin")
        self._columns = {name: np.zeros(0) for name in names}
        self._numbers = self._places = np.zeros(0, dtype=np.int64)
        """Of the requests; and where each stands whose number is not below that of the first one."""

    def _found(self, numbers: Ints) -> Ints:
        return self._places[numbers - self._numbers[0]] if numbers.size else numbers

    def add(self, part: Requests) -> Ints:
        """Take requests in and return their numbers; those in decode already have had their first token."""
        count = len(part)
        numbers = np.arange(self._next, self._next + count)
        self._next += count
        begun = np.zeros(count)
        begun[: part.under_way] = part.begun_tokens
        more = {
            "arrival": np.where(np.arange(count) < part.under_way, -1.0, part.arrival_seconds),
            "inputs": part.input_tokens,
            "outputs": part.output_tokens,
            "reused": part.reused_tokens,
            "begun": begun,
        }
        rest = np.zeros(count)
        self._columns = {name: np.append(held, more.get(name, rest)) for name, held in self._columns.items()}
        self._number(np.append(self._numbers, numbers))
        return numbers

    def _number(self, numbers: Ints) -> None:
        self._numbers = numbers
        if numbers.size:
            self._places = np.zeros(numbers[-1] - numbers[0] + 1, dtype=np.int64)
            self._places[numbers - numbers[0]] = np.arange(numbers.size)

    def note(self, numbers: Ints, **columns: NDArray[np.float64] | Ints) -> None:
        """Note figures of some."""
        places = self._found(numbers)
        for name, column in columns.items():
            self._columns[name][places] = column

    def rows(self, numbers: Ints) -> dict[str, Floats]:
        """Return the columns of some."""
        places = self._found(numbers)
        return {name: column[places] for name, column in self._columns.items()}

    def take(self, numbers: Ints) -> dict[str, Floats]:
        """Return the columns of some, which are gone from then on."""
        found, stay = self.rows(numbers), np.ones(self._numbers.size, dtype=bool)
        stay[self._found(numbers)] = False
        self._columns = {name: column[stay] for name, column in self._columns.items()}
        self._number(self._numbers[stay])
        return found
