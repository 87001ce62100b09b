"""Questions beside one that was answered: what they carry, without front and proof, and over the rows that matter.

A machine a tenth faster leaves most of the space as hopeless as it was: rows that another of their size beats in every
respect (``planner.offers``), and kinds far behind. Varied questions of the same sizes are solved over the others only.
"""

from planner.columns import carried_by
from planner.operating import DecodeServer, PrefillServer
from planner.question import Question
from planner.search import aim_of, best_of, compatible, gather
from planner.space import ROLES, Role, Row

Rows = dict[Role, list[Row]]

LEADING = 400
"""Kinds of instances of a role, by what a device of theirs carries, whose rows are solved for again."""


def rows_that_matter(question: Question) -> Rows:
    """Return the rows of each role that no other of their size beats in every respect, those that carry most."""
    pools = gather(question)
    found: Rows = {}
    for role, side in zip(ROLES, pools.sides, strict=True):
        best = sorted(range(len(side.offers)), key=lambda i: -side.offers[i].bound_per_second / side.offers[i].devices)
        servers = [side.server(number) for number in best[:LEADING]]
        kept = {server.candidate.row: None for server in servers if isinstance(server, PrefillServer | DecodeServer)}
        found[role] = list(kept)
    return found


def most_carried(question: Question, rows: Rows | None = None) -> float:
    """Return the rate that the best choice of columns carries, over given rows or all; 0 where none is feasible."""
    pools = gather(question, rows)
    if not pools.prefill.offers or not pools.decode.offers:
        return 0.0
    chosen, choice = best_of(compatible(question, pools), aim_of(question))
    return 0.0 if choice is None else carried_by(chosen.sides, choice)


def has_plan(question: Question) -> bool:
    """Whether a question has a plan."""
    return most_carried(question) > 0
