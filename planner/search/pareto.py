"""A wide Pareto front over chips, rate, TTFT, TPOT and cost: a plan in every cell of tighter limits and of sizes.

A cell is a TTFT limit, a TPOT limit and a part of the devices, or of the rate where one is asked for least chips. A
prefill instance meets the TTFT limit alone and a decode instance the TPOT limit, so levels of either are costed once
and every pair of them shares the queues that are solved; aggregated instances meet both (``search.pareto_mixed``).
Columns are chosen by guesses and their queues solved then: every figure of a plan is the plan's own, but that no other
is better is proven of the question's best plan only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.instances.decode_candidates import Count
from planner.offers.choice import Aim, Choice, best_choice, carried_by, solve_open
from planner.offers.columns import Side
from planner.plans.plan import Plan
from planner.question import Question
from planner.search.front import figures, front_of
from planner.search.pareto_mixed import Cell, ahead, mixed_rows
from planner.search.parts import Pools, aim_of, compatible, gather
from planner.search.search import plan_of
from planner.search.shapes import Known, better, known_of

TIGHTEST = 0.3
"""Of either limit, the last level."""
FEWEST = 0.125
"""Of the devices, the last level, and of the asked rate, which rises by its inverse."""
MOST_LEVELS = 8
ALIKE = 0.02
"""Plans that another one reaches within this share in every figure are not worth a row."""
ROUNDS = 2
"""Guesses of a cell that are solved; three rounds change few plans and take half as long again."""


Row = tuple[list[Cell], list[Plan]]
"""The cells of two levels of the limits, and the plans of separate pools in them."""
Spread = Callable[[Callable[[Pools], list[Row]], Sequence[Pools]], Iterable[list[Row]]]
"""How work is done on many items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Plans that none of the others reaches in every figure, most carried first, and what was tried for them."""

    plans: tuple[Plan, ...]
    cells: int
    candidates_evaluated: int


def wide_front(question: Question, best: Plan, levels: int, over: Spread = map) -> Front:
    """Return the front over ``levels`` levels of either limit and of the devices, the best plan among it.

    Separate pools of one level of TTFT share no queue with those of another, so ``over`` may work on them side by side.
    """
    parts = [TIGHTEST ** (step / max(levels - 1, 1)) for step in range(levels)]
    gathered = [gather(tightened(question, part, part)) for part in parts]
    count, mixed = Count(), mixed_rows(question)
    plans: list[Plan] = []
    single: list[tuple[Aim, Plan]] = []
    cells = 0
    rows = over(partial(_row, question, gathered, levels), gathered)
    for first, ttft, row in zip(gathered, parts, rows, strict=True):
        for (tried, found), tpot in zip(row, parts, strict=True):
            cells += len(tried)
            plans += found
            for own, aggregated in mixed:
                tighter = tightened(own, ttft, tpot)
                chosen = ahead(tighter, aggregated, first, _unsettled(tried, single, tighter), count)
                made = ((aim, _plan(question, part, aim, choice)) for aim, part, choice in chosen)
                single += [(aim, plan) for aim, plan in made if plan is not None]
    evaluated = sum(pools.count.total for pools in gathered) + count.total
    plans += [plan for _, plan in single]
    return Front(plans=unlike(front_of(best, plans), best), cells=cells, candidates_evaluated=evaluated)


def _row(question: Question, gathered: Sequence[Pools], levels: int, first: Pools) -> list[Row]:
    """Return what separate pools do at one level of TTFT, by level of TPOT."""
    return [_separate(question, replace(first, decode=second.decode), levels) for second in gathered]


def _unsettled(cells: Sequence[Cell], found: Sequence[tuple[Aim, Plan]], question: Question) -> list[Cell]:
    """Return the cells but those whose best plan within looser limits, which is ``found``, keeps theirs, too."""
    settled = [aim for aim, plan in found if _keeps(plan, question)]
    return [(aim, known) for aim, known in cells if aim not in settled]


def _separate(question: Question, pools: Pools, levels: int) -> tuple[list[Cell], list[Plan]]:
    """Return the cells of two levels of the limits with what separate pools do in each, and their plans."""
    apart = [
        part
        for part in (compatible(question, pools) if pools.prefill.offers and pools.decode.offers else [])
        if all(side.offers for side in part.sides)
    ]
    cells: list[Cell] = []
    plans: list[Plan] = []
    for aim in _aims(question, levels):
        known: Known | None = None
        # Where there is no plan, there is none on fewer devices or at a higher rate either.
        for part in apart if not cells or cells[-1][1] is not None else ():
            choice = _near(part.sides, aim)
            plan = None if choice is None else _plan(question, part, aim, choice)
            if plan is None or choice is None:
                continue
            plans.append(plan)
            does = known_of(part.sides, choice)
            known = does if known is None or better(aim, does, known) else known
        cells.append((aim, known))
    return cells, plans


def tightened(question: Question, ttft: float, tpot: float) -> Question:
    """Return a question with a part of each limit."""
    return replace(question, ttft_seconds=question.ttft_seconds * ttft, tpot_seconds=question.tpot_seconds * tpot)


def _aims(question: Question, levels: int) -> Iterator[Aim]:
    """Yield the question's aim on fewer and fewer devices, or of least chips at higher and higher rates."""
    aim = aim_of(question)
    for step in range(levels):
        part = FEWEST ** (step / max(levels - 1, 1))
        if aim.objective == "throughput":
            yield replace(aim, devices={budget: int(count * part) for budget, count in aim.devices.items()})
        else:
            yield replace(aim, rate=(aim.rate or 0.0) / part)


