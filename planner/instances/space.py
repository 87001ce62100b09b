"""All candidates of a role: strategies times expert layouts, as arrays.

Rows of one structure (the same operators exist) form a group, whose cost is evaluated at once.

The step cost of a row depends neither on traffic nor on limits nor on rates, which is often all that differs between
questions of one process. Terms of thousands of rows take as long to build as to evaluate, so built costs are kept for
the next question with the same rows, model and machine.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from ground.identity import Kept, Same
from hardware.engines import with_engine
from planner.costs.deployment import Deployment, StrategyArray, redundancy_choices, shared_choices
from planner.costs.latency import balanced_cost
from planner.costs.memory import weight_bytes
from planner.engines.behaviour import host_costs
from planner.instances.grid import Grid, device_counts, strategy_grid
from planner.instances.reachable import REFERENCE, Reach, summary
from planner.manifest.stacks import stacked, taken
from planner.manifest.terms import StepCost
from planner.question import Machines, Pin, Question, Role as Role
from planner.strategy import Strategy

# CloudMatrix384 deploys in multiples of 32 devices (sections 4.1, 4.3); other machines in nodes.
SUPERNODE_STEP = 32


ROLES: tuple[Role, ...] = ("prefill", "decode")  # roles of a disaggregated deployment; aggregated instances are mixed
COLUMNS = ("attention_tp", "attention_dp", "moe_tp", "moe_ep", "pp", "domains", "redundant", "dedicated", "drafts")
_LAYOUTS = Kept[dict[tuple[int, int], list[tuple[int, int]]]](most=8)
"""Expert layouts of a model, by expert TP and EP, shared by all engines."""


class Row(NamedTuple):
    """One strategy with one expert layout."""

    strategy: Strategy
    redundant: int
    dedicated: int
    microbatches: int = 2  # most microbatches that the engine overlaps in this layout


class RoleSpace(NamedTuple):
    """Rows of a role in a fixed order, and the number of strategies or layouts that each rule cut."""

    rows: list[Row]
    cut: dict[str, int]


class Group(NamedTuple):
    """Rows of one structure, their degrees as a table, and the deployment that represents all of them."""

    rows: list[Row]
    table: NDArray[np.float64]  # [rows, columns of COLUMNS]
    deployment: Deployment

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Devices of each row's instance, [rows]."""
        strategy = self.deployment.strategy
        return np.asarray(strategy.devices, dtype=np.float64)

    @property
    def layers(self) -> NDArray[np.int64]:
        """Attention TP and pipeline stages of each row, [rows, 2]; in some engines both roles must agree on them."""
        return self.table[:, [COLUMNS.index("attention_tp"), COLUMNS.index("pp")]].astype(np.int64)

    @property
    def drafts(self) -> NDArray[np.int64]:
        """Drafts of each row, [rows]."""
        return self.table[:, COLUMNS.index("drafts")].astype(np.int64)

    def drafting(self, depths: Sequence[int]) -> "Group":
        """Return the rows with the first number of drafts, then with the second, and so on."""
        table = np.tile(self.table, (len(depths), 1))
        table[:, COLUMNS.index("drafts")] = np.repeat(depths, len(self.rows))
        return Group(self.rows * len(depths), table, table_deployment(self.deployment, table))

    def select(self, index: NDArray[np.int64]) -> "Group":
        """Return the group of the chosen rows."""
        rows = [self.rows[number] for number in index.tolist()]
        table = self.table[index]
        return Group(rows, table, table_deployment(self.deployment, table) if rows else self.deployment)


def machines_of(question: Question, role: Role) -> Machines:
    """Return the machines of a role; aggregated instances need machines that both roles share."""
    return question.prefill if role in ("encode", "prefill") else question.decode


def role_rows(question: Question, role: Role) -> list[Row]:
    """Return every row of a role that the engine runs: the default grid of strategies times expert layouts."""
    return role_space(question, role).rows


_SPACES = Kept[RoleSpace](most=24)  # three roles of a model under each engine, and some


def role_space(question: Question, role: Role) -> RoleSpace:
    """Return the rows of a role, and the numbers cut: strategies by rules of the grid, layouts by the engine's.

    Rows depend neither on traffic nor on limits, so later questions share the result; it must not be changed.
    """
    machines = machines_of(question, role)
    engines = () if question.engine == REFERENCE else (machines.weights, question.kv_dtype, question.drafts)
    key = (
        (Same(question.model), Same(machines.hardware), machines.devices, role, question.pin(role)),
        (question.engine, question.microbatches, question.max_instance_devices, *engines),
    )
    return _SPACES.of(key, lambda: _role_space(question, role))


