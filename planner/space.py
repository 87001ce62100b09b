"""Every instance that a role could be: strategies and expert layouts, side by side as arrays.

Rows of one structure (the same operators exist) form a group, which is costed at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.deployment import Deployment, StrategyArray
from planner.grid import device_counts, enumerate_strategies
from planner.layouts import redundancy_choices, shared_choices
from planner.question import Machines, Question
from planner.strategy import Strategy

# CloudMatrix384 deploys in multiples of 32 devices (sections 4.1, 4.3); other machines in nodes.
SUPERNODE_STEP = 32


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy with one expert layout."""

    strategy: Strategy
    redundant: int
    dedicated: int


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one structure, and the deployment that stands for all of them."""

    rows: tuple[Row, ...]
    deployment: Deployment

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Devices of each row's instance, [rows]."""
        return np.array([row.strategy.devices for row in self.rows], dtype=np.int64)

    def select(self, index: NDArray[np.int64]) -> "Group":
        """Return the group of the chosen rows."""
        rows = tuple(self.rows[number] for number in index)
        return Group(rows, array_deployment(self.deployment, rows) if rows else self.deployment)


def role_rows(question: Question, role: Literal["prefill", "decode"]) -> list[Row]:
    """Return every row of a role: the default grid of strategies times expert layouts."""
    machines = question.prefill if role == "prefill" else question.decode
    model, moe = question.model, question.model.moe
    rows = []
    for strategy in enumerate_strategies(model, pool_counts(machines), machines.devices_per_node, role=role):
        if model.moe is None and strategy.attention_dp > 1:
            continue  # A dense model's DP ranks share nothing: that is more instances.
        for dedicated in shared_choices(moe, strategy, question.shared, role == "decode"):
            for redundant in redundancy_choices(moe, strategy, dedicated, question.redundant):
                if possible(question, strategy, dedicated, redundant):
                    rows.append(Row(strategy, redundant, dedicated))
    return rows


def pool_counts(machines: Machines) -> list[int]:
    """Return the instance sizes of the default grid."""
    step = SUPERNODE_STEP if any(scope.name == "supernode" for scope in machines.hardware.scopes) else None
    return device_counts(machines.devices, machines.devices_per_node, step)


def possible(question: Question, strategy: Strategy, dedicated: int, redundant: int) -> bool:
    """Whether the slots divide evenly and no rank gets an expert twice."""
    moe = question.model.moe
    if moe is None:
        return redundant == 0 and dedicated == 0
    ranks = strategy.moe_ep - dedicated
    if ranks < 1 or (dedicated and not moe.shared_experts):
        return False
    slots = moe.experts + redundant
    return slots % ranks == 0 and slots <= moe.experts * ranks


def structure(row: Row) -> tuple[bool, ...]:
    """What must be common to a group: EP or not, one DP group or several, staging, dedicated ranks."""
    strategy = row.strategy
    return (strategy.moe_ep > 1, strategy.attention_dp == 1, strategy.staged, row.dedicated > 0)


def groups(question: Question, role: Literal["prefill", "decode"], rows: Iterable[Row], drafts: int) -> list[Group]:
    """Return rows grouped by structure, in order of first appearance."""
    machines = question.prefill if role == "prefill" else question.decode
    found: dict[tuple[bool, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(structure(row), []).append(row)
    base = Deployment(
        model=question.model,
        hardware=machines.hardware,
        strategy=Strategy(),
        phase=role,
        weights=machines.weights,
        kv_dtype=question.kv_dtype,
        drafts=drafts,
    )
    return [Group(tuple(members), array_deployment(base, members)) for members in found.values()]


def array_deployment(base: Deployment, rows: Iterable[Row]) -> Deployment:
    """Return the deployment whose degrees are arrays over ``rows``, shape [rows]."""
    members = list(rows)

    def column(name: str) -> NDArray[np.float64]:
        return np.array([getattr(row.strategy, name) for row in members], dtype=np.float64)

    strategy = StrategyArray(
        attention_tp=column("attention_tp"),
        attention_dp=column("attention_dp"),
        moe_tp=column("moe_tp"),
        moe_ep=column("moe_ep"),
        staged=members[0].strategy.staged,
        pp=column("pp"),
    )
    redundant = np.array([row.redundant for row in members], dtype=np.float64)
    dedicated = np.array([row.dedicated for row in members], dtype=np.float64)
    return replace(base, strategy=strategy, redundant=redundant, shared_ranks=dedicated)


def row_deployment(base: Deployment, row: Row) -> Deployment:
    """Return the deployment of one row, in numbers."""
    return replace(base, strategy=row.strategy, redundant=row.redundant, shared_ranks=row.dedicated)
