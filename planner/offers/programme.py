"""How many instances of which kind: an integer programme over one column per (role, candidate, instance count).

    maximise R, or minimise devices or cost
    sum over columns of a role of x = 1                      one_<role>
    R - sum of rate x <= 0                                   rate_<role>
    sum over columns of a pool of devices x <= budget        devices_<pool>
    sum over columns of a pool of room x <= budget           nodes_<pool>
    R >= asked                                               asked_rate
    x binary, R >= 0

c instances behind a router carry more than c times one under a latency limit, so a count is a column with its own rate
and not a multiplier. Its rate is what it carries within the limits, and after the loss that it must survive. The room
of a column is its devices with those that node-aligned instances leave unusable (``instances.alignment``).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from ground.errors import BadInput, Fault

Objective = Literal["throughput", "chips", "cost"]
Status = Literal["optimal", "infeasible"]

_RELATIVE = 1e-9
"""Rates closer than this, relatively, are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """So many instances of one candidate in one role."""

    role: str
    """prefill and decode, or mixed."""
    candidate: int
    """Index that the caller knows the candidate by."""
    instances: int
    devices: int
    """Of all instances."""
    rate_per_second: float
    """Requests that they carry within the limits."""
    pool: str
    """Hardware that the devices are taken from; roles may share one."""
    cost_per_hour: float = 0.0
    unusable: int = 0
    """Devices beside them that stand empty, for instances begin at nodes."""

    @property
    def room(self) -> int:
        """Devices that are gone for others."""
        return self.devices + self.unusable


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSolution:
    """The chosen columns with the proof: no choice does better than ``bound``."""

    status: Status
    columns: tuple[Column, ...]
    """One per role, in the order of roles' first appearance; none when infeasible."""
    rate_per_second: float
    devices: int
    value: float
    """Requests per second, devices or cost per hour, as the objective says; NaN when infeasible."""
    bound: float
    gap: float
    """abs(bound - value) / abs(value)."""
    message: str


def ready() -> None:
    """Import the solver, which takes longer than most programmes: for a process that has nothing else to do yet."""
    import pulp  # noqa: F401


def solve_fleet(
    columns: Sequence[Column],
    *,
    devices: Mapping[str, int],
    objective: Objective,
    rate: float | None = None,
    roles: Sequence[str] | None = None,
) -> FleetSolution:
    """Choose one column per role, proven optimal; see the module for the programme.

    ``throughput`` finds the largest R and then, R fixed, the fewest devices. ``chips`` and ``cost`` find the least that
    carries ``rate``. A column that another of its role and pool beats or equals in devices, cost and rate is dropped
    first: exchanging the two in any solution keeps every constraint and worsens no objective, so the bound of the
    smaller programme holds for all. For throughput a first guess then prunes what no better answer can hold, see
    ``_worth_trying``. One thread and a fixed seed: the same columns give the same answer.

    Args:
        columns: of all roles.
        devices: budget of each pool.
        objective: what is best.
        rate: requests per second that must be carried; needed by chips and cost.
        roles: those that must be filled; None: every one that occurs.

    Raises:
        BadInput: chips or cost without a rate, or a column of a pool without a budget.
        Fault: the solver stopped without an answer.
    """
    _check(columns, devices, objective, rate)
    kept = undominated(columns)
    usable = [c for c in kept if c.room <= devices[c.pool] and c.rate_per_second >= (rate or 0.0) * (1 - _RELATIVE)]
    filled = {c.role for c in columns} if roles is None else set(roles)
    if not usable or {c.role for c in usable} != filled:
        return _infeasible(_why_infeasible(columns, devices, rate))
    if objective == "throughput":
        usable = _worth_trying(usable, devices)
        if {c.role for c in usable} != filled:
            return _infeasible(_why_infeasible(columns, devices, rate))
    first = _solve(usable, devices, objective, rate)
    if first is None:
        return _infeasible(_why_infeasible(columns, devices, rate))
    chosen, bound = first
    if objective == "throughput":
        floor = min(c.rate_per_second for c in chosen)
        second = _solve(usable, devices, "chips", floor)
        chosen = chosen if second is None else second[0]
    return _solution(chosen, objective, bound, columns)


def solve_by_enumeration(
    columns: Sequence[Column],
    *,
    devices: Mapping[str, int],
    objective: Objective,
    rate: float | None = None,
) -> FleetSolution:
    """The same contract as ``solve_fleet`` by trying every combination: the oracle, for small inputs only.

    Raises:
        BadInput: as ``solve_fleet``.
    """
    _check(columns, devices, objective, rate)
    best: tuple[tuple[float, ...], tuple[Column, ...]] | None = None
    for chosen in product(*_by_role(columns).values()) if columns else ():
        if not _within(chosen, devices) or min(c.rate_per_second for c in chosen) < (rate or 0.0) * (1 - _RELATIVE):
            continue
        value, used = _value(chosen, objective), sum(c.room for c in chosen)
        key = (-value if objective == "throughput" else value, float(used))
        if best is None or key < best[0]:
            best = (key, chosen)
    if best is None:
        return _infeasible(_why_infeasible(columns, devices, rate))
    return _solution(best[1], objective, _value(best[1], objective), columns)


