"""Offers of decode instances: every row that keeps the TPOT limit, with an upper bound on its rate.

The bound of a row is its throughput at the largest batch whose iteration keeps the limit; the best batch is chosen
later (``offers.decode_kinds``). Throughput rises with the batch, so the batch that fills the memory is a bound too.
Most rows are far behind others of their size, so their largest batch is computed only when they are built. It is known
for the leading rows of each size, which are therefore in the right order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Bools, Floats, Ints
from planner.costs.latency import accepted_tokens
from planner.instances.brackets import largest_between
from planner.instances.candidates import (
    Count,
    DecodeCandidate,
    IterationTime,
    largest_room,
    least_batch,
    request_rate,
    row_microbatches,
)
from planner.instances.fullest import FullestRank
from planner.instances.kv_links import most_linked
from planner.instances.least import decode_least
from planner.instances.operating import DecodeServer
from planner.instances.space import Built, Group, Row, built, row_deployment
from planner.manifest.stacks import taken
from planner.offers.decode_kinds import DecodeKind
from planner.offers.offer import Offers
from planner.question import Question
from planner.workload import reserved_kv_tokens

LEADING = 10  # leading rows of each size whose largest batch is always computed; no caller uses the order of more
FEW = 1000  # number of rows up to which the largest batch of all is computed
_LIKELY = 0.9  # part of the leading rows' likely rate that the bound of a row must reach for a second, closer bound
_NEARER = 0.95  # part of the leading rows' likely rate that this second bound must reach
_HIGH = 75  # percentile from which the largest batch bounds how many requests run on average
_EARLIER = 0.98
"""Guess of a capacity over the rate at which the mean TPOT is at the limit: a percentile of it is there earlier."""
_BEYOND = 1.02  # next batch to try over the likely batch: it probably misses the limit, and then bounds the row


@dataclass(slots=True)
class _Ends:
    """Batches that enclose the largest batch within the limit, and their iteration seconds, each [rows]."""

    low: Floats
    below: Floats
    high: Floats
    above: Floats

    def crossing(self, limit: Floats) -> Floats:
        """Batch at which the line between both ends meets the limit."""
        part = (limit - self.below) / np.maximum(self.above - self.below, 1e-12)
        return self.low + np.clip(part, 0.0, 1.0) * (self.high - self.low)

    def of(self, rows: Ints) -> "_Ends":
        """Return the ends of some rows."""
        return _Ends(self.low[rows], self.below[rows], self.high[rows], self.above[rows])


class _Table(NamedTuple):
    """Rows of one group: bounds on their rates, and their largest batches within the limit where known, [rows]."""

    question: Question
    group: Group
    times: dict[int, IterationTime]  # iteration times by microbatches, fewest first
    limit: Floats
    room: Floats
    alone: Floats  # seconds of an iteration with the fewest microbatches and one request per stage and microbatch
    ends: dict[int, _Ends]
    """Ends by microbatches; a low end may come from other microbatches, a high end is late or the most that fits."""
    batch: Floats
    seconds: Floats
    microbatches: Ints
    known: Bools
    full: Floats  # requests per second of the batch that fills the memory

    @property
    def most(self) -> Floats:
        """Upper bound on requests per second: at the largest batch where known, else at a batch beyond the limit."""
        known = self._rate(self.batch, np.where(self.batch > 0, self.seconds, np.inf))
        return np.where(self.known, known, self.at_high_ends)

    @property
    def bound(self) -> Floats:
        """Upper bound on the rate that is planned with, [rows].

        Where TPOT at a high percentile is at the limit, fewer requests run on average than the largest batch. Near the
        median as many run as keep the limit, which is no integer.
        """
        most = self.most
        if self.question.percentile < _HIGH:
            running = self._rate(self.batch + 1, self.limit)
            most = np.where(self.known & (self.batch < self.room), running, most)
        return np.asarray(np.minimum(most, self.question.most_utilisation * self.full))

    @property
    def at_high_ends(self) -> Floats:
        """Requests per second at the high ends: at first of the batch that fills the memory, [rows]."""
        held = [np.where(self.holds(parts), self._rate(own.high, own.above), 0.0) for parts, own in self.ends.items()]
        return np.asarray(np.maximum.reduce(held))

    @property
    def likely(self) -> Floats:
        """Estimate of the requests per second of rows."""
        found = np.maximum.reduce([own.crossing(self.limit) for own in self.ends.values()])
        return np.where(self.known, self.most, self._rate(found, self.limit))

    def holds(self, microbatches: int) -> Bools:
        """Whether memory holds a request per stage and microbatch, [rows]."""
        return least_batch(self.group, microbatches) <= self.room

    def narrow(self, rows: Ints) -> None:
        """Evaluate some rows at batches that probably just miss the limit."""
        limit, times = self.limit[rows], self._times(rows)
        for parts, ends in self.ends.items():
            own = ends.of(rows)
            tried = np.clip(np.floor(own.crossing(limit) * _BEYOND) + 1, least_batch(self.group, parts)[rows], own.high)
            took = np.broadcast_to(np.asarray(times[parts](tried)), tried.shape)
            late, fine = rows[took > limit], rows[took <= limit]
            ends.high[late], ends.above[late] = tried[took > limit], took[took > limit]
            ends.low[fine], ends.below[fine] = tried[took <= limit], took[took <= limit]

    def settle(self, rows: Ints) -> None:
        """Find the largest batch of some rows and its microbatches; for equal batches, the quicker number."""
        batch, seconds, chosen = np.zeros(rows.size), np.full(rows.size, np.inf), np.ones(rows.size, dtype=np.int64)
        times = self._times(rows)
        for parts, ends in self.ends.items():
            # Only where these microbatches do the batch known so far can they do a larger one.
            able = np.flatnonzero((ends.high[rows] >= batch) & self.holds(parts)[rows])
            if not able.size:
                continue
            measure = times[parts] if able.size == rows.size else times[parts].of(able)
            found, least = self._largest(rows[able], measure, batch[able])
            better = (found > batch[able]) | ((found == batch[able]) & (found > 0) & (least < seconds[able]))
            place = able[better]
            batch[place], seconds[place], chosen[place] = found[better], least[better], parts
        self.batch[rows], self.seconds[rows], self.microbatches[rows], self.known[rows] = batch, seconds, chosen, True

    def _largest(self, rows: Ints, measure: IterationTime, least: Floats) -> tuple[Floats, Floats]:
        """Return the largest batch of some rows within the limit, ``least`` or more, and its seconds; 0 for none.

        Tried first are the integers next to the linear crossing of the limit, and the integers just above the largest
        batch of other microbatches.
        """
        parts = measure.microbatches
        limit, ends = self.limit[rows], self.ends[parts].of(rows)
        low = np.maximum(least, least_batch(self.group, parts)[rows])
        high = np.maximum(ends.high, low)
        start = np.where(least > 0, low, np.clip(np.floor(ends.crossing(limit)), low, high))
        tried = np.stack([start, np.minimum(start + 1, high), ends.high, ends.low])
        took = np.stack([tried[0], tried[1], ends.above, ends.below])
        took[:2] = measure(tried[:2])
        found, seconds = largest_between(measure, limit, np.stack([low, high]), tried, took, ends.below)
        return np.where(found >= low, found, 0.0), seconds

    def _times(self, rows: Ints) -> dict[int, IterationTime]:
        """Return the iteration times of some rows, by microbatches."""
        if rows.size == self.room.size:
            return self.times
        first = next(iter(self.times.values())).of(rows)
        return {parts: replace(first, microbatches=parts) for parts in self.times}

    def _rate(self, batch: Floats, seconds: Floats) -> Floats:
        return request_rate(self.question, self.group.deployment, batch, seconds)


def decode_offers(question: Question, rows: list[Row], count: Count, slowest_seconds: float) -> Offers:
    """Return the offers of decode instances that keep the TPOT limit with at least one request per stage."""
    tables = [_bounded(question, each, count) for each in built(question, "decode", rows)]
    found = [table for table in tables if table is not None]
    _settle_leading(found, question.goal.timed)
    return Offers.joined([_offers(question, table, slowest_seconds, count) for table in found])


def _bounded(question: Question, whole: Built, count: Count) -> _Table | None:
    """Return the rows that hold a request, with bounds on their rates; those that memory limits are exact."""
    room, batch = largest_room(whole.group, 1, reserved_kv_tokens(question.decoded)), question.pin("decode").batch
    if batch is not None:
        room = np.where(room >= batch, float(batch), 0.0)
    held = np.flatnonzero(room >= least_batch(whole.group, 1))
    if not held.size:
        return None
    rows, room = whole.select(held), room[held]
    group, cost = rows.group, rows.cost
    fullest = FullestRank.of(question.decoded, group.deployment.strategy.attention_groups)
    # A given batch need not be full to keep the limit; requests with a single token have none to keep.
    longest = question.tpot_seconds if batch is None and question.decoded.decodes else np.inf
    limit = np.broadcast_to(longest * accepted_tokens(group.deployment, question.acceptance), room.shape)
    usable = sorted(row_microbatches(question, group.rows[0]))
    times = {parts: IterationTime(cost, fullest, parts, count) for parts in usable}
    first = least_batch(group, usable[0])
    points = np.stack([np.maximum(room, first), first])
    full, alone = np.broadcast_to(np.asarray(times[usable[0]](points)), points.shape)
    ends = {usable[0]: _Ends(first.copy(), alone.copy(), points[0], full.copy())}
    for parts in usable[1:]:
        most = np.maximum(room, least_batch(group, parts))
        full = np.broadcast_to(np.asarray(times[parts](most)), room.shape)
        ends[parts] = _Ends(first.copy(), alone.copy(), most, full.copy())
    table = _Table(
        question=question,
        group=group,
        times=times,
        limit=limit,
        room=room,
        alone=alone,
        ends=ends,
        batch=np.zeros(room.shape),
        seconds=np.full(room.shape, np.inf),
        microbatches=np.ones(room.shape, dtype=np.int64),
        known=~np.asarray(first <= room),  # those hold no request
        full=np.zeros(room.shape),
    )
    table = table._replace(full=table.at_high_ends)
    for parts, own in ends.items():
        fits = table.holds(parts) & (own.above <= limit) & (own.above < table.seconds)
        table.batch[fits], table.seconds[fits], table.microbatches[fits] = room[fits], own.above[fits], parts
        table.known[fits] = True
    return table


def _settle_leading(tables: Sequence[_Table], all_rows: bool) -> None:
    """Find the largest batch of the leading rows of each size, and of rows that may not keep the limit at all.

    Rows that seem to lead are evaluated at a batch that bounds them closely. Then those that still seem to lead are
    settled, and all whose bound reaches the rate of the last leading row.
    """
    if not tables:
        return
    starts = np.cumsum([table.room.size for table in tables])[:-1]

    def of_all(column: Callable[[_Table], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([column(table) for table in tables])

    def those(wanted: Bools) -> Iterator[tuple[_Table, Ints]]:
        own = (np.flatnonzero(part) for part in np.split(wanted, starts))
        return ((table, rows) for table, rows in zip(tables, own, strict=True) if rows.size)

    sizes, certain = of_all(lambda table: table.group.sizes), of_all(lambda table: table.alone <= table.limit)
    floor = np.zeros(sizes.size)
    if sizes.size > FEW and not all_rows:
        floor = _LIKELY * _carried_by_leading(sizes, of_all(lambda table: table.likely))
        for table, rows in those(~of_all(lambda table: table.known) & (of_all(lambda table: table.most) >= floor)):
            table.narrow(rows)
        floor = np.maximum(floor, _NEARER * _carried_by_leading(sizes, of_all(lambda table: table.most)))
    while True:
        wanted = ~of_all(lambda table: table.known) & ((of_all(lambda table: table.most) >= floor) | ~certain)
        if not wanted.any():
            return
        for table, rows in those(wanted):
            table.settle(rows)
        floor = _carried_by_leading(sizes, of_all(lambda table: np.where(table.known, table.most, 0.0)))


def _carried_by_leading(sizes: Floats, carried: Floats) -> Floats:
    """Return for each row the rate of the last leading row of its size; 0 where there are fewer."""
    order = np.lexsort((-carried, sizes))
    ordered = sizes[order]
    last = np.searchsorted(ordered, sizes) + LEADING - 1
    there = np.minimum(last, sizes.size - 1)
    return np.where(ordered[there] == sizes, carried[order[there]], 0.0)


def _offers(question: Question, table: _Table, slowest_seconds: float, count: Count) -> Offers:
    """Return the offers of a table's rows that keep the limit; the largest batch bounds the rate of each."""
    keep = np.flatnonzero(~table.known | (table.batch > 0))
    if not keep.size:
        return Offers.none()
    group = table.group.select(keep) if keep.size < table.room.size else table.group
    most = np.minimum(table.bound[keep], most_linked(question, group.deployment))
    quickest = question.goal.timed
    return Offers(
        devices=group.sizes.astype(np.int64),
        bound_per_second=most,
        guess_per_second=np.minimum(most, _EARLIER * table.most[keep]),
        layers=group.layers,
        build=partial(_decode_kind, table, slowest_seconds, keep),
        least=decode_least(question, group, float(table.batch.max()), count) if quickest else None,
    )


def _decode_kind(table: _Table, slowest_seconds: float, keep: Ints, number: int) -> DecodeKind:
    row = int(keep[number])
    if not table.known[row]:
        table.settle(np.array([row]))
    question, group = table.question, table.group
    batch, seconds, drafts = float(table.batch[row]), float(table.seconds[row]), int(group.drafts[row])
    deployment = replace(row_deployment(group.deployment, group.rows[row]), drafts=drafts)
    full = "memory" if question.pin("decode").batch is None else "batch"
    candidate = DecodeCandidate(
        row=group.rows[row],
        deployment=deployment,
        drafts=drafts,
        microbatches=int(table.microbatches[row]),
        batch=int(batch),
        iteration_seconds=seconds,
        requests_per_second=float(request_rate(question, deployment, batch, seconds)),
        limited_by=full if batch >= table.room[row] else "tpot",
    )
    cost = taken(next(iter(table.times.values())).cost, np.array([row]))
    server = DecodeServer(question, candidate, slowest_seconds, cost)
    return DecodeKind(server, int(table.room[row]), float(table.bound[row]))
