"""A Pareto front over chips, rate, TTFT, TPOT and cost: one plan per cell of limits and sizes.

A cell is a TTFT limit, a TPOT limit and a part of the devices (or a multiple of the rate, where chips are minimised).
Prefill depends on the TTFT limit alone and decode on the TPOT limit, so each level of either is costed once and its
solved queues serve every pair. Aggregated instances depend on both: each pair of levels has its own rows, costed once
for all its cells, and solved where guesses put them ahead of separate pools. Columns are chosen by guesses, then their
queues are solved: the figures of each plan are exact, but only the question's best plan is proven best.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from planner.instances.candidates import Count
from planner.instances.space import Row, role_space
from planner.objective import Aim, Incumbent
from planner.offers.aggregated_offers import aggregated_offers
from planner.plans.plan import Plan
from planner.programme.columns import BELOW, Picks
from planner.programme.programme import Programme, solve_open
from planner.question import Question
from planner.search.fleet import Fleet, aim_of
from planner.search.gather import (
    TINY,
    Costing,
    Option,
    Pools,
    gather,
    limited,
    make_side,
    needed_rates,
    not_aggregated,
    on_each_pool,
    on_machines,
)
from planner.search.solve import in_time, plan_at

TIGHTEST = 0.3  # tightest level of each latency limit, as a part of it
FEWEST = 0.125  # smallest level of devices, as a part of them; the asked rate rises by the inverse
MOST_LEVELS = 8
ALIKE = 0.02  # a plan is dropped if another is within this share of it in every figure
ROUNDS = 2  # rounds of guesses that are solved per cell; a third changes few plans and takes half as long again


Cell = tuple[Aim, Incumbent | None]  # the objective of a cell, and the incumbent of separate pools
Cells = tuple[list[Cell], list[Plan]]  # the cells of two levels of the limits, and the plans of separate pools in them
Spread = Callable[[Callable[[Pools], list[Cells]], Sequence[Pools]], Iterable[list[Cells]]]
"""Maps a function over items, perhaps in several processes."""


class Front(NamedTuple):
    """Pareto-optimal plans, largest rate first, and the numbers tried for them."""

    plans: tuple[Plan, ...]
    cells: int
    candidates_evaluated: int


def wide_front(question: Question, best: Plan, levels: int, over: Spread = map) -> Front:
    """Return the front over ``levels`` levels of each limit and of the devices, the best plan included.

    Levels of TTFT share no queues, so ``over`` may work on them in parallel.
    """
    parts = [TIGHTEST ** (step / max(levels - 1, 1)) for step in range(levels)]
    count = Count()
    gathered = [gather(tightened(question, part, part), costing=Costing(count)) for part in parts]
    mixed = mixed_rows(question)
    plans: list[Plan] = []
    single: list[tuple[Aim, Plan]] = []
    cells = 0
    for ttft, row in zip(parts, over(partial(_row, question, gathered, levels), gathered), strict=True):
        for (tried, found), tpot in zip(row, parts, strict=True):
            cells += len(tried)
            plans += found
            for own, aggregated in mixed:
                tighter = tightened(own, ttft, tpot)
                settled = [aim for aim, plan in single if _keeps(plan, tighter)]
                single += _ahead(
                    question, tighter, aggregated, [(aim, known) for aim, known in tried if aim not in settled], count
                )
    plans += [plan for _, plan in single]
    return Front(plans=unlike(front_of(best, plans), best), cells=cells, candidates_evaluated=count.evaluated)


def _row(question: Question, gathered: Sequence[Pools], levels: int, first: Pools) -> list[Cells]:
    """Return the cells of separate pools at one level of TTFT, by level of TPOT."""
    return [_separate(question, first._replace(decode=second.decode), levels) for second in gathered]


def _separate(question: Question, pools: Pools, levels: int) -> Cells:
    """Return the cells of a TTFT and a TPOT level, each with its incumbent of separate pools, and their plans."""
    options = pools.options(question)
    cells: list[Cell] = []
    plans: list[Plan] = []
    for aim in _aims(question, levels):
        known: Incumbent | None = None
        # Without a plan here there is none on fewer devices or at a higher rate.
        for option in options if not cells or cells[-1][1] is not None else ():
            programme = Programme(((option.sides,),), aim)
            picks = _near(programme)
            plan = None if picks is None else _plan(question, option, programme, picks)
            if plan is None or picks is None:
                continue
            plans.append(plan)
            does = programme.incumbent(picks)
            known = does if known is None or aim.goal.better(does, known) else known
        cells.append((aim, known))
    return cells, plans


def tightened(question: Question, ttft: float, tpot: float) -> Question:
    """Return a question with each limit multiplied by a part."""
    return replace(question, ttft_seconds=question.ttft_seconds * ttft, tpot_seconds=question.tpot_seconds * tpot)


def _aims(question: Question, levels: int) -> Iterator[Aim]:
    """Yield the question's objective on falling numbers of devices, or least chips at rising rates."""
    aim = aim_of(Fleet.of(question))
    if aim.goal.timed:
        aim = replace(aim, objective="throughput")
    for step in range(levels):
        part = FEWEST ** (step / max(levels - 1, 1))
        if aim.goal.maximised:
            yield replace(aim, devices={budget: int(count * part) for budget, count in aim.devices.items()})
        else:
            yield replace(aim, rate=(aim.rate or 0.0) / part)


