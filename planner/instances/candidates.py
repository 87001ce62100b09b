"""What the candidates of all roles have, and the microbatches that they may run."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.costs.deployment import Deployment
from planner.instances.space import Row
from planner.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One instance: its strategy and layout, the same in numbers, and the microbatches of a step."""

    row: Row
    deployment: Deployment
    microbatches: int
    drafts: int = 0

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return self.row.strategy.devices


def row_microbatches(question: Question, row: Row) -> Sequence[int]:
    """Two microbatches overlap attention with experts: a dense model has nothing to gain, some engines cannot."""
    if question.model.moe is None:
        return (1,)
    return tuple(parts for parts in question.microbatches if parts <= row.microbatches)
