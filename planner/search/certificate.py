"""The certificate of a choice: all columns of all models as one integer programme, every constraint named.

    maximise f, or minimise chips or cost
    sum over columns of a role of x + a = 1                  one_<model> <role>
    sum over columns of a role of a way of x = w             one_<model> <role> way <k>, where roles must agree
    sum over ways of w + a = 1                               way_<model>
    a = sum over columns of aggregated instances of x        such a column fills both roles
    f <= sum of rate / asked rate x                          rate_<model> <role>, with those of aggregated instances
    sum over columns of a pool of devices x <= budget        devices_<pool>
    sum over columns of a pool of room x <= budget           nodes_<pool>
    the same of one model <= devices of a node n             nodes_<model> <pool>, where no two models share a node
    sum over models of n <= nodes                            whole_nodes_<pool>
    f >= 1 where chips or cost are made small                asked_rate
    x, w binary, n whole

c instances behind a router carry more than c times one under a latency limit, so a count is a column with its own rate
and not a multiplier: what so many instances carry within the service levels after the loss that their model must
survive. The room of a column is its devices with those that node-aligned instances leave unusable.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ground.errors import Fault
from planner.search.programme import Programme

ROLES = ("prefill", "decode")
MIXED = "mixed"
RELATIVE = 1e-9
"""Rates closer than this, relatively, are equal."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a side that no other of it matches, [columns], and what a device of their pool counts."""

    pool: str
    devices: list[int]
    room: list[int]
    rate: list[float]
    per_device: float


@dataclass(frozen=True, slots=True)
class Problem:
    """A programme as it is now, to be solved anywhere: ``ways`` of every model are numbers of ``sides``."""

    ways: tuple[tuple[tuple[int, ...], ...], ...]
    sides: tuple[Columns, ...]
    devices: Mapping[str, int]
    steps: Mapping[str, int] | None
    """Devices of a node of each pool, where no two models may share one."""
    rate: float | None
    """To be carried; None where the largest is sought."""

    @classmethod
    def of(cls, programme: Programme, least_rate: float) -> "Problem":
        """Return the columns that carry ``least_rate``: whatever holds a slower one carries less than is reached."""
        aim, number = programme.aim, {id(side): place for place, side in enumerate(programme.sides)}
        sides = []
        for side in programme.sides:
            chosen = side.staircase(aim.devices[side.machines.budget], least_rate * (1 - RELATIVE))
            sides.append(
                Columns(
                    pool=side.machines.budget,
                    devices=side.devices[chosen].tolist(),
                    room=side.room[chosen].tolist(),
                    rate=side.rate[chosen].tolist(),
                    per_device=side.machines.per_device(aim.goal)[0],
                )
            )
        ways = tuple(tuple(tuple(number[id(side)] for side in way) for way in own) for own in programme.ways)
        steps = programme.steps if programme.whole_nodes else None
        return cls(ways, tuple(sides), dict(aim.devices), steps, aim.rate)


def solve(problem: Problem) -> float | None:
    """Return the best value of the objective, proven; None where nothing fits. One thread and a fixed seed.

    Raises Fault where the solver stops without an answer.
    """
    import pulp

    built = _Built(pulp, problem)
    for number, ways in enumerate(problem.ways):
        built.add_model(f"m{number}", ways)
    built.add_pools()
    if problem.steps is not None:
        built.add_whole_nodes(problem.steps)
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, random_seed=0)
    status = built.problem.solve(solver)
    if status == pulp.LpStatusInfeasible:
        return None
    if status != pulp.LpStatusOptimal:
        raise Fault(f"the fleet programme of {built.columns} columns ended as {pulp.LpStatus[status]!r}")
    bound = float(built.problem.solverModel.getInfo().mip_dual_bound)
    # PuLP hands HiGHS a minimisation: a maximised objective comes back negated
    return -bound * built.unit if problem.rate is None else bound


def ready() -> None:
    """Import the solver, which takes longer than most programmes: for a process that has nothing else to do yet."""
    import pulp  # noqa: F401