def _plan(question: Question, option: Option, programme: Programme, picks: Picks) -> Plan | None:
    """Return the plan of chosen columns; None where it misses the question's own limits."""
    asked = programme.aim.rate
    rate = (asked or programme.carried(picks)) * (question.rate_per_second or 1.0)
    own = on_machines(question, option.decode.machines) if option.aggregated else question
    own = replace(own, rate_per_second=None if asked is None else rate)
    plan = in_time(plan_at(option._replace(question=own), picks[0].columns, rate))
    return plan if plan is not None and _keeps(plan, question) else None


def _keeps(plan: Plan, question: Question) -> bool:
    """Whether a plan keeps the question's own limits, waits for KV links included."""
    return plan.ttft.at(question.percentile) <= question.ttft_seconds * (1 + 1e-6) and plan.tpot.at(
        question.percentile
    ) <= question.tpot_seconds * (1 + 1e-6)


def _near(programme: Programme) -> Picks | None:
    """Return the best columns after a few rounds of guessing and solving.

    Rounds end once the best known choice is within half of ``ALIKE`` of the best guess.
    """
    for _ in range(ROUNDS):
        picks, known = programme.best(by="guess"), programme.best(by="exact")
        if picks is None or (known is not None and _alike(programme, known, picks)):
            return known
        solve_open(programme.picked(picks), 0.0)
    return programme.best(by="exact")


def _alike(programme: Programme, known: Picks, guess: Picks) -> bool:
    """Whether a known choice is as good as a guessed one, within half of ``ALIKE``."""
    if programme.aim.goal.maximised:
        return programme.carried(known) * (1 + ALIKE / 2) >= programme.carried(guess, "guess")
    return programme.incumbent(known).spent[0] <= programme.incumbent(guess).spent[0]


def mixed_rows(question: Question) -> list[tuple[Question, list[Row]]]:
    """Return the aggregated rows of each pool that allows them; none where aggregated instances are not searched."""
    if not_aggregated(question) is not None:
        return []
    return [(own, role_space(own, "mixed").rows) for own in on_each_pool(question)]


def _ahead(
    asked: Question, question: Question, rows: list[Row], cells: Sequence[Cell], count: Count
) -> list[tuple[Aim, Plan]]:
    """Return the plans of aggregated columns that beat separate pools, by cell.

    Args: ``question`` has the limits of the cells, ``asked`` the original ones.
    """
    each = [needed_rates(question, aim, known) for aim, known in cells]

    def needed(sizes: Ints) -> Floats:
        return np.asarray(np.minimum.reduce([own(sizes) for own in each]))

    offers = aggregated_offers(question, rows, count, needed)[0] if cells else None
    if not offers:
        return []
    option = Option(question, (make_side(question, "mixed", offers),))
    found = []
    for aim, known in cells:
        programme = Programme(((option.sides,),), limited(question, aim, known))
        picks = _guessed(programme, known)
        if picks is not None and (known is None or aim.goal.better(programme.incumbent(picks), known)):
            found.append((aim, _plan(asked, option, programme, picks)))
    return [(aim, plan) for aim, plan in found if plan is not None]


def _guessed(programme: Programme, known: Incumbent | None) -> Picks | None:
    """Return the best column by guesses, if its solved queue beats ``known``."""
    least = known.rate * (1 - BELOW) if known is not None and programme.aim.rate is None else 0.0
    picks = programme.best(least, by="guess")
    if picks is None:
        return None
    solve_open(programme.picked(picks), programme.aim.rate or least or TINY)
    return programme.best(least, by="exact")


def unlike(plans: Sequence[Plan], best: Plan) -> tuple[Plan, ...]:
    """Return the best plan, and each other plan that no kept one matches within ``ALIKE`` in every figure."""
    kept = [best]
    for plan in plans:
        mine = figures(plan)
        if plan is not best and not any(
            all(theirs <= own * (1 + ALIKE) for theirs, own in zip(figures(other), mine, strict=True)) for other in kept
        ):
            kept.append(plan)
    return tuple(sorted(kept, key=lambda plan: -plan.requests_per_second))


def front_of(best: Plan, others: Iterable[Plan]) -> list[Plan]:
    """Return the best plan and the others that no plan dominates, largest rate first."""
    plans = [best, *others]
    kept = [plan for plan in plans if plan is best or not any(dominates(other, plan) for other in plans)]
    return sorted(distinct(kept), key=lambda plan: -plan.requests_per_second)


def dominates(one: Plan, other: Plan) -> bool:
    """Whether ``one`` is nowhere worse and somewhere better."""
    ours, theirs = figures(one), figures(other)
    return all(a <= b * (1 + 1e-6) for a, b in zip(ours, theirs, strict=True)) and any(
        a < b * (1 - 1e-6) for a, b in zip(ours, theirs, strict=True)
    )


def figures(plan: Plan) -> tuple[float, ...]:
    """Return the figures that the front minimises: 1/rate, chips, cost of a token, mean TTFT, mean TPOT."""
    cost = plan.cost_per_million_tokens
    return 1 / plan.requests_per_second, plan.chips, 0.0 if cost is None else cost, plan.ttft.mean, plan.tpot.mean


def distinct(plans: list[Plan]) -> list[Plan]:
    """Drop plans with about the same rate, chips, TTFT and TPOT as an earlier one."""
    seen: dict[tuple[float, ...], Plan] = {}
    for plan in plans:
        rate, chips, _, ttft, tpot = figures(plan)
        seen.setdefault((float(f"{rate:.3g}"), chips, float(f"{ttft:.2g}"), float(f"{tpot:.2g}")), plan)
    return list(seen.values())
