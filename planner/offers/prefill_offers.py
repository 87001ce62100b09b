"""Offers of prefill instances: every row that keeps the TTFT limit, with an upper bound on its rate.

All rows are costed as arrays. Queues are solved later, for the rows that a plan could use (``programme.columns``), and
with them the budget of a row is chosen (``offers.kinds``). Only its bound decides whether a row is solved.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ground.arrays import Bools, Floats, Ints, distinct
from planner.instances.candidates import (
    PROMPTS_PER_PASS,
    SHORTEST_CHUNK_TOKENS,
    Count,
    busiest_prompts,
    each_pass_seconds,
    prefill_fits,
    row_microbatches,
)
from planner.instances.kv_links import most_linked, transfer_seconds
from planner.instances.least import Least
from planner.instances.prefill_passes import longest_alone, saturated
from planner.instances.space import Built, Group, Row, built, row_deployment
from planner.manifest.stacks import taken
from planner.manifest.terms import Number, StepCost
from planner.offers.kinds import Budgets, PrefillKind, likely_rate
from planner.offers.offer import Offers
from planner.offers.slower import Passes, Slower
from planner.question import Question

# Points of one evaluation: fewer cost as much, for the calls, and more leave the cache.
POINTS_AT_ONCE = 4096


class _PrefillTable(NamedTuple):
    """Rows of one group: seconds of full passes with ``prompts`` per DP group, [rows, budgets].

    ``fits`` is whether memory holds them. ``single`` [rows] is the seconds of a pass with one prompt in the whole
    instance, ``longest`` [rows] those of the longest prompt that must be in time.
    """

    passes: "_Passes"
    prompts: Ints
    seconds: Floats
    fits: Bools
    single: Floats
    longest: Floats
    saturated: Floats  # upper bound on prompts per second, [rows, budgets]
    microbatches: Ints  # microbatches of the quickest pass, [rows, budgets]


def prefill_offers(question: Question, rows: list[Row], count: Count) -> Offers:
    """Return the offers of prefill instances that keep the TTFT limit with one prompt, in chunks where it must be."""
    return timely_offers(question, prefill_tables(question, rows, count), Slower())


class PrefillTables(NamedTuple):
    """Pass seconds of rows, up to the first budget beyond a TTFT limit; they serve every tighter limit too."""

    ttft_seconds: float
    tables: tuple[_PrefillTable, ...]


def prefill_tables(question: Question, rows: list[Row], count: Count) -> PrefillTables:
    """Return the pass seconds of rows; of all limits they depend on that of TTFT alone."""
    tables: list[_PrefillTable] = []
    for whole in built(question, "prefill", rows):
        for passes, held in _by_passes(question, whole.group):
            if held.size:
                tables.append(_prefill_table(question, whole.select(held), passes, count))
    return PrefillTables(question.ttft_seconds, tuple(tables))


def timely_offers(question: Question, costed: PrefillTables, slower: Slower) -> Offers:
    """Return the offers that keep the question's TTFT limit, which may be tighter than that of the costed tables.

    ``slower`` holds late instances, also of other engines and formats: they differ in the time of a pass alone.
    """
    return Offers.joined([_prefill_kinds(question, table, slower) for table in costed.tables])


Passed = tuple[tuple[int, ...], int]  # whole prompts per DP group and pass, and chunks per prompt


def _by_passes(question: Question, group: Group) -> Iterator[tuple[Passed, Ints]]:
    """Yield the rows that hold a whole prompt, then those that need two chunks, three chunks, and so on.

    More chunks than needed never save time: each reads the weights and the KV of earlier chunks again. Given tokens per
    pass decide the prompts per group, or the chunks per prompt.
    """
    given, prompt = question.pin("prefill").tokens, question.workload.input_tokens.mean
    if given is not None:
        strategy = group.deployment.strategy
        held = given * np.asarray(strategy.attention_tp) * np.asarray(strategy.pp) / prompt + np.zeros(len(group.rows))
        whole = np.where(held >= 1 - 1e-9, np.floor(held + 1e-9), -np.ceil(1 / np.maximum(held, 1e-9)))
        for each in distinct(whole).astype(np.int64).tolist():
            passes: Passed = ((each,), 1) if each > 0 else ((1,), -each)
            rows = np.flatnonzero(whole == each)
            fits = prefill_fits(group.select(rows).deployment, question.workload, max(each, 1), passes[1])
            yield passes, rows[np.broadcast_to(fits, rows.shape)]
        return
    for chunks, rows in enumerate(_by_parts(question, group), start=1):
        yield (PROMPTS_PER_PASS if chunks == 1 else (1,), chunks), rows


def _by_parts(question: Question, group: Group) -> Iterator[Ints]:
    """Yield the rows that hold a whole prompt, then those that need two chunks, three chunks, and so on."""
    finest, left = max(int(question.workload.input_tokens.mean / SHORTEST_CHUNK_TOKENS), 1), np.arange(len(group.rows))
    for chunks in range(1, finest + 1):
        if not left.size:
            return
        own = group.select(left) if left.size < len(group.rows) else group
        fits = np.broadcast_to(prefill_fits(own.deployment, question.workload, 1, chunks), left.shape)
        yield left[fits]
        left = left[~fits]


def _prefill_table(question: Question, own: Built, passed: Passed, count: Count) -> _PrefillTable:
    """Cost every row at rising budgets until it misses the limit."""
    (prompts, chunks), group, cost = passed, own.group, own.cost
    budgets = np.array(prompts, dtype=np.int64)
    shape = len(group.rows), budgets.size
    seconds, fits, most = np.full(shape, np.inf), np.zeros(shape, dtype=bool), np.zeros(shape)
    microbatches = np.ones(shape, dtype=np.int64)
    whole = passes = _Passes(question, group, cost, chunks, count)
    rows, start = np.arange(shape[0]), 0
    while start < budgets.size and rows.size:
        stop = start + max(POINTS_AT_ONCE // rows.size, 1)
        found = passes.full(budgets[start:stop, None].astype(np.float64))
        seconds[rows, start:stop], fits[rows, start:stop] = found[0].T, found[1].T
        most[rows, start:stop], microbatches[rows, start:stop] = found[2].T, found[3].T
        able = np.flatnonzero(found[1][-1] & (found[0][-1] <= question.ttft_seconds))
        if able.size < rows.size:
            passes = passes.of(able)
        rows, start = rows[able], stop
    return _PrefillTable(
        passes=whole,
        prompts=budgets,
        seconds=seconds,
        fits=fits,
        single=whole.single(),
        longest=whole.longest(),
        saturated=most,
        microbatches=microbatches,
    )


@dataclass(frozen=True, slots=True)
class _Passes:
    """Passes of the rows of a group, each prompt in ``chunks``, with the quickest number of microbatches."""

    question: Question
    group: Group
    cost: StepCost
    chunks: int
    count: Count

    def single(self) -> Floats:
        """Seconds of a pass with one prompt in the whole instance, [rows]."""
        ranks = np.asarray(self.group.deployment.strategy.attention_dp)
        return np.asarray(np.minimum.reduce(self._seconds(1.0, 1.0 / ranks)))

    def longest(self) -> Floats:
        """Seconds of the longest prompt that must be in time, alone, [rows]; 0 where prompts are equal."""
        ranks = np.broadcast_to(np.asarray(self.group.deployment.strategy.attention_dp), len(self.group.rows))
        if not self.question.workload.varied:
            return np.zeros(ranks.shape)
        self.count.evaluated += len(self._microbatches) * len(self.group.rows)
        found = [longest_alone(self.question, self.cost, ranks, parts) for parts in self._microbatches]
        return np.asarray(np.minimum.reduce(found))

    def full(self, prompts: Floats) -> tuple[Floats, Bools, Floats, Ints]:
        """Return seconds, whether memory holds the pass, the bound on prompts per second, and microbatches.

        Args: ``prompts`` per DP group, [budgets, 1] or [budgets, rows]. Each result is [budgets, rows].
        """
        question, deployment = self.question, self.group.deployment
        ranks, shape = np.asarray(deployment.strategy.attention_dp), (len(prompts), len(self.group.rows))
        fullest = busiest_prompts(question.workload, prompts, ranks)
        seconds, most, chosen = np.full(shape, np.inf), np.zeros(shape), np.ones(shape, dtype=np.int64)
        for parts, each in zip(self._microbatches, self._seconds(fullest, prompts), strict=True):
            took = np.broadcast_to(each, shape)
            bound = saturated(question, self.cost, (prompts, ranks), took, (self.chunks, parts))
            chosen = np.where(took < seconds, parts, chosen)
            seconds, most = np.minimum(seconds, took), np.maximum(most, bound)
        fits = np.broadcast_to(prefill_fits(deployment, question.workload, prompts, self.chunks), shape)
        return seconds, fits, most, chosen

    def of(self, rows: Ints) -> "_Passes":
        """Return the passes of some of the rows, some of them several times."""
        return replace(self, group=self.group.select(rows), cost=taken(self.cost, rows))

    @property
    def _microbatches(self) -> Sequence[int]:
        return row_microbatches(self.question, self.group.rows[0])

    def _seconds(self, fullest: Number, prompts: Number) -> list[Floats]:
        """Seconds of a pass with each number of microbatches."""
        held, workload = (fullest, prompts), self.question.workload
        found = each_pass_seconds(self.cost, workload, held, self.chunks, self._microbatches)
        self.count.evaluated += sum(max(np.size(took), len(self.group.rows)) for took in found)
        return [np.asarray(took) for took in found]


def _prefill_kinds(question: Question, table: _PrefillTable, slower: Slower) -> Offers:
    """Return the offers of a table's rows that keep the limit with one prompt alone (a long one where prompts differ).

    Budgets are costed at points. Equal prompts may fill any number between two of them, and prompts per second of full
    passes rise with their number to one peak, mostly that of the largest in time, and fall from it. So every number on
    both sides of the best point is costed, too. Where even one prompt per group is late, passes that are not full may
    still be in time.
    """
    number = table.single.size
    ranks = np.broadcast_to(np.asarray(table.passes.group.deployment.strategy.attention_dp, dtype=np.float64), number)
    good = table.fits & (table.seconds <= question.ttft_seconds)
    rows, known = np.arange(number), np.cumprod(good, axis=1).sum(axis=1)
    last = np.maximum(known - 1, 0)
    after = np.where(known > 0, np.minimum(known, table.prompts.size - 1), 0)
    most = np.maximum(table.prompts[after] - 1, table.prompts[last])
    largest = question.most_utilisation * np.maximum.accumulate(table.saturated, axis=1)
    bound = largest[rows, last]
    if not question.workload.varied:
        best = np.where(np.arange(table.prompts.size) <= after[:, None], table.saturated, 0.0).argmax(axis=1)
        span = table.prompts[np.maximum(best - 1, 0)], table.prompts[np.minimum(best + 1, after)]
        bound = np.maximum(bound, question.most_utilisation * _most_between(question, table, span))
    bound = np.minimum(bound, most_linked(question, table.passes.group.deployment))
    prompts = table.prompts.astype(np.float64) * ranks[:, None]
    guess = likely_rate(question, table.saturated, table.seconds, table.longest[:, None])
    guess = np.where(known > 0, np.where(good, guess, 0.0).max(axis=1), guess[:, 0])
    return Offers(
        devices=table.passes.group.sizes.astype(np.int64),
        bound_per_second=bound,
        guess_per_second=guess,
        layers=table.passes.group.layers,
        build=partial(_prefill_kind, question, table, (most, slower)),
        least=_prefill_least(question, table, prompts) if question.goal.timed else None,
    ).select(np.flatnonzero((table.single <= question.ttft_seconds) & (table.longest <= question.ttft_seconds)))


def _most_between(question: Question, table: _PrefillTable, span: tuple[Ints, Ints]) -> Floats:
    """Return the most prompts per second of passes in time whose prompts per group lie within a span, [rows]."""
    low, high = span
    counts = np.maximum(high - low - 1, 0)
    rows, most = np.repeat(np.arange(counts.size), counts), np.zeros(counts.size)
    if rows.size:
        prompts = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts - low - 1, counts)
        seconds, fits, rates, _ = table.passes.of(rows).full(prompts[None].astype(np.float64))
        np.maximum.at(most, rows, np.where(fits & (seconds <= question.ttft_seconds), rates, 0.0)[0])
    return most


def _prefill_least(question: Question, table: _PrefillTable, prompts: Floats) -> Least:
    """Return lower bounds on the time of a prompt; where prompts differ, the time of a mean prompt alone."""
    number = table.single.size
    moved = np.asarray(transfer_seconds(question, table.passes.group.deployment), dtype=np.float64)
    fixed = np.broadcast_to(moved, number)
    held, seconds = np.ones((number, 1)), table.single[:, None]
    if not question.workload.varied:
        held, seconds = np.column_stack([held, prompts]), np.column_stack([seconds, table.seconds])
    return Least.of(held, seconds, fixed)


def _prefill_kind(question: Question, table: _PrefillTable, known: tuple[Ints, Slower], row: int) -> PrefillKind:
    (most, slower), own, chunks = known, table.passes.group.rows[row], table.passes.chunks
    cost, deployment = taken(table.passes.cost, np.array([row])), row_deployment(table.passes.group.deployment, own)
    listed = Budgets.listed(
        question,
        (table.prompts, table.fits[row]),
        (table.seconds[row], table.microbatches[row]),
        table.saturated[row],
        float(table.longest[row]),
    )
    few = np.array([table.single[row], max(table.longest[row], table.single[row])])
    passes = Passes((own.strategy.attention_dp, chunks, *table.prompts.tolist()), few, table.seconds[row])

    def full(prompts: Floats) -> tuple[Floats, Bools, Floats, Ints]:
        return table.passes.of(np.array([row])).full(prompts)

    return PrefillKind(question, own, deployment, int(most[row]), chunks, cost, listed, full, passes, slower)
