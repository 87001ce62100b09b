"""The columns with which a fleet's requests take least from arrival to last token, on average over all of them.

A model weighs as much as its share of all requests. Along a route (a way of every model, ``search.routes``) the
devices of each pool are divided among the sides that stand on it (``fleets.divided``), and pools share nothing.
Columns begin with what a request takes at least (``instances.least``); those of the best route are solved until nothing
of it is a bound. What a route takes only rises thereby: routes wait in a heap by what they took when last looked at.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from ground.errors import BadInput
from planner.fleets.divided import NOTHING, Curve
from planner.fleets.members import Member, aim_of, asked_rate
from planner.fleets.quick_ways import with_aggregated
from planner.fleets.ways import Gathered
from planner.offers.columns import Side
from planner.search.proof import Bound, Pruned
from planner.search.quickest import TimedSide, pruned_columns
from planner.search.routes import Pick, Picks, Programme

MOST_ROUTES = 20_000
"""Routes that are looked at; each takes about a tenth of a millisecond."""

Group = tuple[int, ...]
"""Sides of one model on one pool, by their numbers."""


@dataclass(frozen=True, slots=True)
class QuickFleet:
    """The quickest columns of all models, and what is proven of them."""

    gathered: Gathered
    programme: Programme
    picks: Picks
    seconds: float
    """Mean over all requests of the fleet; what KV waits for links comes on top."""
    timed: tuple[TimedSide, ...]
    never_queued: tuple[Pruned, ...]

    def bound(self, seconds: float) -> Bound:
        """Return the bound of plans whose requests take so long on average."""
        value = min(self.seconds, seconds)
        return Bound(
            objective="latency",
            value=value,
            gap=(seconds - value) / seconds,
            covers=_covers(self.programme, [member.name for member in self.gathered.fleet.members]),
            queues_solved=sum(own.side.queues_solved for own in self.timed),
            pruned=(*(each for own in self.timed for each in pruned_columns(own)), *self.never_queued),
        )


def shares(members: Sequence[Member]) -> list[float]:
    """Return the share of all requests that each model has."""
    rates = [asked_rate(member) for member in members]
    return [rate / sum(rates) for rate in rates]


def quickest_fleet(separate: Gathered) -> QuickFleet | None:
    """Return the quickest columns of separate pools and aggregated instances; None where nothing carries all rates.

    Raises BadInput for more routes than are looked at.
    """
    search = _Search(separate)
    found = None if separate.closed else search.best()
    seconds = math.inf if found is None else found[1]
    gathered, never_queued = with_aggregated(separate, shares(separate.fleet.members), seconds)
    wider = _Search(gathered, search)
    best = None if gathered.closed else wider.best()
    if best is None:
        return None
    return QuickFleet(gathered, wider.programme, *best, tuple(wider.timed), never_queued)


class _Search:
    """Every route with what it takes at least, by what is known of its columns."""

    def __init__(self, gathered: Gathered, before: "_Search | None" = None) -> None:
        """Bound every column that may carry its model's rate; what was solved ``before`` stays."""
        members = gathered.fleet.members
        self.programme = gathered.programme(aim_of(gathered.fleet))
        self.timed: list[TimedSide] = []
        self._weights: list[float] = []
        known = {id(own.side): own for own in before.timed} if before else {}
        numbers: dict[int, int] = {}
        for member, share, ways in zip(members, shares(members), self.programme.ways, strict=True):
            for side in (side for way in ways for side in way if id(side) not in numbers):
                numbers[id(side)] = len(self.timed)
                self.timed.append(known.get(id(side)) or TimedSide(side, asked_rate(member)))
                self._weights.append(share)
        self._numbers = numbers
        self._ways = [[self._groups(way, numbers) for way in ways] for ways in self.programme.ways]
        self._curves: dict[tuple[str, tuple[Group, ...]], tuple[tuple[int, ...], Curve]] = {}

    def _groups(self, way: Sequence[Side], numbers: dict[int, int]) -> dict[str, Group]:
        """Return the sides of a way by the pool on which they stand."""
        found: dict[str, Group] = {}
        for side in way:
            budget = side.machines.budget
            found[budget] = (*found.get(budget, ()), numbers[id(side)])
        return found

    def best(self) -> tuple[Picks, float] | None:
        """Return the quickest columns, all of them solved, and the mean seconds of a request; None where none fit."""
        count = math.prod(len(ways) for ways in self._ways)
        if count > MOST_ROUTES:
            raise BadInput(
                f"{count} ways to spread these models over the pools are more than the {MOST_ROUTES} that --objective "
                "latency looks at; give some models the pools that they stand on, hw: prefill=NAME,decode=NAME"
            )
        waiting = [(self._seconds(route), route) for route in product(*(range(len(ways)) for ways in self._ways))]
        heapq.heapify(waiting)
        while waiting:
            _, route = heapq.heappop(waiting)
            seconds = self._seconds(route)
            if waiting and seconds > waiting[0][0]:
                heapq.heappush(waiting, (seconds, route))
                continue
            if math.isinf(seconds):
                return None
            columns = self._columns(route)
            opened = [(number, column) for number, column in columns.items() if not self.timed[number].solved[column]]
            if not opened:
                return self._picks(route, columns), seconds
            self._solve(opened)
            heapq.heappush(waiting, (seconds, route))
        return None

    def _solve(self, opened: Sequence[tuple[int, int]]) -> None:
        """Solve columns, until one of them misses a limit."""
        for number, column in opened:
            self.timed[number].solve(column)
            if math.isinf(self.timed[number].seconds[column]):
                return

    def _on_pools(self, route: tuple[int, ...]) -> Iterator[tuple[str, tuple[Group, ...]]]:
        """Yield the pools of a route, and what stands on each."""
        ways = [own[way] for own, way in zip(self._ways, route, strict=True)]
        for pool in sorted({pool for way in ways for pool in way}):
            yield pool, tuple(way[pool] for way in ways if pool in way)

    def _seconds(self, route: tuple[int, ...]) -> float:
        """Return what a request takes at least on a route; infinite where it does not fit."""
        return sum(self._curve(pool, groups).least for pool, groups in self._on_pools(route))

    def _columns(self, route: tuple[int, ...]) -> dict[int, int]:
        """Return the column of each side with which a route takes least."""
        found: dict[int, int] = {}
        for pool, groups in self._on_pools(route):
            choice = self._curve(pool, groups).choice[-1].tolist()
            found |= zip((number for group in groups for number in group), choice, strict=True)
        return found

    def _picks(self, route: tuple[int, ...], columns: dict[int, int]) -> Picks:
        return tuple(
            Pick(way, tuple(columns[self._numbers[id(side)]] for side in own[way]))
            for own, way in zip(self.programme.ways, route, strict=True)
        )

    def _curve(self, pool: str, groups: tuple[Group, ...]) -> Curve:
        """Return what the sides of some models on a pool take together; that of all but the last is shared."""
        state = tuple(int(self.timed[number].solved.sum()) for group in groups for number in group)
        known = self._curves.get((pool, groups))
        if known is None or known[0] != state:
            step = self.programme.steps[pool]
            most = self.programme.aim.devices[pool] // step * step
            if len(groups) > 1:
                curve = self._curve(pool, groups[:-1]).beside(self._curve(pool, groups[-1:]), most)
            else:
                curve = NOTHING
                for number in groups[0]:
                    curve = curve.beside(self._alone(number, most), most)
                curve = curve.in_steps(step)
            known = self._curves[pool, groups] = state, curve
        return known[1]

    def _alone(self, number: int, most: int) -> Curve:
        """Return what one side takes, as much of the mean as its model's requests are of all."""
        own = self.timed[number]
        columns = own.staircase(most)
        return Curve.of(own.side.room[columns], own.seconds[columns] * self._weights[number], columns[:, None])


def _covers(programme: Programme, names: Sequence[str]) -> str:
    """Say what the bound is a bound of."""
    single = [side for own in programme.ways for way in own if len(way) == 1 for side in way]
    columns, rows = (sum(side.size for side in programme.sides), sum(len(side.offers) for side in programme.sides))
    mixed = (
        f"; {sum(side.size for side in single)} of them of aggregated instances, of the "
        f"{sum(len(side.offers) for side in single)} rows in which a request alone is quick enough, with every listed "
        "token budget; not over both shapes side by side for one model"
    )
    routes = math.prod(len(own) for own in programme.ways)
    return (
        f"the mean time from arrival to the last token over all requests, in {columns} columns of {', '.join(names)} "
        f"on {routes} routes over the pools, each so many node-aligned instances of one of {rows} rows of the grid, "
        "with the largest batch that keeps the limits and prefill budgets that close in on the least mean, taken to "
        f"fall and then to rise; waits for links that KV crosses are not in it{mixed if single else ''}"
    )
