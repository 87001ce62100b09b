"""A decode row as a server: its capacity with the best cap of its batch.

A cap below the largest batch lets requests wait, and lets those that run be quicker. All caps are evaluated at once:
the birth-death weight of n running requests is the same product for every cap (``birth_death``), cut off at the cap, so
prefix sums give the share of requests within the TPOT limit for each cap.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from planner.closed_forms.birth_death import Iterating, request_levels
from planner.closed_forms.fullest import FullestRank
from planner.instances.brackets import largest_carried
from planner.instances.candidates import DecodeCandidate, iteration, request_rate
from planner.instances.operating import DecodeServer
from planner.instances.space import Row
from planner.serving.capacity import on_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches(Iterating):
    """An instance whose batch may be capped."""

    full_seconds: Floats  # [requests], of an iteration where so many are the cap
    limit_seconds: float  # TPOT limit
    most_utilisation: float  # utilisation limit: largest planned rate over that of a full instance

    @property
    def full_per_second(self) -> Floats:
        """Requests finished per second where so many are the cap and all run, [requests]."""
        return np.asarray(self.running / (self.iterations.mean * self.full_seconds))

    def kept(self, caps: Ints, rate_per_second: float) -> Floats:
        """Return the share of requests that keep the limit with each cap at a rate, [caps]; 0 past most utilisation.

        What ``birth_death.decode_state`` says of one cap, but that waits are exponential instead of levels of it.
        """
        able = self.most_utilisation * self.full_per_second[caps - 1] >= rate_per_second
        found = np.zeros(caps.shape)
        if able.any():
            found[able] = _Occupancies.of(self, caps[able], rate_per_second).kept()
        return found


class _Occupancies(NamedTuple):
    """Running requests at a rate with each cap: what is summed up to it; [caps], and [0..requests] of the product."""

    batches: Batches
    rate: float
    caps: Ints
    waiting: Floats  # [caps]: share that finds the instance full
    seen: Floats  # [0..requests]: pi(n) n / tau(n), what iterations see
    own: Floats  # [caps]: what they see of a full instance, with 0, 1, ... waiting

    @classmethod
    def of(cls, batches: Batches, caps: Ints, rate: float) -> "_Occupancies":
        finished = batches.finished_per_second
        logs = np.append(0.0, np.cumsum(np.log(rate / finished)))
        masses = np.exp(logs - logs.max())
        full = batches.full_per_second[caps - 1]
        in_line = masses[caps - 1] * rate / full / (1 - rate / full)
        seen = np.append(0.0, masses[1:] * batches.running / batches.iteration_seconds)
        own = in_line * caps / batches.full_seconds[caps - 1]
        return cls(batches, rate, caps, in_line / (np.cumsum(masses)[caps - 1] + in_line), seen, own)

    def kept(self) -> Floats:
        """Share of requests within the limit, [caps]."""
        batches, caps, spread = self.batches, self.caps, self.batches.iterations.squared_cv
        seconds, full = batches.iteration_seconds, batches.full_seconds[self.caps - 1]
        likely, lengths, luck = request_levels(batches.iterations, batches.tokens_squared_cv)
        iterations = batches.iterations.mean * lengths * luck
        mean = self._mean_seen(seconds)[:, None]
        fixed = batches.transfer_seconds + batches.joining_iterations * mean  # [caps, 1]
        limit = batches.limit_seconds * batches.tokens_per_iteration / luck - fixed / iterations  # [caps, levels]
        busy = self._mean_seen(batches.running)[:, None]
        longest = mean + (limit - mean) / batches.averaged(busy, mean, lengths)  # [caps, levels], of a timely iteration
        within = self._within(longest)
        scale = (1 + spread) / 2 / (batches.full_per_second[caps - 1] - self.rate)
        late = -np.expm1(-np.maximum(limit - full[:, None], 0.0) * iterations / scale[:, None])
        waiting = self.waiting[:, None]
        return np.asarray(((1 - waiting) * within / self._total[:, None] + waiting * late) @ likely)

    def _within(self, longest: Floats) -> Floats:
        """Share of requests with iterations of at most so long, [caps, levels]."""
        caps, seconds = self.caps[:, None], self.batches.iteration_seconds
        places = np.minimum(np.searchsorted(seconds, longest, side="right"), caps)  # states that are in time
        masses = np.cumsum(self.seen)[np.minimum(places, caps - 1)] + np.where(places == caps, self.own[:, None], 0.0)
        if longest.shape[1] > 1:
            return np.asarray(masses)
        # As a distribution of few masses is read: each spread evenly down to the one before it.
        after = np.minimum(places, caps - 1)
        before = np.where(places > 0, seconds[np.maximum(places - 1, 0)], 0.0)
        part = np.clip((longest - before) / np.maximum(seconds[after] - before, 1e-300), 0.0, 1.0)
        own = np.where(after == caps - 1, self.own[:, None], self.seen[after + 1])
        return np.asarray(masses + np.where(places == caps, 0.0, part * own))

    @property
    def _total(self) -> Floats:
        return np.asarray(np.cumsum(self.seen)[self.caps - 1] + self.own)

    def _mean_seen(self, values: Floats) -> Floats:
        """Mean over iterations of what is given by the running requests, [caps]."""
        below = np.cumsum(self.seen * np.append(0.0, values))[self.caps - 1]
        return np.asarray((below + self.own * values[self.caps - 1]) / self._total)


# Caps that are tried in turn for the quickest at a rate; the first one nearly always keeps the limit.
_TRIED = 8
# Share of requests that wait below which a larger cap is no quicker.
_SELDOM = 1e-3
# Standard deviations of the running requests above a full instance to which caps are tried: one in 740 passes them.
_DEVIATIONS = 3.0
# Caps up to the largest that fits among which the first is sought that the utilisation limit does not bind.
_WIDTHS = 64
# Of the largest cap, those that are played on a trace, and by how much more the next must carry than the last.
_PARTS = (1.0, 0.85, 0.7, 0.5)
_MORE = 1.003


@dataclass(frozen=True, eq=False)
class DecodeKind:
    """A decode row with each cap of its batch that fits in memory and may bind.

    The largest cap whose full iteration keeps the TPOT limit usually carries most. If requests wait for a slot so long
    that they miss the limit, other caps are tried: smaller ones run quicker, and larger ones let fewer requests wait (a
    batch that is seldom full may exceed the limit when it is full).
    """

    full: DecodeServer
    room: int  # the largest batch that fits in memory
    bound_per_second: float  # upper bound on the rate of one instance
    _settled: dict[int, tuple[float, DecodeServer]] = field(default_factory=dict)
    """Capacity of one of so many instances and its server, by instances."""
    _tabulated: dict[int, Batches] = field(default_factory=dict)
    """All caps together, by the instances that are followed together."""

    @property
    def row(self) -> Row:
        """Strategy and expert layout."""
        return self.full.candidate.row

    def behind(self, transfer_seconds: float) -> "DecodeKind":
        """Return the row behind other KV transfers; iterations take as long."""
        full = replace(self.full.after(transfer_seconds), known_cost=self.full.cost)
        return DecodeKind(full, self.room, self.bound_per_second)

    @property
    def independent(self) -> bool:
        """Whether the capacity of several instances is a multiple of one's, as for the server."""
        return self.full.independent

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of a pool of so many instances within the TPOT limit with any cap."""
        return instances * self._best(instances)[0]

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether a pool of so many instances carries a rate within the TPOT limit."""
        each = rate_per_second / instances
        if self.full.player is not None:
            return any(server.pool_carries(instances, rate_per_second) for server in self._on_trace(each))
        if not self.independent and instances not in self._settled and not self._may_carry(each, instances):
            return False
        return self.pool_capacity(instances) >= rate_per_second

    def likely_capacity(self, instances: int, least_per_second: float, lower_per_second: float = 0.0) -> float | None:
        """None: the guess of its offer is good enough."""
        return None

    def at(self, instances: int, rate_per_second: float | None = None) -> DecodeServer:
        """Return the server with the best cap for so many instances: largest capacity, or quickest at a rate."""
        if rate_per_second is None:
            return self._best(instances)[1]
        return self._quickest(rate_per_second / instances, instances)[0]

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean time from the arrival of KV to the last token at a rate; infinite beyond the limit."""
        return self._quickest(rate_per_second / instances, instances)[1]

    def _on_trace(self, rate: float) -> tuple[DecodeServer, ...]:
        """The servers on which a trace is played at a rate: that of the TPOT limit, with smaller caps, or with room."""
        roomy = rate >= self.full.most_per_second * (1 - 1e-9)
        return (*self._narrower, *([self._server(self._widest)] if roomy else []))

    @cached_property
    def _narrower(self) -> tuple[DecodeServer, ...]:
        least = int(self._caps[0][0])
        caps = dict.fromkeys(max(round(self.full.candidate.batch * part), least) for part in _PARTS)
        return tuple(self._server(cap) for cap in caps)

    def _best(self, instances: int) -> tuple[float, DecodeServer]:
        """The capacity of one of so many instances and the server that has it."""
        known = 1 if self.independent else instances
        if known not in self._settled:
            self._settled[known] = self._played(known) if self.full.player is not None else self._largest(known)
        return self._settled[known]

    def _played(self, instances: int) -> tuple[float, DecodeServer]:
        best = self.full.pool_capacity(instances), self.full
        for server in self._on_trace(best[0] / instances)[1:]:
            if not best[0] or server.pool_carries(instances, best[0] * _MORE):
                best = max(best, (server.pool_capacity(instances), server), key=lambda found: found[0])
        return best[0] / instances, best[1]

    def _quickest(self, rate: float, instances: int) -> tuple[DecodeServer, float]:
        """The quickest server: the largest cap that keeps the limit, with which fewest wait and most are finished."""
        question, limit = self.full.question, self.full.question.tpot_seconds
        for server in self._largest_first(rate, instances):
            state = server.state(rate, instances)
            if state is not None and state.tpot.at(question.percentile) <= limit:
                return server, state.span.mean - server.transfer_seconds
        return self.full, math.inf

    def _largest_first(self, rate: float, instances: int) -> Iterator[DecodeServer]:
        if self.full.player is not None:
            yield from self._on_trace(rate)
            return
        state = self.full.state(rate, instances)
        if self.full.question.queueing != "bulk" or (state is not None and state.waiting_probability < _SELDOM):
            yield self.full
        batches, bounds = self._caps
        able = batches[bounds >= rate]
        if able.size and self.full.question.queueing == "bulk":
            keep = able[self._kept(able, rate, instances) >= self.full.question.percentile / 100]
            yield from (self._server(int(cap)) for cap in keep[::-1][:_TRIED])
            yield from (self.full, self._best(instances)[1])

    def _largest(self, instances: int) -> tuple[float, DecodeServer]:
        full = self.full
        if full.question.queueing == "mixserve":
            return full.pool_capacity(1), full
        rate, cap = largest_carried(
            (full.pool_capacity(instances) / instances, full.candidate.batch),
            lambda rate, _: self._carrying(rate, instances),
            lambda cap, _: min(self._server(cap).pool_capacity(instances) / instances, self.bound_per_second),
            self._caps[1],
        )
        return rate, self._server(cap)

    def _may_carry(self, rate: float, instances: int) -> bool:
        """Whether some cap carries the rate of the grid below a rate, as one that carries the rate itself does."""
        below = on_grid(rate)
        return self._carrying(below, instances) is not None or self._keeps(self.full.candidate.batch, below, instances)

    def _carrying(self, rate: float, instances: int) -> int | None:
        """Return the cap with which most requests keep the limit at a rate; None where too few do."""
        batches, bounds = self._caps
        able = batches[bounds >= rate]
        if not able.size:
            return None
        cap = int(able[np.argmax(self._kept(able, rate, instances))])
        return cap if self._keeps(cap, rate, instances) else None

    def _kept(self, caps: Ints, rate: float, instances: int) -> Floats:
        """Return the share of requests that keep the limit with each cap at the rate of one instance, [caps]."""
        alike = self._server(int(self._caps[0][-1])).queue.followed(instances)
        each = alike * rate * self.full.question.requests_each
        return self._batches(alike).kept(caps * self._groups * alike, each)

    def _keeps(self, cap: int, rate: float, instances: int) -> bool:
        server, question = self._server(cap), self.full.question
        if rate > min(question.most_utilisation * server.candidate.requests_per_second, self.bound_per_second):
            return False
        state = server.state(rate, instances)
        return state is not None and state.tpot.at(question.percentile) <= question.tpot_seconds

    @property
    def _groups(self) -> int:
        return self.full.candidate.row.strategy.attention_groups

    def _batches(self, alike: int) -> Batches:
        if alike not in self._tabulated:
            self._tabulated[alike] = self._batches_of(alike)
        return self._tabulated[alike]

    def _batches_of(self, alike: int) -> Batches:
        full, (batches, seconds) = self.full, self._full
        queue = self._server(int(batches[-1])).queue
        table = queue.tabulated(alike)
        return Batches(
            iteration_seconds=table.iteration_seconds,
            full_seconds=np.interp(table.running / (self._groups * alike), batches, np.maximum.accumulate(seconds)),
            iterations=queue.iterations_per_request,
            transfer_seconds=queue.transfer_seconds,
            joining_iterations=queue.joining_iterations,
            kv_squared_cv=table.kv_squared_cv,
            kv_seconds=table.kv_seconds,
            tokens_per_iteration=queue.tokens_per_iteration,
            tokens_squared_cv=queue.tokens_squared_cv,
            limit_seconds=full.question.tpot_seconds,
            most_utilisation=full.question.most_utilisation,
        )

    @cached_property
    def _full(self) -> tuple[Ints, Floats]:
        """Caps and the seconds of their full iterations, each [caps]."""
        candidate, batches = self.full.candidate, np.array([self.full.candidate.batch])
        if self.full.question.pin("decode").batch is None:
            batches = np.arange(candidate.row.strategy.pp * candidate.microbatches, self._widest + 1)
        return batches, self._seconds(batches.astype(np.float64))

    @cached_property
    def _caps(self) -> tuple[Ints, Floats]:
        """Caps and upper bounds on their rates, each [caps]."""
        batches, seconds = self._full
        return batches, np.minimum(self._most(batches, seconds), self.bound_per_second)

    def _most(self, batches: Ints, seconds: Floats) -> Floats:
        """Largest rates by the utilisation limit with caps of the batch, [caps]."""
        question, deployment = self.full.question, self.full.candidate.deployment
        return question.most_utilisation * request_rate(question, deployment, batches.astype(np.float64), seconds)

    @cached_property
    def _widest(self) -> int:
        """The largest cap that is tried: a larger one would hardly ever bind, and leaves enough of it unused.

        At the bound about as many requests M run as fill the instance. Their variance is that of a queue without
        waiting with slowing service, M / (1 - e), e the elasticity of iteration time (``birth_death``). Where the time
        grows linearly from that of the least batch, 1 - e is that time over the time of the full batch.
        """
        candidate, groups = self.full.candidate, self._groups
        least = float(self._seconds(np.array([1.0]))[0])
        deviation = math.sqrt(candidate.batch * groups * max(candidate.iteration_seconds / least, 1.0))
        seldom = candidate.batch + math.ceil(_DEVIATIONS * deviation / groups)
        wider = np.ceil(np.geomspace(candidate.batch, max(self.room, candidate.batch), _WIDTHS)).astype(np.int64)
        most = np.maximum.accumulate(self._most(wider, self._seconds(wider.astype(np.float64))))
        unused = int(wider[min(int(np.searchsorted(most, self.bound_per_second)), _WIDTHS - 1)])
        return max(min(self.room, max(seldom, unused)), candidate.batch)

    def _seconds(self, batches: Floats) -> Floats:
        candidate = self.full.candidate
        fullest = FullestRank.of(self.full.question.decoded, candidate.row.strategy.attention_groups)
        return np.asarray(iteration(self.full.cost, fullest, batches, candidate.microbatches))

    def _server(self, cap: int) -> DecodeServer:
        """Return the server with a cap, which the TPOT limit binds, or memory where a larger batch does not fit."""
        candidate, question = self.full.candidate, self.full.question
        if cap == candidate.batch:
            return self.full
        seconds = float(self._seconds(np.array([float(cap)]))[0])
        changed: DecodeCandidate = replace(
            candidate,
            batch=cap,
            iteration_seconds=seconds,
            requests_per_second=float(request_rate(question, candidate.deployment, float(cap), seconds)),
            limited_by="memory" if cap >= self.room else "tpot",
        )
        return replace(self.full, candidate=changed, known_cost=self.full.cost, known_queue=None)