def undominated(columns: Iterable[Column]) -> list[Column]:
    """Columns that no other of the same role and pool matches with no more devices, no more cost and no less rate.

    Of equal ones the first stays. Sorted by devices within each role and pool, roles in order of first appearance.
    """
    groups: dict[tuple[str, str], list[Column]] = {}
    for column in columns:
        groups.setdefault((column.role, column.pool), []).append(column)
    kept: list[Column] = []
    for group in groups.values():
        front: list[Column] = []
        for column in sorted(group, key=lambda c: (c.room, c.cost_per_hour, -c.rate_per_second)):
            if not any(
                f.rate_per_second >= column.rate_per_second and f.cost_per_hour <= column.cost_per_hour for f in front
            ):
                front.append(column)
        kept.extend(front)
    return kept


def _guess(columns: Sequence[Column], devices: Mapping[str, int]) -> float:
    """A rate that some choice carries, or 0: where every role's smallest sufficient columns just fit together."""
    roles = _by_role(columns).values()

    def fits(rate: float) -> bool:
        enough = [[c for c in mine if c.rate_per_second >= rate] for mine in roles]
        return all(enough) and _within([min(mine, key=lambda c: c.room) for mine in enough], devices)

    rates = sorted({c.rate_per_second for c in columns})
    low, high = -1, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(rates[middle]) else (low, middle)
    return rates[low] if low >= 0 else 0.0


def _worth_trying(columns: Sequence[Column], devices: Mapping[str, int]) -> list[Column]:
    """Columns that an answer as good as the guess can hold: none slower, none that leaves the others too few devices.

    Whatever holds a column slower than the guess carries less than the guess; whatever holds a column beside which even
    the smallest others of the same pool do not fit is infeasible. So the optimum, and its bound, stay as they are.
    """
    guess = _guess(columns, devices)
    fast = [c for c in columns if c.rate_per_second >= guess]
    smallest: dict[str, dict[str, int]] = {}  # role -> pool -> fewest devices, of roles that have one pool only
    for role, mine in _by_role(fast).items():
        if len({c.pool for c in mine}) == 1:
            smallest[role] = {mine[0].pool: min(c.room for c in mine)}

    def others(column: Column) -> int:
        return sum(least.get(column.pool, 0) for role, least in smallest.items() if role != column.role)

    return [c for c in fast if c.room + others(c) <= devices[c.pool]]


def _solve(
    columns: Sequence[Column], devices: Mapping[str, int], objective: Objective, rate: float | None
) -> tuple[tuple[Column, ...], float] | None:
    """Optimal columns and the solver's bound; None when infeasible."""
    import pulp

    sense = pulp.LpMaximize if objective == "throughput" else pulp.LpMinimize
    problem = pulp.LpProblem("fleet", sense)
    add_variable = getattr(problem, "add_variable", pulp.LpVariable)  # PuLP before 3.3 has no add_variable
    picks = [add_variable(f"pick_{i}", cat=pulp.LpBinary) for i in range(len(columns))]
    carried = add_variable("requests_per_second", lowBound=0)
    # R in units of the largest rate keeps the matrix near 1, whatever the requests per second
    unit = max(c.rate_per_second for c in columns) or 1.0
    if objective == "throughput":
        problem += carried
    else:
        amounts = [c.room if objective == "chips" else c.cost_per_hour for c in columns]
        problem += pulp.lpSum(amount * x for amount, x in zip(amounts, picks, strict=True))
    for role in _by_role(columns):
        mine = [(c, x) for c, x in zip(columns, picks, strict=True) if c.role == role]
        problem += pulp.lpSum(x for _, x in mine) == 1, f"one_{role}"
        problem += carried - pulp.lpSum(c.rate_per_second / unit * x for c, x in mine) <= 0, f"rate_{role}"
    for pool in sorted({c.pool for c in columns}):
        mine = [(c, x) for c, x in zip(columns, picks, strict=True) if c.pool == pool]
        problem += pulp.lpSum(c.devices * x for c, x in mine) <= devices[pool], f"devices_{pool}"
        problem += pulp.lpSum(c.room * x for c, x in mine) <= devices[pool], f"nodes_{pool}"
    if rate is not None:
        problem += carried >= rate / unit * (1 - _RELATIVE), "asked_rate"
    chosen_indices, bound = run(pulp, problem, picks)
    if chosen_indices is None:
        return None
    scaled = bound * unit if objective == "throughput" else bound
    return tuple(columns[i] for i in chosen_indices), scaled


