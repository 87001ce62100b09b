"""Questions beside one that was answered: what they carry, without front and proof, and over the rows that matter.

A machine a tenth faster leaves most of the space as hopeless as it was: rows far behind others of their size. Varied
questions of the same sizes are solved over the leading ones only.
"""

from dataclasses import replace

from planner.instances.space import ROLES, Role, Row, role_rows
from planner.mixed.kinds import MixedKind
from planner.mixed.offers import mixed_offers
from planner.offers.choice import carried_by, likely, sufficient
from planner.offers.columns import Side
from planner.offers.kinds import DecodeKind, PrefillKind
from planner.plans.quantised import in_formats
from planner.question import Question
from planner.search.parts import Chosen, Costing, Pools, aim_of, choose, compatible, gather
from planner.search.shapes import Known, known_of, needed_rates, not_aggregated, on_each_pool

Rows = dict[Role, list[Row]]

LEADING = 10
"""Rows of each size of a role, by what they carry at most, that are solved for again."""
NEAR = 0.8
"""Part of the best rate that the bound of an aggregated row must reach to be solved for again."""


def rows_that_matter(question: Question) -> Rows:
    """Return the rows of each role and size that carry most."""
    pools, aim = gather(question), aim_of(question)
    best = choose(question, pools, aim)
    known = known_of(best.pools.sides, best.choice) if isinstance(best, Chosen) else None
    found: Rows = {"mixed": mixed_rows_that_matter(question, pools, known)}
    for role, side in zip(ROLES, pools.sides, strict=True):
        found[role] = _leading_rows(side)
    if isinstance(best, Chosen) and best.pools.decode.beyond_grid:
        found["decode"] += _leading_rows(best.pools.decode)
    return found


def _leading_rows(side: Side) -> list[Row]:
    """Return the rows of each size that carry most."""
    kinds = (side.server(number) for number in side.offers.leading_of_each_size(LEADING))
    return list(dict.fromkeys(kind.row for kind in kinds if isinstance(kind, (PrefillKind, DecodeKind))))


def mixed_rows_that_matter(question: Question, pools: Pools, known: Known | None) -> list[Row]:
    """Return the aggregated rows that could come near the best of either shape, those that carry most."""
    if not_aggregated(question) is not None:
        return []
    aim = aim_of(question)
    near = known and replace(known, rate_per_second=NEAR * known.rate_per_second)
    found: dict[Row, None] = {}
    for own in on_each_pool(question):
        offers, _ = mixed_offers(own, role_rows(own, "mixed"), pools.count, needed_rates(own, aim, near))
        kinds = (offers.build(number) for number in offers.leading_of_each_size(LEADING))
        found |= dict.fromkeys(kind.row for kind in kinds if isinstance(kind, MixedKind))
    return list(found)


def most_carried(question: Question, rows: Rows | None = None) -> float:
    """Return the rate that the best choice of columns carries, over given rows or all; 0 where none is feasible."""
    asked, costing = in_formats(question), Costing()
    return max(_carried(each, gather(each, rows, costing=costing), rows) for each in asked)


def _carried(question: Question, pools: Pools, rows: Rows | None) -> float:
    chosen = choose(question, pools, aim_of(question), rows["mixed"] if rows else None)
    return carried_by(chosen.pools.sides, chosen.choice) if isinstance(chosen, Chosen) else 0.0


def has_plan(question: Question) -> bool:
    """Whether a question has a plan: any will do, so likely ones are tried before all bounds are refuted."""
    asked, costing = in_formats(question), Costing()
    return any(_has_plan(each, gather(each, costing=costing)) for each in asked)


def _has_plan(question: Question, pools: Pools) -> bool:
    aim = aim_of(question)
    parts = compatible(question, pools) if pools.prefill.offers and pools.decode.offers else []
    found = sufficient if aim.rate is not None else likely
    return any(found(part.sides, aim) is not None for part in parts) or isinstance(choose(question, pools, aim), Chosen)
