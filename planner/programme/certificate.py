"""The certificate of a choice: for one model, every pair of columns; for several, one integer programme.

The integer programme, every constraint named:

    maximise f, or minimise chips or cost
    sum over columns of a role of x + a = 1                  one_<model> <role>
    sum over columns of a role of a way of x = w             one_<model> <role> way <k>, where roles must agree
    sum over ways of w + a = 1                               way_<model>
    a = sum over columns of aggregated instances of x        such a column fills both roles
    f <= sum of rate / asked rate x                          rate_<model> <role>, aggregated columns included
    sum over columns of a pool of devices x <= budget        devices_<pool>
    sum over columns of a pool of room x <= budget           nodes_<pool>
    sum over columns of a model of room x <= node size n     nodes_<model> <pool>, where no two models share a node
    sum over models of n <= nodes                            whole_nodes_<pool>
    f >= 1 where chips or cost are minimised                 asked_rate
    x, w binary, n whole

Under a latency limit c instances behind a router carry more than c times one. So each number of instances is a column
with its own rate: what they carry within the limits after the loss that their model must survive. The room of a column
is its devices and those that node-aligned instances leave unusable.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from ground.arrays import Floats, Ints
from ground.errors import Fault
from planner.programme.columns import RELATIVE, Side
from planner.programme.programme import Programme, Way

ROLES = ("prefill", "decode")


def solve(programme: Programme, least_rate: float) -> float | None:
    """Return the proven optimum of the objective; None where nothing fits. One thread and a fixed seed.

    Only columns that carry ``least_rate`` are considered: a choice with a slower one carries less than is reached.

    Raises Fault where the solver stops without an answer.
    """
    if len(programme.ways) == 1:
        found = [_of_way(programme, way, least_rate * (1 - RELATIVE)) for way in programme.ways[0]]
        fitting = [value for value in found if value is not None]
        return programme.aim.goal.best_bound(fitting) if fitting else None
    import pulp  # its import takes as long as a search

    built = _Built(pulp, programme, least_rate)
    status = built.problem.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, random_seed=0))
    if status == pulp.LpStatusInfeasible:
        return None
    if status != pulp.LpStatusOptimal:
        raise Fault(f"the fleet programme of {len(built.taken)} columns ended as {pulp.LpStatus[status]!r}")
    bound = float(built.problem.solverModel.getInfo().mip_dual_bound)
    # PuLP hands HiGHS a minimisation: a maximised objective comes back negated
    return -bound * built.unit if programme.aim.rate is None else bound


def _of_way(programme: Programme, way: Way, least: float) -> float | None:
    """Return the optimum of one way of a model; None where its columns do not fit.

    Columns that are not dominated rise in rate and room. So the first of each side is the cheapest that carries enough,
    and for the largest rate each column of the first side is paired with the largest of the second that fits.
    """
    aim, steps = programme.aim, programme.steps
    pools = [side.machines.budget for side in way]
    most = {pool: aim.devices[pool] // steps[pool] * steps[pool] for pool in pools}
    columns = [side.staircase(most[pool], least) for side, pool in zip(way, pools, strict=True)]
    if not all(own.size for own in columns):
        return None
    rooms = [side.room[own] for side, own in zip(way, columns, strict=True)]
    rates = [side.rate[own] for side, own in zip(way, columns, strict=True)]
    if way[0].role == "encode":  # on the pool of the next role: pairs of their columns count as columns
        room, rate = _both((rooms[0], rates[0]), (rooms[1], rates[1]), most[pools[0]])
        way, pools, rooms, rates = way[1:], pools[1:], [room, *rooms[2:]], [rate, *rates[2:]]
    beside = np.full(rooms[0].size, rooms[-1].size) - 1  # column of the last side for each column of the first
    if len(way) > 1 and pools[0] == pools[1]:
        beside = np.searchsorted(rooms[1], most[pools[0]] - rooms[0], side="right") - 1
    fitting = np.flatnonzero(beside >= 0)
    if not fitting.size:
        return None
    if not aim.goal.maximised:
        return sum(int(room[0]) * side.machines.per_device(aim.goal)[0] for side, room in zip(way, rooms, strict=True))
    return float(np.minimum(rates[0][fitting], rates[-1][beside[fitting]]).max())


def _both(one: tuple[Ints, Floats], other: tuple[Ints, Floats], most: int) -> tuple[Ints, Floats]:
    """Return room and rate of pairs of columns on a pool of ``most`` devices, rising in both."""
    room, rate = (one[0][:, None] + other[0]).ravel(), np.minimum(one[1][:, None], other[1]).ravel()
    order = np.lexsort((-rate, room))
    room, rate = room[order], rate[order]
    before = np.maximum.accumulate(np.concatenate([[-np.inf], rate[:-1]]))
    kept = (rate > before) & (room <= most)
    return room[kept], rate[kept]


class _Built:
    """The integer programme in PuLP."""

    def __init__(self, pulp: Any, asked: Programme, least_rate: float) -> None:
        self.pulp, self.asked = pulp, asked
        aim, least = asked.aim, least_rate * (1 - RELATIVE)
        # of every side the columns that no other of it matches
        self.chosen = {
            id(side): side.staircase(aim.devices[side.machines.budget], least).tolist() for side in asked.sides
        }
        self.problem = pulp.LpProblem("fleet", pulp.LpMaximize if aim.rate is None else pulp.LpMinimize)
        # PuLP before 3.3 has no add_variable
        self.new = getattr(self.problem, "add_variable", pulp.LpVariable)
        # f in units of the largest rate keeps the matrix near 1, whatever the requests per second
        rates = (float(side.rate[column]) for side in asked.sides for column in self.chosen[id(side)])
        self.unit = max(rates, default=1.0) or 1.0
        self.taken: list[tuple[Side, int, Any]] = []
        self.owned: dict[tuple[str, str], list[Any]] = defaultdict(list)  # room terms by pool and model
        self.growth = self.new("growth", lowBound=0)
        if aim.rate is not None:
            self.problem += self.growth >= aim.rate / self.unit * (1 - RELATIVE), "asked_rate"
        for number, ways in enumerate(asked.ways):
            self._add_model(f"m{number}", ways)
        self._add_pools()

    def _add_model(self, name: str, ways: tuple[Way, ...]) -> None:
        """Add the columns of a model (one per role, or one for both) and its rate constraint.

        Names hold numbers of models and pools, because a solver may map two names to one.
        """
        before = len(self.taken)
        carried: list[Any] = []
        filling = [term for way in ways if len(way) == 1 for term in self._columns(way[0], carried)]
        separate = [way for way in ways if len(way) > 1]
        rates = self._add_separate(name, separate, filling) if separate else {"mixed": []}
        if not separate:
            self.problem += self.pulp.lpSum(filling) == 1, f"one_{name} mixed"
        for role, terms in rates.items():
            self.problem += self.growth - self.pulp.lpSum([*terms, *carried]) <= 0, f"rate_{name} {role}"
        for side, column, pick in self.taken[before:]:
            self.owned[side.machines.budget, name].append(int(side.room[column]) * pick)

    def _add_separate(self, name: str, ways: list[Way], filling: list[Any]) -> dict[str, list[Any]]:
        """Add separate pools beside columns that fill both roles; return the rate terms of each role."""
        alternatives = [list({id(side): side for side in role}.values()) for role in zip(*ways, strict=True)]
        carried: dict[str, list[Any]] = {role: [] for role in ROLES}
        if len(ways) < len(alternatives[0]) * len(alternatives[1]):
            self._add_coupled(name, ways, filling, carried)
            return carried
        for (role, terms), sides in zip(carried.items(), alternatives, strict=True):
            chosen = [term for side in sides for term in self._columns(side, terms)]
            self.problem += self.pulp.lpSum([*chosen, *filling]) == 1, f"one_{name} {role}"
        return carried

    def _add_coupled(self, name: str, ways: list[Way], filling: list[Any], carried: dict[str, list[Any]]) -> None:
        """Add ways whose roles must agree, such as in attention TP where the engine requires it."""
        taken = []
        for number, way in enumerate(ways):
            own = self._binary(f"way_{number}_{name}")
            taken.append(own)
            for (role, terms), side in zip(carried.items(), way, strict=True):
                self.problem += self.pulp.lpSum(self._columns(side, terms)) == own, f"one_{name} {role} way {number}"
        self.problem += self.pulp.lpSum([*taken, *filling]) == 1, f"way_{name}"

    def _columns(self, side: Side, terms: list[Any]) -> list[Any]:
        """Return a variable for each column of a side; append their rates to ``terms``."""
        found = []
        for column in self.chosen[id(side)]:
            pick = self._binary(f"pick_{len(self.taken) + 1}")
            found.append(pick)
            self.taken.append((side, column, pick))
            terms.append(float(side.rate[column]) / self.unit * pick)
        return found

    def _binary(self, name: str) -> Any:
        return self.new(name, cat=self.pulp.LpBinary)

    def _add_pools(self) -> None:
        """Add the budgets of the pools, whole nodes per model where required, and the objective."""
        aim = self.asked.aim
        for number, (pool, devices) in enumerate(sorted(aim.devices.items())):
            mine = [(side, column, pick) for side, column, pick in self.taken if side.machines.budget == pool]
            used = self.pulp.lpSum(int(side.devices[column]) * pick for side, column, pick in mine)
            room = self.pulp.lpSum(int(side.room[column]) * pick for side, column, pick in mine)
            self.problem += used <= devices, f"devices_p{number}"
            self.problem += room <= devices, f"nodes_p{number}"
        if aim.rate is None:
            self.problem += self.growth
        else:
            self.problem += self.pulp.lpSum(
                int(side.room[column]) * side.machines.per_device(aim.goal)[0] * pick
                for side, column, pick in self.taken
            )
        if self.asked.whole_nodes:
            self._add_whole_nodes()

    def _add_whole_nodes(self) -> None:
        for number, (pool, devices) in enumerate(sorted(self.asked.aim.devices.items())):
            step, nodes = self.asked.steps[pool], []
            for (own, name), terms in self.owned.items():
                if own == pool:
                    nodes.append(self.new(f"nodes_of_{name} p{number}", lowBound=0, cat=self.pulp.LpInteger))
                    self.problem += self.pulp.lpSum(terms) <= step * nodes[-1], f"nodes_{name} p{number}"
            self.problem += self.pulp.lpSum(nodes) <= devices // step, f"whole_nodes_p{number}"