def _role_space(question: Question, role: Role) -> RoleSpace:
    moe, grid, reach = question.model.moe, _strategies(question, role), Reach(question, role)
    rows, cut, largest, pin = [], Counter(grid.cut), question.max_instance_devices, question.pin(role)
    degrees_of = (Same(moe), role != "prefill", pin.shared, pin.redundant)
    known = _LAYOUTS.of(degrees_of, dict)  # layouts depend on the degrees of the experts alone
    broken_by = Counter[str]()
    run: dict[tuple[int, int, bool], _Run] = {}  # rules also ask whether there are several DP ranks
    for strategy in grid.strategies:
        if moe is None and strategy.attention_dp > 1:
            cut["DP ranks of a dense model share nothing: they are instances"] += 1
            continue
        if largest is not None and strategy.devices > largest:
            cut[f"more than --max-instance-devices {largest}"] += 1
            continue
        degrees, several = (strategy.moe_tp, strategy.moe_ep), strategy.attention_dp > 1
        if degrees not in known:
            known[degrees] = layouts(question, strategy, role, pin)
        broken = reach.cut(strategy)
        if broken is not None:
            broken_by[broken.rule] += len(known[degrees])
            continue
        if (*degrees, several) not in run:
            run[*degrees, several] = _layouts_run(strategy, known[degrees], reach)
        own = run[*degrees, several]
        rows += [Row(strategy, *layout) for layout in own.layouts]
        if own.cut:
            broken_by.update(own.cut)
    cut.update({f"{question.engine}: {rule}": count for rule, count in broken_by.items()})
    return RoleSpace(rows, dict(sorted(cut.items())))


class _Run(NamedTuple):
    """Expert layouts of some degrees that run (redundant, dedicated, microbatches), and numbers of others by rule."""

    layouts: list[tuple[int, int, int]]
    cut: Counter[str]


def _layouts_run(strategy: Strategy, every: Sequence[tuple[int, int]], reach: Reach) -> _Run:
    run, cut = list[tuple[int, int, int]](), Counter[str]()
    for redundant, dedicated in every:
        parts, broken = reach.most_microbatches(strategy, redundant, dedicated)
        if parts:
            run.append((redundant, dedicated, parts))
        elif broken is not None:
            cut[broken.rule] += 1
    return _Run(run, cut)


def _strategies(question: Question, role: Role) -> Grid:
    """Return the default grid of a role, or the one strategy that is given where it fits the devices."""
    machines, given = machines_of(question, role), question.pin(role).strategy
    if given is not None:
        return Grid((given,) if given.devices <= machines.devices else (), {})
    counts, step = pool_counts(machines), supernode_step(machines)
    return strategy_grid(question.model, counts, machines.devices_per_node, role=role, apart_step=step)


def layouts(question: Question, strategy: Strategy, role: Role, known: Pin | None = None) -> list[tuple[int, int]]:
    """Return the expert layouts of one strategy that a role's pin allows: (redundant slots, dedicated shared ranks)."""
    moe, pin = question.model.moe, known or question.pin(role)
    return [
        (redundant, dedicated)
        for dedicated in shared_choices(moe, strategy, pin.shared or "auto", role != "prefill")
        for redundant in redundancy_choices(moe, strategy, dedicated, pin.redundant)
        if possible(question, strategy, dedicated, redundant)
    ]


def engine_cut(question: Question, role: Role) -> str:
    """Return a sentence with the layouts of a role that the engine runs and the number that each rule cut."""
    space, own = role_space(question, role), f"{question.engine}: "
    by_rule = {rule.removeprefix(own): count for rule, count in space.cut.items() if rule.startswith(own)}
    return summary(len(space.rows), Counter(by_rule))


def pool_counts(machines: Machines) -> list[int]:
    """Return the instance sizes of the default grid."""
    return device_counts(machines.devices, machines.devices_per_node, supernode_step(machines))


def supernode_step(machines: Machines) -> int | None:
    """Return the devices in whose multiples a supernode is cut; None for machines without one."""
    return SUPERNODE_STEP if any(scope.name == "supernode" for scope in machines.hardware.scopes) else None


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


def check_layouts(question: Question) -> None:
    """Raise BadInput where the asked redundancy or shared-expert ranks fit no strategy of a role."""
    for role in ROLES:
        if (question.redundant is None and question.shared in ("auto", "local")) or role_rows(question, role):
            continue
        if not role_rows(replace(question, redundant=None, shared="auto"), role):
            continue
        near = [
            str(slots)
            for distance in range(1, 129)
            for slots in ((question.redundant or 0) - distance, (question.redundant or 0) + distance)
            if slots >= 0 and role_rows(replace(question, redundant=slots), role)
        ][:2]
        advice = f"use for example {' or '.join(near)}" if near else "leave both to auto"
        raise BadInput(
            f"--redundant-experts, --shared-experts: no {role} strategy divides its expert slots evenly so; {advice}"
        )


