"""Offers of decode instances: every row that keeps the TPOT limit, with an upper bound on its rate.

The bound of a row is its throughput at the largest batch whose iteration keeps the limit; the best batch is chosen
later (``offers.decode_kinds``).
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from planner.closed_forms.fullest import FullestRank
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
from planner.instances.kv_links import most_linked
from planner.instances.least import decode_least
from planner.instances.operating import DecodeServer
from planner.instances.space import Built, Group, Row, built, row_deployment
from planner.manifest.stacks import taken
from planner.offers.decode_kinds import DecodeKind
from planner.offers.offer import Offers
from planner.question import Question
from planner.workload import reserved_kv_tokens

_HIGH = 75  # percentile from which the largest batch bounds how many requests run on average
_EARLIER = 0.98
"""Guess of a capacity over the rate at which the mean TPOT is at the limit: a percentile of it is there earlier."""


class _Ends(NamedTuple):
    """The least batch and the batch that fills the memory, with their iteration seconds, each [rows]."""

    low: Floats
    below: Floats
    high: Floats
    above: Floats

    def of(self, rows: Ints) -> "_Ends":
        """Return the ends of some rows."""
        return _Ends(*(column[rows] for column in self))


class _Table(NamedTuple):
    """Rows of one group with their largest batches within the TPOT limit, [rows]; a batch of 0 keeps no limit."""

    question: Question
    group: Group
    times: dict[int, IterationTime]  # iteration times by microbatches, fewest first
    limit: Floats
    room: Floats  # the batch that fills the memory
    full: Floats  # requests per second of the batch that fills the memory
    batch: Floats
    seconds: Floats
    microbatches: Ints

    @property
    def most(self) -> Floats:
        """Requests per second at the largest batch."""
        return self.rate(self.batch, np.where(self.batch > 0, self.seconds, np.inf))

    @property
    def bound(self) -> Floats:
        """Upper bound on the rate that is planned with, [rows].

        Where TPOT at a high percentile is at the limit, fewer requests run on average than the largest batch. Near the
        median as many run as keep the limit, which is no integer.
        """
        most = self.most
        if self.question.percentile < _HIGH:
            most = np.where(self.batch < self.room, self.rate(self.batch + 1, self.limit), most)
        return np.asarray(np.minimum(most, self.question.most_utilisation * self.full))

    def rate(self, batch: Floats, seconds: Floats) -> Floats:
        """Return the requests per second of a batch whose iteration takes so long, [rows]."""
        return request_rate(self.question, self.group.deployment, batch, seconds)


def decode_offers(question: Question, rows: list[Row], count: Count, slowest_seconds: float) -> Offers:
    """Return the offers of decode instances that keep the TPOT limit with at least one request per stage."""
    tables = (_largest_batches(question, each, count) for each in built(question, "decode", rows))
    return Offers.joined([_offers(question, table, slowest_seconds, count) for table in tables if table is not None])


def _largest_batches(question: Question, whole: Built, count: Count) -> _Table | None:
    """Return the rows that hold a request, with their largest batches; for equal batches, the quicker microbatches."""
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
    ends = {usable[0]: _Ends(first, alone, points[0], full)}
    for parts in usable[1:]:
        most = np.maximum(room, least_batch(group, parts))
        ends[parts] = _Ends(first, alone, most, np.broadcast_to(np.asarray(times[parts](most)), room.shape))
    holds = {parts: least_batch(group, parts) <= room for parts in usable}
    table = _Table(
        question=question,
        group=group,
        times=times,
        limit=limit,
        room=room,
        full=np.zeros(room.shape),
        batch=np.zeros(room.shape),
        seconds=np.full(room.shape, np.inf),
        microbatches=np.ones(room.shape, dtype=np.int64),
    )
    rates = [np.where(holds[parts], table.rate(own.high, own.above), 0.0) for parts, own in ends.items()]
    table = table._replace(full=np.maximum.reduce(rates))
    for parts, own in ends.items():  # the batch that fills the memory, where it keeps the limit
        fits = holds[parts] & (own.above <= limit) & (own.above < table.seconds)
        table.batch[fits], table.seconds[fits], table.microbatches[fits] = room[fits], own.above[fits], parts
    left = np.flatnonzero((first <= room) & ~np.isfinite(table.seconds))
    for parts, own in ends.items():
        able = left[holds[parts][left]]
        if able.size:
            _try_microbatches(table, able, parts, own.of(able))
    return table


def _try_microbatches(table: _Table, rows: Ints, parts: int, ends: _Ends) -> None:
    """Note for some rows the largest batch with a number of microbatches, where it is larger, or as large and quicker.

    Tried first are the integers next to where the line between both ends meets the limit, and those just above the
    largest batch of other microbatches.
    """
    whole, limit, least = rows.size == table.room.size, table.limit[rows], table.batch[rows]
    measure = table.times[parts] if whole else table.times[parts].of(rows)
    low = np.maximum(least, least_batch(table.group, parts)[rows])
    high = np.maximum(ends.high, low)
    share = np.clip((limit - ends.below) / np.maximum(ends.above - ends.below, 1e-12), 0.0, 1.0)
    crossing = np.floor(ends.low + share * (ends.high - ends.low))
    start = np.where(least > 0, low, np.clip(crossing, low, high))
    tried = np.stack([start, np.minimum(start + 1, high), ends.high, ends.low])
    took = np.stack([tried[0], tried[1], ends.above, ends.below])
    took[:2] = measure(tried[:2])
    found, seconds = largest_between(measure, limit, np.stack([low, high]), tried, took, ends.below)
    found = np.where(found >= low, found, 0.0)
    better = (found > least) | ((found == least) & (found > 0) & (seconds < table.seconds[rows]))
    place = rows[better]
    table.batch[place], table.seconds[place], table.microbatches[place] = found[better], seconds[better], parts


def _offers(question: Question, table: _Table, slowest_seconds: float, count: Count) -> Offers:
    """Return the offers of a table's rows that keep the limit; the largest batch bounds the rate of each."""
    keep = np.flatnonzero(table.batch > 0)
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