class _Built:
    """The programme as it grows."""

    def __init__(self, pulp: Any, asked: Problem) -> None:
        self.pulp, self.asked, self.columns = pulp, asked, 0
        self.problem = pulp.LpProblem("fleet", pulp.LpMaximize if asked.rate is None else pulp.LpMinimize)
        # PuLP before 3.3 has no add_variable
        self.new = getattr(self.problem, "add_variable", pulp.LpVariable)
        # f in units of the largest rate keeps the matrix near 1, whatever the requests per second
        self.unit = max((rate for side in asked.sides for rate in side.rate), default=1.0) or 1.0
        self.taken: list[tuple[Columns, int, Any]] = []
        self.owned: dict[tuple[str, str], list[Any]] = {}  # room terms by pool and model
        self.growth = self.new("growth", lowBound=0)
        if asked.rate is not None:
            self.problem += self.growth >= asked.rate / self.unit * (1 - RELATIVE), "asked_rate"

    def add_model(self, name: str, ways: Sequence[tuple[int, ...]]) -> None:
        """Add the columns of a model, one of each role or one that fills both, and that they carry what all carry.

        Models and pools are numbered in names: what a solver makes of two may be one.
        """
        before = len(self.taken)
        carried: list[Any] = []
        single = [way[0] for way in ways if len(way) == 1]
        filling = [term for side in single for term in self._columns(side, carried)]
        separate = [way for way in ways if len(way) > 1]
        rates = self._add_separate(name, separate, filling) if separate else {MIXED: []}
        if not separate:
            self.problem += self.pulp.lpSum(filling) == 1, f"one_{name} {MIXED}"
        for role, terms in rates.items():
            self.problem += self.growth - self.pulp.lpSum([*terms, *carried]) <= 0, f"rate_{name} {role}"
        for side, column, pick in self.taken[before:]:
            self.owned.setdefault((side.pool, name), []).append(side.room[column] * pick)

    def _add_separate(self, name: str, ways: Sequence[tuple[int, ...]], filling: list[Any]) -> dict[str, list[Any]]:
        """Add separate pools beside columns that fill both roles; return what the columns of each role carry."""
        alternatives = [list(dict.fromkeys(role)) for role in zip(*ways, strict=True)]
        carried: dict[str, list[Any]] = {role: [] for role in ROLES[: len(alternatives)]}
        if len(ways) < math.prod(len(own) for own in alternatives):
            self._add_coupled(name, ways, filling, carried)
            return carried
        for (role, terms), sides in zip(carried.items(), alternatives, strict=True):
            chosen = [term for side in sides for term in self._columns(side, terms)]
            self.problem += self.pulp.lpSum([*chosen, *filling]) == 1, f"one_{name} {role}"
        return carried

    def _add_coupled(
        self, name: str, ways: Sequence[tuple[int, ...]], filling: list[Any], carried: Mapping[str, list[Any]]
    ) -> None:
        """Add ways whose roles must agree, such as in attention TP where the engine wants that."""
        taken = []
        for number, way in enumerate(ways):
            own = self._binary(f"way_{number}_{name}")
            taken.append(own)
            for (role, terms), side in zip(carried.items(), way, strict=True):
                self.problem += self.pulp.lpSum(self._columns(side, terms)) == own, f"one_{name} {role} way {number}"
        self.problem += self.pulp.lpSum([*taken, *filling]) == 1, f"way_{name}"

    def _columns(self, number: int, terms: list[Any]) -> list[Any]:
        """Return a variable for each column of a side; ``terms`` get what they carry."""
        found, side = [], self.asked.sides[number]
        for column, rate in enumerate(side.rate):
            self.columns += 1
            pick = self._binary(f"pick_{self.columns}")
            found.append(pick)
            self.taken.append((side, column, pick))
            terms.append(rate / self.unit * pick)
        return found

    def _binary(self, name: str) -> Any:
        return self.new(name, cat=self.pulp.LpBinary)

    def add_pools(self) -> None:
        """Add what the pools hold, and the objective."""
        for number, (pool, devices) in enumerate(sorted(self.asked.devices.items())):
            mine = [(side, column, pick) for side, column, pick in self.taken if side.pool == pool]
            used = self.pulp.lpSum(side.devices[column] * pick for side, column, pick in mine)
            room = self.pulp.lpSum(side.room[column] * pick for side, column, pick in mine)
            self.problem += used <= devices, f"devices_p{number}"
            self.problem += room <= devices, f"nodes_p{number}"
        if self.asked.rate is None:
            self.problem += self.growth
            return
        self.problem += self.pulp.lpSum(side.room[column] * side.per_device * pick for side, column, pick in self.taken)

    def add_whole_nodes(self, steps: Mapping[str, int]) -> None:
        """Add that no two models share a node; ``steps`` are the devices of a node of each pool."""
        for number, (pool, devices) in enumerate(sorted(self.asked.devices.items())):
            nodes = []
            for (own, name), terms in self.owned.items():
                if own == pool:
                    nodes.append(self.new(f"nodes_of_{name} p{number}", lowBound=0, cat=self.pulp.LpInteger))
                    self.problem += self.pulp.lpSum(terms) <= steps[pool] * nodes[-1], f"nodes_{name} p{number}"
            self.problem += self.pulp.lpSum(nodes) <= devices // steps[pool], f"whole_nodes_p{number}"