def run(pulp: Any, problem: Any, picks: Sequence[Any]) -> tuple[list[int] | None, float]:
    """Solve with HiGHS: indices of what was picked and the dual bound, in the programme's own sense."""
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, random_seed=0)
    status = problem.solve(solver)
    if status == pulp.LpStatusInfeasible:
        return None, math.nan
    if status != pulp.LpStatusOptimal:
        raise Fault(f"The fleet programme of {len(picks)} columns ended as {pulp.LpStatus[status]!r}.")
    # PuLP hands HiGHS a minimisation: a maximised objective comes back negated
    bound = float(problem.solverModel.getInfo().mip_dual_bound)
    return [i for i, x in enumerate(picks) if x.value() > 0.5], -bound if problem.sense == pulp.LpMaximize else bound


def _solution(
    chosen: tuple[Column, ...], objective: Objective, bound: float, columns: Sequence[Column]
) -> FleetSolution:
    by_role = {c.role: c for c in chosen}
    ordered = tuple(by_role[role] for role in _by_role(columns))
    value = _value(ordered, objective)
    gap = abs(bound - value) / abs(value) if value else abs(bound - value)
    return FleetSolution(
        status="optimal",
        columns=ordered,
        rate_per_second=min(c.rate_per_second for c in ordered),
        devices=sum(c.devices for c in ordered),
        value=value,
        bound=bound,
        gap=gap,
        message=f"Proven over {len(columns)} columns.",
    )


def _value(chosen: Sequence[Column], objective: Objective) -> float:
    if objective == "throughput":
        return min(c.rate_per_second for c in chosen)
    if objective == "chips":
        return float(sum(c.room for c in chosen))
    return sum(c.cost_per_hour for c in chosen)


def _by_role(columns: Sequence[Column]) -> dict[str, list[Column]]:
    roles: dict[str, list[Column]] = {}
    for column in columns:
        roles.setdefault(column.role, []).append(column)
    return roles


def _within(chosen: Iterable[Column], devices: Mapping[str, int]) -> bool:
    used: dict[str, int] = {}
    for column in chosen:
        used[column.pool] = used.get(column.pool, 0) + column.room
    return all(count <= devices[pool] for pool, count in used.items())


def _check(columns: Sequence[Column], devices: Mapping[str, int], objective: Objective, rate: float | None) -> None:
    if objective != "throughput" and rate is None:
        raise BadInput(f"--objective {objective} needs --rate, the requests per second to carry.")
    for column in columns:
        if column.pool not in devices:
            raise BadInput(f"A column of role {column.role} names pool {column.pool!r}, which has no device budget.")


def _why_infeasible(columns: Sequence[Column], devices: Mapping[str, int], rate: float | None) -> str:
    """Name what binds: a role without a candidate, with too few devices alone, or all roles together."""
    if not columns:
        return "No candidate meets the limits in any role."
    asked = (rate or 0.0) * (1 - _RELATIVE)
    for role, mine in _by_role(columns).items():
        fast = [c for c in mine if c.rate_per_second >= asked]
        if not fast:
            most = max(c.rate_per_second for c in mine)
            return f"Role {role} carries at most {most:.4g} requests/s within its limits, {rate:.4g} asked."
        least = min(fast, key=lambda c: c.room)
        if all(c.room > devices[c.pool] for c in fast):
            return f"Role {role} needs {least.room} devices of {least.pool}, which has {devices[least.pool]}."
    enough = [c for c in columns if c.rate_per_second >= asked]
    needs = {role: min(c.room for c in mine) for role, mine in _by_role(enough).items()}
    parts = " and ".join(f"{role} at least {count}" for role, count in needs.items())
    there = ", ".join(f"{count} of {pool}" for pool, count in sorted(devices.items()))
    wanted: dict[str, int] = {}
    for role, count in needs.items():
        pool = next(column.pool for column in enough if column.role == role)
        wanted[pool] = wanted.get(pool, 0) + count
    change = " and ".join(f"{count} devices of {pool}" for pool, count in sorted(wanted.items()))
    return (
        f"the roles together need more devices than there are: {parts}; available are {there}; nearest change: {change}"
    )


def _infeasible(message: str) -> FleetSolution:
    return FleetSolution(
        status="infeasible",
        columns=(),
        rate_per_second=0.0,
        devices=0,
        value=math.nan,
        bound=math.nan,
        gap=math.nan,
        message=message,
    )
