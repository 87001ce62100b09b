"""Kinds of aggregated instances that columns are made of: every row whose bound may beat what is known.

Costed on arrays like those of the other roles (``offers.decode_offers``); queues come later, for those
that a plan could use.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.instances.built import Built, built
from planner.instances.candidates import row_microbatches
from planner.instances.decode_candidates import MOST_BATCH, Count
from planner.instances.space import Group, Row, row_deployment
from planner.mixed.candidates import BUDGETS, mixed_room
from planner.mixed.kinds import KnownBudgets, MixedKind, likely_share, screen_of, step_limit
from planner.mixed.least import mixed_least
from planner.mixed.lone import with_budgets
from planner.mixed.screen import Screen
from planner.offers.offer import Offers
from planner.question import Question
from planner.workload import reserved_kv_tokens

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Needed = Callable[[Ints], Floats]
"""The rate that an instance of so many devices, [instances], must carry to be worth a queue; infinite where none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Rows, with each number of drafts, that no queue was solved for."""

    slow: int = 0
    """Even their bounds do not reach what is known."""
    unfit: int = 0
    """They hold no request, or keep no limit with one."""


NONE_DROPPED = Dropped()


def mixed_offers(
    question: Question, rows: list[Row], count: Count, needed: Needed, asked_per_second: float | None = None
) -> tuple[Offers, Dropped]:
    """Return the aggregated rows, with each number of drafts that is asked, whose bound reaches what is needed.

    Where a rate is asked their queues are solved for no more than it.
    """
    offers: list[Offers] = []
    slow = unfit = 0
    for whole in built(question, "mixed", rows):
        room = largest_room(question, whole.group)
        held = np.flatnonzero(room > 0)
        unfit += room.size - held.size
        if not held.size:
            continue
        found = _group_offers(question, whole.select(held), room[held], (count, asked_per_second), needed)
        slow += held.size - len(found)
        offers += [found] if found else []
    return Offers.joined(offers), Dropped(slow=slow, unfit=unfit)


def holding(question: Question, group: Group) -> tuple[Group, Floats]:
    """Return the rows that hold a request, and how many on each rank, [rows]."""
    room = largest_room(question, group)
    return group.select(np.flatnonzero(room > 0)), room[room > 0]


def largest_room(question: Question, group: Group) -> Floats:
    """Return how many requests a rank holds, [rows]: the smallest budget leaves most room."""
    most = np.full(len(group.rows), float(MOST_BATCH))
    budget = np.full(len(group.rows), float(BUDGETS[0]))
    return mixed_room(group.deployment, budget, reserved_kv_tokens(question.workload), most)


def _group_offers(
    question: Question, own: Built, room: Floats, solved: tuple[Count, float | None], needed: Needed
) -> Offers:
    """Return the offers of a group; steps of the largest budget are the least held up, so that theirs bounds all."""
    (count, asked), group = solved, own.group
    least = needed(group.sizes.astype(np.int64))
    limit = np.broadcast_to(step_limit(question, group.deployment), least.shape)
    left = np.flatnonzero(np.isfinite(least))
    parts = row_microbatches(question, group.rows[0])
    screen = screen_of(question, own.cost, group.deployment, BUDGETS[-1], count, parts).of(left)
    able = np.flatnonzero(screen.may_carry(least[left], limit[left], room[left]))
    if not able.size:
        return Offers.of([])
    left, screen = left[able], screen.of(able)
    timely = np.flatnonzero(screen.alone() <= question.ttft_seconds)
    if not timely.size:
        return Offers.of([])
    left, screen = left[timely], screen.of(timely)
    bound, _ = screen.bound(limit[left], room[left])
    kept = np.flatnonzero(bound >= least[left] * (1 - 1e-9))
    if not kept.size:
        return Offers.of([])
    left, screen = left[kept], screen.of(kept)
    lone = with_budgets(question, screen, BUDGETS, limit[left], room[left])
    able = np.flatnonzero(lone.may_carry(np.tile(least[left], len(BUDGETS))).reshape(len(BUDGETS), -1).any(axis=0))
    left, screen = left[able], screen.of(able)
    if not left.size:
        return Offers.of([])
    known = _budgets(question, group.select(left), (screen, limit[left]), bound[kept][able])
    kept = np.flatnonzero(known.bound_per_second.max(axis=0) >= least[left] * (1 - 1e-9))
    if not kept.size:
        return Offers.of([])
    return _offers(question, group.select(left[kept]), screen.of(kept), known.of(kept), asked)


def _budgets(question: Question, group: Group, steps: tuple[Screen, Floats], most: Floats) -> KnownBudgets:
    """Return what each budget of the list holds, and about what and at most what it carries.

    Args: ``steps`` with the largest budget, and their limit [rows]; ``most`` is the bound of that budget [rows].
    """
    screen, limit = steps
    drafts, shape = np.tile(group.drafts, (len(BUDGETS), 1)), (len(BUDGETS), most.size)
    held = np.minimum(np.array(BUDGETS, dtype=np.float64)[:, None] // (1 + drafts), MOST_BATCH)
    kv = reserved_kv_tokens(question.workload)
    room = np.stack(
        [
            mixed_room(group.deployment, np.full(most.size, float(budget)), kv, own)
            for budget, own in zip(BUDGETS, held, strict=True)
        ]
    )
    lone = with_budgets(question, screen, BUDGETS, limit, room)
    bound, running = lone.screen.bound(lone.limit_seconds, lone.most_running)
    bound = lone.bound(np.minimum(bound, np.tile(most, len(BUDGETS))))
    running = np.minimum(running, bound * lone.screen.iterations * lone.limit_seconds / lone.screen.ranks)
    share = likely_share(question, lone.screen.steps(running), lone.screen.iterations, lone.limit_seconds)
    return KnownBudgets(room, bound.reshape(shape), (bound * share).reshape(shape))


def _offers(question: Question, group: Group, screen: Screen, known: KnownBudgets, asked: float | None) -> Offers:
    """Return an offer of every row of a group."""
    return Offers(
        devices=group.sizes.astype(np.int64),
        bound_per_second=known.bound_per_second.max(axis=0),
        guess_per_second=known.guess_per_second.max(axis=0),
        layers=group.layers,
        build=partial(_mixed_kind, question, group, known, (screen.count, asked)),
        least=mixed_least(screen, float(known.room.max())) if question.objective == "latency" else None,
    )


def _mixed_kind(
    question: Question, group: Group, known: KnownBudgets, solved: tuple[Count, float | None], number: int
) -> MixedKind:
    row, drafts = group.rows[number], int(group.drafts[number])
    deployment = replace(row_deployment(group.deployment, row), drafts=drafts)
    count, asked = solved
    return MixedKind(question, row, deployment, count, asked, known.of(np.array([number])))
