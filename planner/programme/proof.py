"""The proven bound of a choice over all columns of all ways, and the alternatives pruned under a bound.

The certificate of a choice of one model compares every pair of columns; of several it is one integer programme, every
constraint named:

    maximise f, or minimise chips or cost
    sum over columns of a role of x + a = 1                  one_<model> <role>
    sum over columns of a role of a way of x = w             one_<model> <role> way <k>, where roles must agree
    sum over ways of w + a = 1                               way_<model>
    a = sum over columns of aggregated instances of x        such a column fills both roles; where ways stand, it is one
    f <= sum of rate / asked rate x + sum of w without       rate_<model> encode, where ways have encode instances
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

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from ground.errors import Fault
from ground.units import counted
from planner.objective import OBJECTIVES, Objective, ObjectiveName
from planner.programme.columns import RELATIVE, Picks, Side, Way
from planner.programme.programme import Programme
from planner.programme.pruned import Pruned, slow_columns, small_columns, together

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
        separate = [way for way in ways if len(way) > 1]
        sides = [{id(side) for side in role} for role in zip(*separate, strict=False)]
        every = math.prod(map(len, sides)) if separate else 1
        apart = any(way[0].role == "encode" for way in ways) or len(separate) < every
        for role, terms in (self._add_ways if apart else self._add_roles)(name, ways).items():
            self.problem += self.growth - self.pulp.lpSum(terms) <= 0, f"rate_{name} {role}"
        for side, column, pick in self.taken[before:]:
            self.owned[side.machines.budget, name].append(int(side.room[column]) * pick)

    def _add_roles(self, name: str, ways: tuple[Way, ...]) -> dict[str, list[Any]]:
        """Add a column for each role, or one that fills both; return the rate terms of each role.

        Every prefill side may stand beside every decode side.
        """
        carried = list[Any]()
        filling = [term for way in ways if len(way) == 1 for term in self._columns(way[0], carried)]
        rates: dict[str, list[Any]] = {}
        for role, sides in zip(ROLES, zip(*(way for way in ways if len(way) > 1), strict=True), strict=False):
            terms = rates[role] = list(carried)
            chosen = [
                term for side in {id(side): side for side in sides}.values() for term in self._columns(side, terms)
            ]
            self.problem += self.pulp.lpSum([*chosen, *filling]) == 1, f"one_{name} {role}"
        if not rates:
            self.problem += self.pulp.lpSum(filling) == 1, f"one_{name} mixed"
        return rates or {"mixed": carried}

    def _add_ways(self, name: str, ways: tuple[Way, ...]) -> dict[str, list[Any]]:
        """Add ways whose roles must agree, as in attention TP, or of which some have encode instances.

        Return the rate terms of each role. A way without encode instances counts in encode with 1, the unit of f, which
        no rate passes.
        """
        encoded = any(way[0].role == "encode" for way in ways)
        carried: dict[str, list[Any]] = {role: [] for role in (*(["encode"] if encoded else []), *ROLES)}
        taken = []
        for number, way in enumerate(ways):
            own = self._binary(f"way_{number}_{name}")
            taken.append(own)
            if encoded and way[0].role != "encode":
                carried["encode"].append(own)
            for side in way:
                terms: list[Any] = []
                self.problem += (
                    self.pulp.lpSum(self._columns(side, terms)) == own,
                    f"one_{name} {side.role} way {number}",
                )
                for role in ROLES if side.role == "mixed" else (side.role,):
                    carried[role] += terms
        self.problem += self.pulp.lpSum(taken) == 1, f"way_{name}"
        return carried

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


class Bound(NamedTuple):
    """The best value that the covered space can reach, and how far the plan is from it."""

    objective: ObjectiveName
    value: float
    gap: float
    covers: str
    queues_solved: int = 0
    pruned: tuple[Pruned, ...] = ()
    ended: bool = False  # whether the search ended before the plan was proven to be the best

    @property
    def goal(self) -> Objective:
        """The objective that is bounded."""
        return OBJECTIVES[self.objective]

    @property
    def reached(self) -> float:
        """The plan's own value."""
        return self.value / (1 + self.gap if self.goal.maximised else 1 - self.gap)

    def of_plan(self, value: float) -> "Bound":
        """Return the bound beside a plan's own value; a value better than the bound becomes the bound."""
        best = self.goal.best_bound([self.value, value])
        return self._replace(value=best, gap=abs(best - value) / abs(value) if value else abs(best - value))


