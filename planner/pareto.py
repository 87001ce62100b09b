"""A wide Pareto front over chips, rate, TTFT, TPOT and cost: a plan in every cell of tighter limits and of sizes.

A cell is a TTFT limit, a TPOT limit and a part of the devices, or of the rate where one is asked for least chips. A
prefill instance meets the TTFT limit alone and a decode instance the TPOT limit, so levels of either are costed once
and every pair of them shares the queues that are solved. Columns are chosen by guesses and their queues solved then:
every figure of a plan is the plan's own, but that no other is better is proven of the question's best plan only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.columns import Aim, Choice, Side, best_choice, solve_open
from planner.front import figures, front_of
from planner.parts import Pools, aim_of, compatible, gather
from planner.plan import Plan
from planner.question import Question
from planner.search import plan_of
from podplan.records import dataclass

TIGHTEST = 0.3
"""Of either limit, the last level."""
FEWEST = 0.125
"""Of the devices, the last level, and of the asked rate, which rises by its inverse."""
MOST_LEVELS = 8
ALIKE = 0.02
"""Plans that another one reaches within this share in every figure are not worth a row."""
ROUNDS = 2
"""Guesses of a cell that are solved; three rounds change few plans and take half as long again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Plans that none of the others reaches in every figure, most carried first, and what was tried for them."""

    plans: tuple[Plan, ...]
    cells: int
    candidates_evaluated: int


def wide_front(question: Question, best: Plan, levels: int) -> Front:
    """Return the front over ``levels`` levels of either limit and of the devices, the best plan among it."""
    parts = [TIGHTEST ** (step / max(levels - 1, 1)) for step in range(levels)]
    gathered = [gather(tightened(question, part)) for part in parts]
    plans: list[Plan] = []
    cells = 0
    for first in gathered:
        for second in gathered:
            own = compatible(question, replace(first, decode=second.decode))
            for aim in _aims(question, levels):
                cells += 1
                found = [plan for pools in own if (plan := _solved(question, pools, aim)) is not None]
                if not found:
                    break  # on fewer devices, or at a higher rate, there is none either
                plans += found
    evaluated = sum(pools.count.total for pools in gathered)
    return Front(plans=unlike(front_of(best, plans), best), cells=cells, candidates_evaluated=evaluated)


def tightened(question: Question, part: float) -> Question:
    """Return a question with a part of both limits."""
    return replace(question, ttft_seconds=question.ttft_seconds * part, tpot_seconds=question.tpot_seconds * part)


def _aims(question: Question, levels: int) -> Iterator[Aim]:
    """Yield the question's aim on fewer and fewer devices, or of least chips at higher and higher rates."""
    aim = aim_of(question)
    for step in range(levels):
        part = FEWEST ** (step / max(levels - 1, 1))
        if aim.objective == "throughput":
            yield replace(aim, devices={budget: int(count * part) for budget, count in aim.devices.items()})
        else:
            yield replace(aim, rate=(aim.rate or 0.0) / part)


def _solved(question: Question, pools: Pools, aim: Aim) -> Plan | None:
    """Return a good plan within an aim; None where there is none."""
    if not all(side.offers for side in pools.sides):
        return None
    choice = _near(pools.sides, aim)
    plan = None if choice is None else plan_of(replace(question, rate_per_second=aim.rate), pools, choice)
    return plan if plan is not None and _keeps(plan, question) else None


def _keeps(plan: Plan, question: Question) -> bool:
    """Whether a plan keeps the question's own limits with what its KV waits for links."""
    return plan.ttft.at(question.percentile) <= question.ttft_seconds * (1 + 1e-6) and plan.tpot.at(
        question.percentile
    ) <= question.tpot_seconds * (1 + 1e-6)


def _near(sides: Sequence[Side], aim: Aim) -> Choice | None:
    """Return the best of the columns whose queues were solved in a few rounds of guesses."""
    for _ in range(ROUNDS):
        choice = best_choice(sides, aim, by="guess")
        if choice is None or solve_open(zip(sides, choice, strict=True), 0.0):
            return choice
    return best_choice(sides, aim, by="exact")


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
