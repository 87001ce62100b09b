"""Groups of a role with the step costs of their rows: what depends on no traffic, no limit and no rate.

Questions that follow one another in a process often differ in nothing else, and terms of thousands of rows take as long
to build as to evaluate: what was built for the same rows, model and machine is kept for the next question.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.identity import Kept, Same
from planner.balance.imbalance import expected_maximum_normal
from planner.costs.latency import balanced_cost
from planner.instances.space import Group, Role, Row, groups, machines_of
from planner.manifest.stacks import stacked, taken
from planner.manifest.terms import Number, StepCost
from planner.question import Question


class Built(NamedTuple):
    """Rows of one structure and their stacked step cost; ``deviations`` is how far the fullest DP rank lies above the
    mean, in standard deviations.
    """

    group: Group
    cost: StepCost
    deviations: Number

    def select(self, rows: NDArray[np.int64]) -> "Built":
        """Return some of the rows."""
        if rows.size == len(self.group.rows):
            return self
        spread = self.deviations[rows] if isinstance(self.deviations, np.ndarray) else self.deviations
        return Built(self.group.select(rows), taken(self.cost, rows), spread)


_BUILT = Kept[tuple[Built, ...]](most=24)  # three roles of a model under each engine, and some


def built(question: Question, role: Role, rows: list[Row]) -> tuple[Built, ...]:
    """Return the groups of a role's rows with their costs, of decode and mixed steps with each number of drafts.

    The rows must not be changed afterwards.
    """
    machines, depths = machines_of(question, role), (0,) if role == "prefill" else question.drafts
    key = (
        (Same(rows), Same(question.model), Same(machines.hardware), role, machines.weights, question.kv_dtype),
        (question.engine, depths, question.balance, question.workload.beams, question.workload.seen, question.driven),
        question.prefix_pool,
    )
    return _BUILT.of(
        key, lambda: tuple(_build(question, role, group.drafting(depths)) for group in groups(question, role, rows, 0))
    )


def _build(question: Question, role: Role, group: Group) -> Built:
    cost = stacked(balanced_cost(group.deployment, question.balance), decoding=role == "decode")
    return Built(group, cost, expected_maximum_normal(group.deployment.strategy.attention_groups))
