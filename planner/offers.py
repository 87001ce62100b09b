"""Kinds of instances that columns are made of: every row of a role at its best batch or budgets, less the dominated.

Everything here is costed on arrays; queues come later, for the offers that a plan could use (``planner.columns``).
An instance that is nowhere slower than another of its size and attention groups, and holds no less, serves no less:
the other is dropped. Of decode rows the largest batch within the limits is taken, for a larger one carries more.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.candidates import usable_microbatches
from planner.columns import Offer
from planner.decode_candidates import (
    POINTS,
    Count,
    DecodeCandidate,
    IterationTime,
    largest_between,
    least_batch,
    request_rate,
    rows_with_room,
)
from planner.dominance import undominated
from planner.imbalance import expected_maximum_normal
from planner.latency import balanced_cost, tokens_per_iteration
from planner.manifest.stacks import stacked, taken
from planner.manifest.terms import StepCost
from planner.operating import MOST_UTILISATION, DecodeServer, PrefillServer
from planner.prefill_candidates import (
    CHUNKS,
    PROMPTS_PER_PASS,
    SHORTEST_CHUNK_TOKENS,
    PrefillCandidate,
    busiest_prompts,
    pass_seconds,
    prefill_fits,
)
from planner.question import Question
from planner.space import Group, Row, groups, row_deployment
from planner.workload import reserved_kv_tokens, running_kv_tokens

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Batches at which decode rows are compared besides their largest.
COMPARED_BATCHES = (4.0, 48.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodeTable:
    """Rows of one group at their largest batch, [rows]."""

    group: Group
    drafts: int
    batch: Floats
    microbatches: Ints
    seconds: Floats
    room: Floats
    compared: Floats
    """[rows, compared batches] seconds of an iteration."""
    cost: StepCost
    """Of more rows than these."""
    places: Ints
    """[rows], where they stand in the cost."""


def decode_offers(question: Question, rows: list[Row], count: Count, transfer_seconds: float) -> list[Offer]:
    """Return the undominated decode instances that keep the TPOT limit with one request per stage or more."""
    offers: list[Offer] = []
    for drafts in question.drafts:
        tables = [_decode_table(question, group, drafts, count) for group in groups(question, "decode", rows, drafts)]
        offers += _decode_undominated(question, [table for table in tables if table is not None], transfer_seconds)
    return offers


def _decode_table(question: Question, group: Group, drafts: int, count: Count) -> _DecodeTable | None:
    """Return the rows that keep the limit, each with the microbatches that allow the larger batch."""
    group, room = rows_with_room(group, 1, reserved_kv_tokens(question.workload))
    if not group.rows:
        return None
    cost = stacked(balanced_cost(group.deployment, question.balance))
    spread, kv = (
        expected_maximum_normal(group.deployment.strategy.attention_groups),
        running_kv_tokens(question.workload),
    )
    limit = question.tpot_seconds * tokens_per_iteration(drafts, question.acceptance)
    batch, seconds = np.zeros(len(group.rows)), np.full(len(group.rows), np.inf)
    chosen = np.zeros(len(group.rows), dtype=np.int64)
    compared = np.full((len(group.rows), len(COMPARED_BATCHES)), np.inf)
    for microbatches in sorted(usable_microbatches(question, group), reverse=True):
        measure = IterationTime(cost, spread, kv, microbatches, count)
        # Only where these microbatches do the batch known so far can they do a larger one.
        low = np.maximum(batch, least_batch(group, microbatches))
        points = np.stack([low, np.maximum(room, low), *(np.full_like(low, each) for each in COMPARED_BATCHES)])
        took = np.broadcast_to(np.asarray(measure(points)), points.shape)
        compared = np.minimum(compared, took[2:].T)
        able = np.flatnonzero((took[0] <= limit) & (low <= room))
        if not able.size:
            continue
        found, least = largest_between(measure.of(able), limit, points[:2, able], took[:2, able])
        better = (found > batch[able]) | (least < seconds[able])
        seconds[able[better]], chosen[able[better]] = least[better], microbatches
        batch[able] = found
    keep = np.flatnonzero(batch > 0)
    if not keep.size:
        return None
    return _DecodeTable(
        group=group.select(keep),
        drafts=drafts,
        batch=batch[keep],
        microbatches=chosen[keep],
        seconds=seconds[keep],
        room=room[keep],
        compared=compared[keep],
        cost=cost,
        places=keep,
    )


def _decode_undominated(question: Question, tables: list[_DecodeTable], transfer_seconds: float) -> list[Offer]:
    """Compare rows of one size and as many attention groups: what they hold, and how fast at few and at many."""
    if not tables:
        return []
    sizes = np.concatenate([table.group.sizes for table in tables])
    ranks = np.concatenate([np.asarray(table.group.deployment.strategy.attention_groups) for table in tables])
    criteria = np.concatenate(
        [np.column_stack([-table.batch, table.seconds / table.batch, table.compared]) for table in tables]
    )
    kept = undominated((sizes * 1_000_000 + ranks).astype(np.int64), criteria)
    starts = np.cumsum([0, *(len(table.group.rows) for table in tables)])
    offers = []
    for number in kept:
        which = int(np.searchsorted(starts, number, side="right")) - 1
        table, row = tables[which], int(number - starts[which])
        most = request_rate(question, row_deployment(table.group.deployment, table.group.rows[row]), *_at(table, row))
        build = partial(_decode_server, question, table, row, transfer_seconds)
        strategy = table.group.rows[row].strategy
        layers = (strategy.attention_tp, strategy.pp)
        offers.append(Offer(int(sizes[number]), MOST_UTILISATION * float(most), build, layers=layers))
    return offers


def _at(table: _DecodeTable, row: int) -> tuple[float, float]:
    return float(table.batch[row]), float(table.seconds[row])


def _decode_server(question: Question, table: _DecodeTable, row: int, transfer_seconds: float) -> DecodeServer:
    batch, seconds = _at(table, row)
    deployment = row_deployment(table.group.deployment, table.group.rows[row])
    candidate = DecodeCandidate(
        row=table.group.rows[row],
        deployment=deployment,
        drafts=table.drafts,
        microbatches=int(table.microbatches[row]),
        batch=int(batch),
        iteration_seconds=seconds,
        requests_per_second=float(request_rate(question, deployment, batch, seconds)),
        limited_by="memory" if batch >= table.room[row] else "tpot",
    )
    return DecodeServer(question, candidate, transfer_seconds, partial(taken, table.cost, table.places[[row]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PrefillTable:
    """Rows of one group with one way to cut prompts; seconds of passes, [rows, budgets].

    Infinite where they do not fit. ``single`` [rows] is a pass with one prompt in the whole instance.
    """

    group: Group
    budgets: tuple[tuple[int, int], ...]
    seconds: Floats
    single: Floats
    microbatches: Ints
    """[rows, budgets], those of the faster pass."""
    saturated: Floats
    """[rows, budgets] prompts per second that no stream of passes exceeds."""
    cost: StepCost


def prefill_offers(question: Question, rows: list[Row], count: Count) -> list[Offer]:
    """Return the undominated prefill instances, each budget of prompts per pass an offer of its own."""
    whole = tuple((prompts, 1) for prompts in PROMPTS_PER_PASS)
    parts = tuple(
        (1, chunks) for chunks in CHUNKS if question.workload.input_tokens.mean >= SHORTEST_CHUNK_TOKENS * chunks
    )
    tables: list[_PrefillTable] = []
    for group in groups(question, "prefill", rows, 0):
        fits = prefill_fits(group.deployment, question.workload, 1, 1)
        if fits.any():
            tables.append(_prefill_table(question, group.select(np.flatnonzero(fits)), whole, count))
        # Cutting a prompt never shortens its passes: it is for rows that do not hold a whole one.
        cut = group.select(np.flatnonzero(~fits))
        finest = prefill_fits(cut.deployment, question.workload, 1, parts[-1][1]) if parts and cut.rows else None
        if finest is not None and finest.any():
            tables.append(_prefill_table(question, cut.select(np.flatnonzero(finest)), parts, count))
    return _prefill_undominated(question, tables)


def _prefill_table(
    question: Question, group: Group, budgets: tuple[tuple[int, int], ...], count: Count
) -> _PrefillTable:
    """Cost every row at every budget, until no row keeps the limit with as many prompts."""
    number, workload = len(group.rows), question.workload
    seconds, single = np.full((number, len(budgets)), np.inf), np.full(number, np.inf)
    microbatches, saturated = np.ones((number, len(budgets)), dtype=np.int64), np.zeros((number, len(budgets)))
    cost = stacked(balanced_cost(group.deployment, question.balance))
    ranks = np.asarray(group.deployment.strategy.attention_dp)
    for parts in usable_microbatches(question, group):
        single = np.minimum(single, pass_seconds(cost, workload, 1.0, 1.0 / ranks, budgets[0][1], parts))
        count.evaluated += number
    for start, stop in _blocks(budgets, number):
        prompts, chunks = np.array([prompts for prompts, _ in budgets[start:stop]], dtype=float), budgets[start][1]
        fits = np.stack([prefill_fits(group.deployment, workload, int(each), chunks) for each in prompts])
        fullest = busiest_prompts(workload, prompts[:, None], ranks)  # [budgets, rows]
        for parts in usable_microbatches(question, group):
            took = pass_seconds(cost, workload, fullest, prompts[:, None], chunks, parts)
            took = np.where(fits, took, np.inf).T
            count.evaluated += took.size
            saturated[:, start:stop] = np.maximum(
                saturated[:, start:stop],
                np.where(fits, _saturated(question, cost, (prompts[:, None], ranks), took.T, (chunks, parts)), 0.0).T,
            )
            quicker = took < seconds[:, start:stop]
            microbatches[:, start:stop] = np.where(quicker, parts, microbatches[:, start:stop])
            seconds[:, start:stop] = np.where(quicker, took, seconds[:, start:stop])
        if not (seconds[:, stop - 1] <= question.ttft_seconds).any():
            break
    return _PrefillTable(
        group=group,
        budgets=budgets,
        seconds=seconds,
        single=single,
        microbatches=microbatches,
        saturated=saturated,
        cost=cost,
    )


def _saturated(
    question: Question, cost: StepCost, held: tuple[Floats, Floats], seconds: Floats, cut: tuple[int, int]
) -> Floats:
    """Prompts per second that no stream of passes exceeds, [budgets, rows].

    Equal prompts fill every pass alike: as many as it holds, over its seconds. Of others a pass of the same tokens
    may hold more, and short ones attend to less: bounded by passes of eight times as many equal prompts, even over the
    groups, for a pass takes the less per token the more it has, pairs are convex in the length, and the busiest
    group has at least the mean. Args: ``held`` prompts of a group [budgets, 1] and groups [rows]; ``cut`` the parts of
    a prompt and microbatches.
    """
    prompts, ranks = held
    if not varied(question):
        return np.asarray(prompts * ranks / seconds)
    chunks, parts = cut
    lengths = replace(question.workload.input_tokens, squared_cv=0.0)
    workload = replace(question.workload, input_tokens=lengths, length_covariance=0.0, prompts=None)
    many = 8 * prompts
    return np.asarray(many * ranks / pass_seconds(cost, workload, many, many, chunks, parts))


def varied(question: Question) -> bool:
    """Whether prompts differ, in length or in what is cached of them."""
    workload = question.workload
    return bool(workload.prompts is not None or workload.input_tokens.squared_cv or workload.prefix_reuse)


def _blocks(budgets: tuple[tuple[int, int], ...], rows: int) -> list[tuple[int, int]]:
    """Cut budgets into runs that are costed at once: one way to cut prompts, and arrays that stay in the cache."""
    most, blocks, start = max(POINTS // rows, 1), [], 0
    for place in range(1, len(budgets) + 1):
        if place == len(budgets) or place - start >= most or budgets[place][1] != budgets[start][1]:
            blocks.append((start, place))
            start = place
    return blocks


def _prefill_undominated(question: Question, tables: list[_PrefillTable]) -> list[Offer]:
    """Compare rows of one size, as many attention groups and one way to cut prompts, at all budgets together."""
    offers: list[Offer] = []
    for table in tables:
        ranks = np.asarray(table.group.deployment.strategy.attention_dp)
        able = np.flatnonzero(table.single <= question.ttft_seconds)
        buckets = (table.group.sizes * 1_000_000 + ranks).astype(np.int64)
        criteria = np.column_stack([table.single, np.minimum(table.seconds, 1e30)])
        for row in able[undominated(buckets[able], criteria[able])]:
            offers += _row_offers(question, table, int(row), int(ranks[row]))
    return offers


def _row_offers(question: Question, table: _PrefillTable, row: int, ranks: int) -> list[Offer]:
    """Return an offer per budget whose full pass keeps the limit; of the smallest also where only smaller passes do."""
    offers: list[Offer] = []
    strategy = table.group.rows[row].strategy
    devices, best = strategy.devices, 0.0
    for place, seconds in enumerate(table.seconds[row].tolist()):
        prompts = table.budgets[place][0]
        if not math.isfinite(seconds) or (seconds > question.ttft_seconds and offers):
            continue
        saturated = prompts * ranks / seconds
        if saturated <= best:  # a larger pass that carries no more
            continue
        best = saturated
        bound = MOST_UTILISATION * float(table.saturated[row, place])
        if not varied(question):
            bound = min(bound, _timely(question, float(table.single[row]), seconds, prompts * ranks))
        # A prompt waits for the rest of one pass and then for its own: longer passes than half the limit are late.
        guess = MOST_UTILISATION * saturated * min(1.0, question.ttft_seconds / (2 * seconds))
        build = partial(_prefill_server, question, table, row, place, seconds)
        offers.append(Offer(devices, bound, build, guess, (strategy.attention_tp, strategy.pp)))
    return offers


def _timely(question: Question, single: float, full: float, most: int) -> float:
    """Largest rate whose requests can all but few be in passes within the limit: each passes through its own.

    A share p of the prompts is in passes of at most n, T(n) = limit; passes of n take T(n)/n per prompt or
    longer, and the rest at least T(most)/most: rate <= 1 / (p T(n)/n + (1 - p) T(most)/most), with T straight between
    one prompt and a full pass.
    """
    limit, share = question.ttft_seconds, question.percentile / 100
    if full <= limit or most == 1:
        return math.inf
    within = 1 + (most - 1) * (limit - single) / (full - single)
    return 1 / (share * limit / within + (1 - share) * full / most)


def _prefill_server(question: Question, table: _PrefillTable, row: int, place: int, seconds: float) -> PrefillServer:
    prompts, chunks = table.budgets[place]
    own = table.group.rows[row]
    ranks = own.strategy.attention_dp
    tokens = prompts * question.workload.input_tokens.mean / chunks
    candidate = PrefillCandidate(
        row=own,
        deployment=row_deployment(table.group.deployment, own),
        microbatches=int(table.microbatches[row, place]),
        prompts=prompts,
        chunks=chunks,
        tokens_per_device=int(np.ceil(tokens * ranks / own.strategy.devices)),
        pass_seconds=seconds,
        requests_per_second=prompts * ranks / seconds,
    )
    return PrefillServer(question, candidate, partial(taken, table.cost, np.array([row])))