def proven(programme: Programme, picks: Picks, models: Sequence[str], left_out: Sequence[Pruned]) -> Bound:
    """Prove a choice over all columns of all routes, with upper bounds for queues that were not solved.

    With the latency objective the choice is the bound: it is the best of all routes by lower bounds of their times.

    Raises Fault where the programme's optimum differs from the choice's value.
    """
    goal, sides, told = programme.aim.goal, programme.sides, _told(programme)
    if goal.timed:
        reached = programme.seconds(picks)
        pruned = [each for side in told for each in slow_columns(side)]
        value: float | None = reached
    else:
        known = programme.incumbent(picks)
        reached = known.rate if goal.maximised else known.spent[0]
        pruned = [each for side in told for each in small_columns(side, known.rate)]
        # A choice with a slower column carries less, so leaving such columns out keeps the optimum.
        least = known.rate if goal.maximised else programme.aim.rate or 0.0
        value = solve(programme, least)
    if value is None:
        raise Fault("the fleet programme has no solution, and one was found")
    gap = abs(value - reached) / abs(reached)
    if gap > 1e-6 and picks not in programme.unproven:
        raise Fault(f"the fleet programme's bound {value:g} is not what the chosen columns reach")
    return Bound(
        objective=programme.aim.objective,
        value=value,
        gap=gap,
        covers=covers(programme, models),
        queues_solved=sum(side.queues_solved for side in sides),
        pruned=(*together(pruned), *left_out),
        ended=gap > 1e-6,
    )


def _told(programme: Programme) -> list[Side]:
    """Return the sides that are told: of the same instances behind other KV transfers one."""
    found = {(id(side.offers.devices), side.machines.devices): side for side in programme.sides}
    return list(found.values())


def over_parts(best: Bound | None, parts: Sequence[Bound], queues_solved: int) -> Bound | None:
    """Return the bound of the best of several engines or number formats, each with a bound of its own.

    They share columns and solved queues; pruned alternatives of the others are not listed.
    """
    if best is None or len(parts) < 2:
        return best
    covered = f"each of {len(parts)} engines and number formats: of the chosen one {best.covers}"
    value = best.goal.best_bound([part.value for part in parts])
    ended = any(part.ended for part in parts)
    whole = best._replace(value=value, covers=covered, queues_solved=queues_solved, ended=ended)
    return whole.of_plan(best.reached)


def covers(programme: Programme, models: Sequence[str]) -> str:
    """Return a phrase that names the space that the bound covers."""
    sides, goal = _told(programme), programme.aim.goal
    single = [side for side in sides if side.role == "mixed"]
    encoders = [side for side in sides if side.role == "encode"]
    routes = math.prod(len({len(way) > 1 or id(way) for way in own}) for own in programme.ways)
    named = [model for model in models if model]
    parts = []
    separate = [side for side in sides if side.role in ("prefill", "decode")]
    if separate:
        parts.append(_covers_separate(separate, timed=goal.timed))
    if single:
        parts.append(_covers_aggregated(single, timed=goal.timed))
    if encoders:
        columns = counted(sum(side.size for side in encoders), "column")
        parts.append(f"encode instances of one device before either: {columns}, each within a listed part of TTFT")
    start = f"models {', '.join(named)}: " if named else ""
    spread = f", in every one of {routes} ways to spread the roles over the pools" if named and routes > 1 else ""
    both = "; not both shapes side by side for one model" if single else ""
    time = "the mean time from arrival to the last token over all requests, in " if goal.timed else ""
    return f"{time}{start}{'; and '.join(parts)}{spread}{both}"


def _covers_separate(sides: Sequence[Side], *, timed: bool) -> str:
    rows = {role: sum(len(side.offers) for side in sides if side.role == role) for role in ("prefill", "decode")}
    kinds = " and ".join(f"{number} {role}" for role, number in rows.items())
    start = f"separate prefill and decode pools: {counted(sum(side.size for side in sides), 'column')}, each so many"
    if timed:
        return (
            f"{start} instances of one of {kinds} rows of the grid, with the largest batch that keeps the limits at "
            "the asked rate, which is the quickest, and prefill budgets that close in on the least mean, taken to fall "
            "and then to rise; waits for links that KV crosses are not in it"
        )
    beyond = (
        "; decode rows beyond the grid, attention and experts on whole nodes of their own in every split and with up "
        "to 16 domains, whose bounds could beat it"
        if any(side.beyond_grid for side in sides)
        else ""
    )
    return (
        f"{start} node-aligned instances of one of {kinds} kinds: every strategy, redundancy, MTP depth and "
        "microbatching of the grid, with every decode batch whose iteration keeps the limit and every prefill budget "
        "of whole prompts whose pass does (beyond 12 a twelfth apart), to 0.09 % of what one carries; where prompts "
        "differ, with prefill budgets in steps of a half or a third that close in on the least TTFT, and without rows "
        f"that another of their size matches at every budget{beyond}"
    )


def _covers_aggregated(sides: Sequence[Side], *, timed: bool) -> str:
    rows = counted(sum(len(side.offers) for side in sides), "row")
    which = "in which a request alone is quick enough" if timed else "whose bounds could beat separate pools"
    budgets = "" if timed else ", in those solved in full with nearby ones between, and all requests that memory holds"
    return (
        f"aggregated instances: {counted(sum(side.size for side in sides), 'column')}, each so many of one of {rows} "
        f"{which}, with every listed token budget{budgets}"
    )
