"""The microbatches that instances may run."""

from collections.abc import Sequence

from planner.instances.space import Group, Row
from planner.question import Question


def usable_microbatches(question: Question, group: Group | None = None) -> Sequence[int]:
    """Two microbatches overlap attention with experts: a dense model has nothing to gain, some engines cannot."""
    if question.model.moe is None:
        return (1,)
    most = group.rows[0].microbatches if group is not None and group.rows else 2
    return tuple(parts for parts in question.microbatches if parts <= most)


def row_microbatches(question: Question, row: Row) -> Sequence[int]:
    """Return the microbatches of one row, likewise."""
    if question.model.moe is None:
        return (1,)
    return tuple(parts for parts in question.microbatches if parts <= row.microbatches)
