"""Offers of aggregated instances: every row whose upper bound may beat the incumbent.

They are costed as arrays, like the other roles (``offers.decode_offers``); the few that a plan could use are played
later.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np

from ground.arrays import Floats, Ints
from planner.costs.latency import accepted_tokens
from planner.instances.aggregated_bounds import Bounds, aggregated_least, means_of
from planner.instances.candidates import (
    Count,
    aggregated_room,
    budgets_of,
    most_held,
    row_microbatches,
    with_given_batch,
)
from planner.instances.space import Built, Group, Row, built, row_deployment
from planner.manifest.terms import Number
from planner.offers.aggregated_kinds import AggregatedKind
from planner.offers.offer import Offers
from planner.question import Question
from planner.serving.rules import engine_rule
from planner.serving.tables import LARGEST_BATCH
from planner.workload import reserved_kv_tokens

Needed = Callable[[Ints], Floats]
"""The rate that an instance of so many devices, [instances], must carry to matter; infinite where none does."""


def aggregated_offers(
    question: Question, rows: list[Row], count: Count, needed: Needed, asked_per_second: float | None = None
) -> tuple[Offers, int]:
    """Return the aggregated rows, with each number of drafts asked, whose bound reaches the ``needed`` rate.

    The number of the others that hold a request is returned, too. No capacity beyond ``asked_per_second`` is sought.
    """
    offers: list[Offers] = []
    slow = 0
    for whole in built(question, "mixed", rows):
        room = largest_room(question, whole.group)
        held = np.flatnonzero(room > 0)
        if not held.size:
            continue
        found = _group_offers(question, whole.select(held), room[held], (count, asked_per_second), needed)
        slow += held.size - len(found)
        offers += [found] if found else []
    return Offers.joined(offers), slow


def holding(question: Question, group: Group) -> Ints:
    """Return the indices of the rows whose memory holds a request."""
    return np.flatnonzero(largest_room(question, group) > 0)


def largest_room(question: Question, group: Group) -> Floats:
    """Return the requests that a rank holds, [rows], with the smallest budget, which leaves most room."""
    budget, most = (np.full(len(group.rows), float(each)) for each in (budgets_of(question)[0], LARGEST_BATCH))
    room = aggregated_room(group.deployment, budget, reserved_kv_tokens(question.workload), most)
    return with_given_batch(question, room)


def _rooms(question: Question, group: Group) -> Floats:
    """Return the requests that a rank holds with each listed budget, [budgets, rows]."""
    kv, found = reserved_kv_tokens(question.workload), list[Floats]()
    for each in budgets_of(question):
        budget = np.full(len(group.rows), float(each))
        held = most_held(budget, group.drafts, group.deployment.strategy.pp)
        found.append(with_given_batch(question, aggregated_room(group.deployment, budget, kv, held)))
    return np.stack(found)


def bounds_of(question: Question, own: Built, count: Count) -> Bounds:
    """Return the bounds of the rows of a group with the largest budget."""
    deployment = own.group.deployment
    ranks = np.asarray(deployment.strategy.attention_groups, dtype=np.float64)
    return Bounds(
        cost=own.cost,
        means=means_of(question.workload, question.percentile, question.model.max_position),
        ranks=np.broadcast_to(np.atleast_1d(ranks), (len(own.group.rows),)),
        budget_tokens=np.full(len(own.group.rows), float(budgets_of(question)[-1])),
        microbatches=row_microbatches(question, own.group.rows[0]),
        accepted=np.broadcast_to(accepted_tokens(deployment, question.acceptance), (len(own.group.rows),)),
        together=engine_rule(question.engine).order != "prompts_first",
        count=count,
        most_utilisation=question.most_utilisation,
    )


def step_limit(question: Question, accepted: Number) -> Number:
    """Return the longest mean step, in seconds, that keeps both limits; TTFT takes at least one step."""
    tpot = question.tpot_seconds * accepted if question.workload.decodes else np.inf
    return np.minimum(tpot, question.ttft_seconds)


def _group_offers(
    question: Question, own: Built, room: Floats, solved: tuple[Count, float | None], needed: Needed
) -> Offers:
    """Return the offers of a group; the bound of the largest budget holds for all budgets."""
    count, asked = solved
    least = needed(own.group.sizes.astype(np.int64)) * (1 - 1e-9)
    left, most = np.flatnonzero(np.isfinite(least)), np.zeros((1, 0))
    for sieve in (_without_prompts, _with_largest, _with_each):
        if not left.size:
            return Offers.none()
        part = own.select(left)
        most = sieve(question, part, bounds_of(question, part, count), (room[left], least[left]))
        kept = most.max(axis=0) >= least[left]
        left, most = left[kept], most[:, kept]
    if not left.size:
        return Offers.none()
    group, bounds = own.group.select(left), bounds_of(question, own.select(left), count)
    rooms = cache(lambda: _rooms(question, group))  # most groups have no row that is played
    alone = bounds.with_budgets(budgets_of(question)).longest_in_batches().reshape(most.shape)
    guess = (most * np.maximum(1 - alone / question.ttft_seconds, 0.0)).max(axis=0)  # the rest is left to wait
    return Offers(
        devices=group.sizes.astype(np.int64),
        bound_per_second=most.max(axis=0),
        guess_per_second=most.max(axis=0) if asked is None else guess,  # where rows race, all that may lead take part
        layers=group.layers,
        build=partial(_kind, question, group, (most, guess, rooms), solved),
        least=aggregated_least(bounds, float(room[left].max())) if question.objective == "latency" else None,
    )


def _without_prompts(question: Question, own: Built, bounds: Bounds, known: tuple[Floats, Floats]) -> Floats:
    return bounds.quick_bound(known[0])[None]


def _with_largest(question: Question, own: Built, bounds: Bounds, known: tuple[Floats, Floats]) -> Floats:
    timely = bounds.alone(bounds.means.timely) <= question.ttft_seconds
    found = bounds.bound(step_limit(question, bounds.accepted), question.percentile / 100, known[0])
    return np.where(timely, found, 0.0)[None]


def _with_each(question: Question, own: Built, bounds: Bounds, known: tuple[Floats, Floats]) -> Floats:
    """Return the bounds of rows with every listed budget, [budgets, rows]."""
    budgets, share = budgets_of(question), question.percentile / 100
    each, shape = bounds.with_budgets(budgets), (len(budgets), len(own.group.rows))
    room = _rooms(question, own.group).ravel()
    limit, least = step_limit(question, each.accepted), np.tile(known[1], len(budgets))
    found = each.bound(limit, share, room)
    found = np.where(each.longest_in_batches() <= question.ttft_seconds, found, 0.0)
    return each.single_bound(limit, share, found, least, room, question.ttft_seconds).reshape(shape)


def _kind(
    question: Question,
    group: Group,
    costed: tuple[Floats, Floats, Callable[[], Floats]],
    known: tuple[Count, float | None],
    number: int,
) -> AggregatedKind:
    """Return the kind of a row.

    Args: ``costed``: bounds [budgets, rows], guesses [rows], and requests that a rank holds [budgets, rows].
    """
    row, (most, guess, rooms), (count, asked) = group.rows[number], costed, known
    deployment = replace(row_deployment(group.deployment, row), drafts=int(group.drafts[number]))
    room = rooms()[:, number]
    return AggregatedKind(
        question=question,
        row=row,
        deployment=deployment,
        microbatches=max(row_microbatches(question, row)),
        room=room,
        bound_per_second=most[:, number],
        guess_per_second=float(guess[number]),
        count=count,
        asked_per_second=asked,
    )
