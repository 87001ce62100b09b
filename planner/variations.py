"""Questions beside one that was answered: what they carry, without front and proof, and over the rows that matter.

A machine a tenth faster leaves most of the space as hopeless as it was: rows far behind others of their size. Varied
questions of the same sizes are solved over the leading ones only.
"""

from planner.columns import carried_by, likely
from planner.kinds import DecodeKind, PrefillKind
from planner.quantised import in_formats
from planner.question import Question
from planner.search import aim_of, best_of, compatible, gather
from planner.space import ROLES, Role, Row

Rows = dict[Role, list[Row]]

LEADING = 10
"""Rows of each size of a role, by what they carry at most, that are solved for again."""


def rows_that_matter(question: Question) -> Rows:
    """Return the rows of each role and size that carry most."""
    pools = gather(question)
    found: Rows = {}
    for role, side in zip(ROLES, pools.sides, strict=True):
        kinds = (side.server(number) for number in side.offers.leading_of_each_size(LEADING))
        found[role] = list(dict.fromkeys(kind.row for kind in kinds if isinstance(kind, (PrefillKind, DecodeKind))))
    return found


def most_carried(question: Question, rows: Rows | None = None) -> float:
    """Return the rate that the best choice of columns carries, over given rows or all; 0 where none is feasible."""
    if question.formats:
        return max(most_carried(each, rows) for each in in_formats(question))
    pools = gather(question, rows)
    if not pools.prefill.offers or not pools.decode.offers:
        return 0.0
    chosen, choice = best_of(compatible(question, pools), aim_of(question))
    return 0.0 if choice is None else carried_by(chosen.sides, choice)


def has_plan(question: Question) -> bool:
    """Whether a question has a plan: any will do, so the likely one is tried before all bounds are refuted."""
    if question.formats:
        return any(has_plan(each) for each in in_formats(question))
    pools, aim = gather(question), aim_of(question)
    if not pools.prefill.offers or not pools.decode.offers:
        return False
    parts = compatible(question, pools)
    return any(likely(part.sides, aim) is not None for part in parts) or best_of(parts, aim)[1] is not None
