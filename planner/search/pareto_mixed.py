"""Aggregated instances in a wide front: those that guesses put ahead of separate pools in a cell, queued for then.

Both limits hold for the same instances, so every pair of levels has rows of its own. They are costed once for all sizes
and rates of the pair; what cannot beat separate pools in any of these cells is left out by its bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.instances.decode_candidates import Count
from planner.instances.space import Row, role_space
from planner.mixed.offers import mixed_offers
from planner.offers.choice import Aim, Choice, best_choice, solve_open
from planner.question import Question
from planner.search.parts import Pools, know_balance, make_side
from planner.search.shapes import TINY, Known, better, known_of, limited, needed_rates, not_aggregated, on_each_pool

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Cell = tuple[Aim, Known | None]
"""What is asked, and what separate pools do there."""


def mixed_rows(question: Question) -> list[tuple[Question, list[Row]]]:
    """Return the aggregated rows of each pool that they may stand on; none where they are not searched."""
    if not_aggregated(question) is not None:
        return []
    found = [(own, role_space(own, "mixed").rows) for own in on_each_pool(question)]
    for own, rows in found:
        know_balance(own, rows)
    return found


def ahead(
    question: Question, rows: list[Row], empty: Pools, cells: Sequence[Cell], count: Count
) -> list[tuple[Aim, Pools, Choice]]:
    """Return the aggregated columns that are better than separate pools, by cell, and their part.

    Args: ``question`` with the limits of the cells; ``empty`` pools of it, to be filled.
    """
    offers, _ = mixed_offers(question, rows, count, _least_needed(question, cells)) if cells else (None, None)
    if not offers:
        return []
    pools = replace(empty, mixed=make_side(question, "mixed", offers))
    found = []
    for aim, known in cells:
        choice = _near(pools, limited(question, aim, known), known)
        if choice is not None and (known is None or better(aim, known_of(pools.sides, choice), known)):
            found.append((aim, pools, choice))
    return found


def _least_needed(question: Question, cells: Sequence[Cell]) -> Callable[[Ints], Floats]:
    """Return what an instance has to carry to be better in any cell."""
    each = [needed_rates(question, aim, known) for aim, known in cells]
    return lambda sizes: np.minimum.reduce([needed(sizes) for needed in each])


def _near(pools: Pools, aim: Aim, known: Known | None) -> Choice | None:
    """Return the best column by guesses, if its queue carries what is needed."""
    least = known.rate_per_second if known is not None and aim.rate is None else 0.0
    choice = best_choice(pools.sides, aim, least, by="guess")
    if choice is None:
        return None
    solve_open(zip(pools.sides, choice, strict=True), aim.rate or least or TINY)
    return best_choice(pools.sides, aim, least, by="exact")
