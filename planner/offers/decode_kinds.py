"""A decode row as a server: what it carries with the cap of its batch that suits it best."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.balance.imbalance import expected_maximum_normal
from planner.instances.decode_candidates import DecodeCandidate, iteration, request_rate
from planner.instances.operating import DecodeServer
from planner.instances.space import Row
from planner.offers.integers import largest_carried
from planner.serving.closed_forms.batch_caps import Batches
from planner.workload import running_kv_tokens

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Caps that are tried for being quickest at a rate: all but always the first keeps the limit.
_TRIED = 8


@dataclass(frozen=True, eq=False)
class DecodeKind:
    """A decode row with each cap of its batch up to the largest that keeps the TPOT limit and fits.

    The largest carries most but where requests wait for room long enough to miss the limit by it: then smaller ones,
    whose requests run quicker, are tried too.
    """

    full: DecodeServer

    @property
    def row(self) -> Row:
        """The row."""
        return self.full.candidate.row

    @property
    def independent(self) -> bool:
        """Yes: each of several instances sees Poisson arrivals."""
        return True

    @property
    def bound_per_second(self) -> float:
        """What one instance can carry at most."""
        return self.full.question.most_utilisation * self.full.candidate.requests_per_second

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of so many instances within the TPOT limit at any cap."""
        return instances * self._settled[0]

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether so many instances carry a rate within the TPOT limit."""
        return self.pool_capacity(instances) >= rate_per_second

    def at(self, instances: int, rate_per_second: float | None = None) -> DecodeServer:
        """Return the server with the cap that carries most, or is quickest at a rate of so many instances."""
        return self.best if rate_per_second is None else self._quickest(rate_per_second / instances)[0]

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean time from a prompt's KV to its last token at a rate; infinite beyond the limit."""
        return self._quickest(rate_per_second / instances)[1]

    def _quickest(self, rate: float) -> tuple[DecodeServer, float]:
        """The largest cap lets fewest requests wait and finishes most of those that run, so it is the quickest.

        Where it misses the limit, the largest one that keeps it is taken.
        """
        question, limit = self.full.question, self.full.question.tpot_seconds
        for server in self._largest_first(rate):
            state = server.state(rate)
            if state is not None and state.tpot.at(question.percentile) <= limit:
                return server, state.span.mean - server.transfer_seconds
        return self.full, math.inf

    def _largest_first(self, rate: float) -> Iterator[DecodeServer]:
        yield self.full
        batches, bounds = self._caps
        able = batches[bounds >= rate]
        if able.size and self.full.question.queueing == "bulk":
            kept = self._batches.kept(able * self._groups, rate)
            keep = able[kept >= self.full.question.percentile / 100]
            yield from (self._server(int(cap)) for cap in keep[::-1][:_TRIED])

    @property
    def best(self) -> DecodeServer:
        """The server with the cap that carries most, out of every one."""
        return self._server(self._settled[1])

    @cached_property
    def _settled(self) -> tuple[float, int]:
        """The largest rate and the cap that carries it."""
        full = self.full
        if full.question.queueing == "mixserve":
            return full.single_capacity, full.candidate.batch
        return largest_carried(
            (full.single_capacity, full.candidate.batch),
            self._keeps,
            lambda rate, _: self._carrying(rate),
            lambda cap, _: self._server(cap).single_capacity,
            self.bound_per_second / 1000,
        )

    def _carrying(self, rate: float) -> int | None:
        """Return the cap with which most requests keep the limit at a rate; None where that is too few."""
        batches, bounds = self._caps
        able = batches[bounds >= rate]
        if not able.size:
            return None
        cap = int(able[np.argmax(self._batches.kept(able * self._groups, rate))])
        return cap if self._keeps(cap, rate) else None

    def _keeps(self, cap: int, rate: float) -> bool:
        server, question = self._server(cap), self.full.question
        if rate > question.most_utilisation * server.candidate.requests_per_second:
            return False
        state = server.state(rate)
        return state is not None and state.tpot.at(question.percentile) <= question.tpot_seconds

    @property
    def _groups(self) -> int:
        return self.full.candidate.row.strategy.attention_groups

    @cached_property
    def _batches(self) -> Batches:
        full = self.full
        return Batches(
            iteration_seconds=np.maximum.accumulate(full.iteration_table()),
            iterations=full.iterations,
            transfer_seconds=full.transfer_seconds,
            tokens_per_iteration=full.accepted,
            limit_seconds=full.question.tpot_seconds,
            most_utilisation=full.question.most_utilisation,
        )

    @cached_property
    def _caps(self) -> tuple[Ints, Floats]:
        """Caps up to the largest, [caps], and what bounds the rate at each."""
        candidate, question = self.full.candidate, self.full.question
        strategy = candidate.row.strategy
        given = question.pin("decode").batch is not None
        batches = np.arange(candidate.batch if given else strategy.pp * candidate.microbatches, candidate.batch + 1)
        seconds = self._seconds(batches.astype(np.float64))
        rates = request_rate(question, candidate.deployment, batches.astype(np.float64), seconds)
        return batches, question.most_utilisation * rates

    def _seconds(self, batches: Floats) -> Floats:
        candidate, question = self.full.candidate, self.full.question
        spread = expected_maximum_normal(candidate.row.strategy.attention_groups)
        kv = running_kv_tokens(question.workload)
        return np.asarray(iteration(self.full.cost, spread, batches, kv, candidate.microbatches))

    def _server(self, cap: int) -> DecodeServer:
        """Return the server with a cap; what keeps one below the largest from more is the TPOT limit."""
        candidate, question = self.full.candidate, self.full.question
        if cap == candidate.batch:
            return self.full
        seconds = float(self._seconds(np.array([float(cap)]))[0])
        changed: DecodeCandidate = replace(
            candidate,
            batch=cap,
            iteration_seconds=seconds,
            requests_per_second=float(request_rate(question, candidate.deployment, float(cap), seconds)),
            limited_by="tpot",
        )
        return replace(self.full, candidate=changed, known_cost=self.full.cost)