def structure(row: Row) -> tuple[bool, ...]:
    """Return the properties that rows of a group share.

    They are EP or not, one DP group or several, staging, dedicated ranks, overlap or not, domains or not.
    """
    strategy = row.strategy
    overlaps = row.microbatches > 1
    shape = (strategy.moe_ep > 1, strategy.moe_tp > 1, strategy.attention_dp == 1, strategy.staged)
    return (*shape, row.dedicated > 0, overlaps, strategy.disaggregated)


def groups(question: Question, role: Role, rows: Iterable[Row], drafts: int) -> list[Group]:
    """Return rows grouped by structure, in order of first appearance; of prefill no gap between steps is published."""
    machines, costs, pool = machines_of(question, role), host_costs(question.engine), question.prefix_pool
    base = Deployment(
        model=question.model,
        hardware=with_engine(machines.hardware, costs.engine),
        strategy=Strategy(),
        phase="prefill" if role == "encode" else role,
        weights=machines.weights,
        kv_dtype=question.kv_dtype,
        drafts=drafts,
        decode_drafts=max(question.drafts) if role == "prefill" else 0,
        beams=1 if role == "prefill" else question.workload.beams,
        seen=question.workload.seen,
        host=question.driven,
        host_seconds=None if role == "prefill" or question.engine == REFERENCE else costs.step_seconds,
        engine=costs.engine,
        prefix_plane=pool.plane if pool and role == "prefill" else None,
        prefix_ssd_share=pool.ssd_share if pool else 0.0,
    )
    # Terms count as launched with bytes or without, so where the host launches each, TP or not matters, too.
    launched = base.phase == "mixed" or not base.in_graph
    found: dict[tuple[bool, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((*structure(row), launched and row.strategy.attention_tp > 1), []).append(row)
    result = []
    for members in found.values():
        table, first = degree_table(members, drafts), members[0].strategy
        own = replace(base, strategy=Strategy(staged=first.staged, domains=first.domains))
        result.append(Group(members, table, table_deployment(own, table)))
    return result


def degree_table(rows: list[Row], drafts: int) -> NDArray[np.float64]:
    """Return the degrees and layouts of rows with so many drafts, [rows, columns of COLUMNS]."""
    return np.array(
        [
            (s.attention_tp, s.attention_dp, s.moe_tp, s.moe_ep, s.pp, s.domains, row.redundant, row.dedicated, drafts)
            for row in rows
            for s in (row.strategy,)
        ],
        dtype=np.float64,
    )


def table_deployment(base: Deployment, table: NDArray[np.float64]) -> Deployment:
    """Return the deployment whose degrees are the columns of a table; staging and domains are those of the base."""
    tp, dp, moe_tp, moe_ep, pp, domains, redundant, dedicated, drafts = np.ascontiguousarray(table.T)
    strategy = StrategyArray(
        attention_tp=tp,
        attention_dp=dp,
        moe_tp=moe_tp,
        moe_ep=moe_ep,
        pp=pp,
        staged=base.strategy.staged,
        domains=domains if base.strategy.disaggregated else 0,
    )
    return replace(
        base,
        strategy=strategy,
        redundant=redundant,
        shared_ranks=dedicated if dedicated.any() else 0,
        drafts=drafts if np.ptp(drafts) else int(drafts[0]),
    )


def row_deployment(base: Deployment, row: Row) -> Deployment:
    """Return the deployment of one row."""
    return replace(base, strategy=row.strategy, redundant=row.redundant, shared_ranks=row.dedicated)


class Built(NamedTuple):
    """Rows of one structure and their stacked step cost."""

    group: Group
    cost: StepCost

    def select(self, rows: NDArray[np.int64]) -> "Built":
        """Return some of the rows."""
        if rows.size == len(self.group.rows):
            return self
        return Built(self.group.select(rows), taken(self.cost, rows))


_BUILT = Kept[tuple[Built, ...]](most=24)  # three roles of a model under each engine, and some


def built(question: Question, role: Role, rows: list[Row]) -> tuple[Built, ...]:
    """Return the groups of a role's rows with their costs; decode and mixed steps with each number of drafts.

    Groups in which no device holds its weights are left out, unless none does.
    The rows must not be changed afterwards.
    """
    machines, depths = machines_of(question, role), (0,) if role == "prefill" else question.drafts
    key = (
        (Same(rows), Same(question.model), Same(machines.hardware), role, machines.weights, question.kv_dtype),
        (question.engine, question.drafts, question.balance, question.driven),
        (question.workload.beams, question.workload.seen, question.prefix_pool),
    )

    def make() -> Iterator[Built]:
        every, room = groups(question, role, rows, 0), machines.hardware.device.memory_bytes.value
        fitting = [group for group in every if np.min(weight_bytes(group.deployment)) <= room]  # whatever the traffic
        for group in fitting or every:
            own = group.drafting(depths)
            cost = stacked(balanced_cost(own.deployment, question.balance), decoding=role == "decode")
            yield Built(own, cost)

    return _BUILT.of(key, lambda: tuple(make()))