def _plan(question: Question, pools: Pools, aim: Aim, choice: Choice) -> Plan | None:
    """Return the plan of chosen columns within an aim; None where it does not keep the question's own limits."""
    plan = plan_of(replace(question, rate_per_second=aim.rate), pools, choice)
    return plan if plan is not None and _keeps(plan, question) else None


def _keeps(plan: Plan, question: Question) -> bool:
    """Whether a plan keeps the question's own limits with what its KV waits for links."""
    return plan.ttft.at(question.percentile) <= question.ttft_seconds * (1 + 1e-6) and plan.tpot.at(
        question.percentile
    ) <= question.tpot_seconds * (1 + 1e-6)


def _near(sides: Sequence[Side], aim: Aim) -> Choice | None:
    """Return the best of the columns whose queues were solved in a few rounds of guesses.

    No more are solved where what is known comes as near the best guess as plans of a front are told apart.
    """
    for _ in range(ROUNDS):
        choice = best_choice(sides, aim, by="guess")
        known = best_choice(sides, aim, by="exact")
        if choice is None or (known is not None and _alike(sides, aim, known, choice)):
            return known
        solve_open(zip(sides, choice, strict=True), 0.0)
    return best_choice(sides, aim, by="exact")


def _alike(sides: Sequence[Side], aim: Aim, known: Choice, guess: Choice) -> bool:
    """Whether a known choice is as good as one that is guessed, within half of what tells plans apart."""
    if aim.objective == "throughput":
        guessed = min(float(side.guess[column]) for side, column in zip(sides, guess, strict=True))
        return carried_by(sides, known) * (1 + ALIKE / 2) >= guessed
    taken = [sum(int(side.room[column]) for side, column in zip(sides, each, strict=True)) for each in (known, guess)]
    return taken[0] <= taken[1]


def unlike(plans: Sequence[Plan], best: Plan) -> tuple[Plan, ...]:
    """Return the best plan, and those of the others that no kept one reaches within ``ALIKE`` in every figure."""
    kept = [best]
    for plan in plans:
        mine = figures(plan)
        if plan is not best and not any(
            all(theirs <= own * (1 + ALIKE) for theirs, own in zip(figures(other), mine, strict=True)) for other in kept
        ):
            kept.append(plan)
    return tuple(sorted(kept, key=lambda plan: -plan.requests_per_second))
