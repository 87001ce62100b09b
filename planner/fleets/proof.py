"""The certificate of a fleet: all columns of all models as one integer programme, every constraint named.

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

A column's rate is what so many instances carry within the service levels after the loss that its model must survive.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ground.errors import Fault
from planner.offers.columns import Side, device_cost
from planner.offers.programme import run
from planner.search.proof import Bound, pruned
from planner.search.routes import Picks, Programme, Way

ROLES = ("prefill", "decode")
MIXED = "mixed"


def prove(programme: Programme, picks: Picks, names: Sequence[str]) -> Bound:
    """Return the bound over all columns of all routes, bounds standing for queues that were not solved."""
    import pulp

    aim, reached = programme.aim, programme.carried(picks)
    # Whatever holds a column slower than the choice carries less: the programme's optimum stays.
    least = (reached if aim.objective == "throughput" else aim.rate or 0.0) * (1 - 1e-9)
    built = _Built(pulp, programme, least)
    for number, ways in enumerate(programme.ways):
        built.add_member(f"m{number}", ways)
    built.add_pools()
    if programme.whole_nodes:
        built.add_whole_nodes(programme.steps)
    chosen, bound = run(pulp, built.problem, built.picks)
    if chosen is None:
        raise Fault("the fleet programme has no solution, and one was found")
    value = reached if aim.objective == "throughput" else _amount(programme, picks)
    return Bound(
        objective=aim.objective,
        value=bound,
        gap=abs(bound - value) / abs(value),
        covers=covers(programme, names),
        queues_solved=sum(side.queues_solved for side in programme.sides),
        pruned=tuple(pruned(programme.sides, reached)),
    )


def _amount(programme: Programme, picks: Picks) -> float:
    """Chips or cost per hour of a choice."""
    return sum(
        int(side.room[column]) * _price(side, programme.aim.objective) for side, column in programme.picked(picks)
    )


def _price(side: Side, objective: str) -> float:
    """What a device counts in an objective that is made small."""
    return device_cost(side.machines) if objective == "cost" else 1 / side.machines.devices_per_chip


class _Built:
    """The programme as it grows."""

    def __init__(self, pulp: Any, programme: Programme, least: float) -> None:
        self.pulp, self.aim, self.least = pulp, programme.aim, least
        maximised = self.aim.objective == "throughput"
        self.problem = pulp.LpProblem("fleet", pulp.LpMaximize if maximised else pulp.LpMinimize)
        # PuLP before 3.3 has no add_variable
        self.new = getattr(self.problem, "add_variable", pulp.LpVariable)
        self.picks: list[Any] = []
        self.taken: list[tuple[Side, int, Any]] = []
        self.owned: dict[tuple[str, str], list[Any]] = {}  # room terms by pool and model
        self.growth = self.new("growth", lowBound=0)
        if self.aim.rate is not None:
            self.problem += self.growth >= self.aim.rate * (1 - 1e-9), "asked_rate"

    def add_member(self, name: str, ways: Sequence[Way]) -> None:
        """Add the columns of a model, one of each role or one that fills both, and that they carry what all carry.

        Models and pools are numbered in names: what a solver makes of two may be one.
        """
        before = len(self.taken)
        carried: list[Any] = []
        single = [side for way in ways if len(way) == 1 for side in way]
        filling = [term for side in single for term in self._columns(side, carried)]
        separate = [way for way in ways if len(way) > 1]
        rates = self._add_separate(name, separate, filling) if separate else {MIXED: []}
        if not separate:
            self.problem += self.pulp.lpSum(filling) == 1, f"one_{name} {MIXED}"
        for role, terms in rates.items():
            self.problem += self.growth - self.pulp.lpSum([*terms, *carried]) <= 0, f"rate_{name} {role}"
        for side, column, pick in self.taken[before:]:
            self.owned.setdefault((side.machines.budget, name), []).append(int(side.room[column]) * pick)

    def _add_separate(self, name: str, ways: Sequence[Way], filling: list[Any]) -> dict[str, list[Any]]:
        """Add separate pools beside columns that fill both roles; return what the columns of each role carry."""
        alternatives = [list({id(side): side for side in role}.values()) for role in zip(*ways, strict=True)]
        carried: dict[str, list[Any]] = {role: [] for role in ROLES}
        if len(ways) < math.prod(len(own) for own in alternatives):
            self._add_coupled(name, ways, filling, carried)
            return carried
        for (role, terms), sides in zip(carried.items(), alternatives, strict=True):
            chosen = [term for side in sides for term in self._columns(side, terms)]
            self.problem += self.pulp.lpSum([*chosen, *filling]) == 1, f"one_{name} {role}"
        return carried

    def _add_coupled(
        self, name: str, ways: Sequence[Way], filling: list[Any], carried: Mapping[str, list[Any]]
    ) -> None:
        """Add ways whose roles must agree, such as in attention TP where the engine wants that."""
        taken = []
        for number, way in enumerate(ways):
            own = self._binary()
            taken.append(own)
            for (role, terms), side in zip(carried.items(), way, strict=True):
                chosen = self._columns(side, terms)
                self.problem += self.pulp.lpSum(chosen) == own, f"one_{name} {role} way {number}"
        self.problem += self.pulp.lpSum([*taken, *filling]) == 1, f"way_{name}"

    def _columns(self, side: Side, terms: list[Any]) -> list[Any]:
        """Return a variable for each column of a side that nothing matches; ``terms`` get what they carry."""
        found = []
        for column in side.staircase(self.aim.devices[side.machines.budget], self.least):
            pick = self._binary()
            found.append(pick)
            self.taken.append((side, int(column), pick))
            terms.append(float(side.rate[column]) * pick)
        return found

    def _binary(self) -> Any:
        self.picks.append(self.new(f"pick_{len(self.picks)}", cat=self.pulp.LpBinary))
        return self.picks[-1]

    def add_pools(self) -> None:
        """Add what the pools hold, and the objective."""
        for number, (pool, devices) in enumerate(sorted(self.aim.devices.items())):
            mine = [(side, column, pick) for side, column, pick in self.taken if side.machines.budget == pool]
            used = self.pulp.lpSum(int(side.devices[column]) * pick for side, column, pick in mine)
            room = self.pulp.lpSum(int(side.room[column]) * pick for side, column, pick in mine)
            self.problem += used <= devices, f"devices_p{number}"
            self.problem += room <= devices, f"nodes_p{number}"
        if self.aim.objective == "throughput":
            self.problem += self.growth
            return
        self.problem += self.pulp.lpSum(
            int(side.room[column]) * _price(side, self.aim.objective) * pick for side, column, pick in self.taken
        )

    def add_whole_nodes(self, steps: Mapping[str, int]) -> None:
        """Add that no two models share a node; ``steps`` are the devices of a node of each pool."""
        for number, (pool, devices) in enumerate(sorted(self.aim.devices.items())):
            nodes = []
            for (own, name), terms in self.owned.items():
                if own == pool:
                    nodes.append(self.new(f"nodes_of_{name} p{number}", lowBound=0, cat=self.pulp.LpInteger))
                    self.problem += self.pulp.lpSum(terms) <= steps[pool] * nodes[-1], f"nodes_{name} p{number}"
            self.problem += self.pulp.lpSum(nodes) <= devices // steps[pool], f"whole_nodes_p{number}"


def covers(programme: Programme, names: Sequence[str]) -> str:
    """Say what the bound is a bound of."""
    columns = sum(side.size for side in programme.sides)
    offers = sum(len(side.offers) for side in programme.sides)
    single = [side for own in programme.ways for way in own if len(way) == 1 for side in way]
    routes = math.prod(len(own) for own in programme.ways)
    spread = f" in every one of the {routes} ways to spread their roles over the pools" if routes > 1 else ""
    mixed = (
        f"; {sum(side.size for side in single)} of them of aggregated instances, of the "
        f"{sum(len(side.offers) for side in single)} rows whose bounds could beat separate pools on the same machines, "
        "with every listed token budget and all requests that memory holds; not over both shapes side by side for one "
        "model"
    )
    apart = sum(side.beyond_grid for side in programme.sides)
    beyond = ", with the decode rows beyond the grid whose bounds could take fewer devices than it" if apart else ""
    return (
        f"{columns} columns of {', '.join(names)}{spread}, each so many node-aligned instances of one of {offers} rows "
        "that keep the limits with one prompt or request, at their best budget or batch"
        f"{beyond}{mixed if single else ''}"
    )
