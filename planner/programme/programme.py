"""The best columns of one or several models: optimised over bounds, again and again, until all chosen ones are solved.

A *way* of a model is a side for each of its roles, each side on one pool: prefill and decode on different pools or on
the same one; or the single side of aggregated instances, which fill both roles. A *route* is a way of every model. All
devices of a pool are equal, so along a route the smallest column of each side that carries a rate is best. A rate
therefore needs one look-up per side, and all routes are compared as arrays. A choice that fits at a rate fits at every
smaller one, so the largest rate is found by bisection. With the latency objective devices are divided along every route
(``programme.routes``).

The final choice is optimal over all columns, because unsolved ones were counted at upper bounds of their rates, or at
lower bounds of their times.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import numpy as np

from ground.arrays import Floats, Ints, distinct
from ground.errors import BadInput
from planner.instances.candidates import Count
from planner.objective import Aim, Incumbent
from planner.programme.columns import BELOW, RELATIVE, Pick, Picks, Rates, Side, Way
from planner.programme.routes import Routes

MOST_ROUTES = 2_000_000  # most routes that are compared at once; more would take too long


@dataclass(frozen=True)
class Programme:
    """Every way of every model, [models][ways], with the objective and the budgets."""

    ways: tuple[tuple[Way, ...], ...]
    aim: Aim
    whole_nodes: bool = False  # whether no two models may share a node, so that each takes whole nodes
    shares: tuple[float, ...] = (1.0,)  # share of all requests, by model: its weight in the mean time
    count: Count = field(default_factory=Count)  # plays of its queues, by which a long search ends
    unproven: list[Picks] = field(default_factory=list)
    """Choices with which a search ended before they were proven to be the best."""

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """Every side once."""
        return tuple({id(side): side for own in self.ways for way in own for side in way}.values())

    @cached_property
    def steps(self) -> dict[str, int]:
        """Devices by pool in whose multiples a model takes them: a node's, or 1."""
        sizes = {side.machines.budget: side.machines.devices_per_node for side in self.sides}
        return {pool: sizes.get(pool, 1) if self.whole_nodes else 1 for pool in self.aim.devices}

    def picked(self, picks: Picks) -> list[tuple[Side, int]]:
        """Return the sides of a choice with their columns."""
        return list(
            chain.from_iterable(
                zip(own[pick.way], pick.columns, strict=True) for own, pick in zip(self.ways, picks, strict=True)
            )
        )

    def carried(self, picks: Picks, by: Rates = "bound") -> float:
        """Share of the asked rates that a choice carries, that of its slowest side."""
        return min(float(side.rates(by)[column]) for side, column in self.picked(picks))

    def seconds(self, picks: Picks) -> float:
        """Mean time of all requests in a choice, by the current times of its columns."""
        return sum(
            share * sum(float(side.seconds[column]) for side, column in zip(own[pick.way], pick.columns, strict=True))
            for share, own, pick in zip(self.shares, self.ways, picks, strict=True)
        )

    def incumbent(self, picks: Picks) -> Incumbent:
        """Return a choice as incumbent: its rate and what it takes."""
        spent = np.zeros(2)
        for side, column in self.picked(picks):
            spent += int(side.room[column]) * np.array(side.machines.per_device(self.aim.goal))
        return Incumbent(rate=self.carried(picks), spent=(float(spent[0]), float(spent[1])))

    def best(self, least_rate: float = 0.0, by: Rates = "bound") -> Picks | None:
        """Return the best columns at their current bounds, guesses or solved rates; None where none fit.

        Ties are broken by ``Objective.per_device``.
        """
        aim = self.aim
        if aim.goal.timed:
            return self._quickest.best()
        least = max(least_rate, (aim.rate or 0.0) * (1 - RELATIVE))
        stairs = {
            id(side): _Stairs(side, side.staircase(aim.devices[side.machines.budget], least, by), by, aim)
            for side in self.sides
        }
        if not aim.goal.maximised:
            return self._smallest(stairs, least)
        steps = distinct(np.concatenate([own.rates for own in stairs.values()]))
        carried = self._carried_of(steps, stairs)
        return self._smallest(stairs, float(steps[carried - 1])) if carried else None

    def _carried_of(self, steps: Floats, stairs: Mapping[int, "_Stairs"]) -> int:
        """Return how many of some rising rates a choice carries."""
        if len(self.ways) > 1:
            rates = range(steps.size)
            return bisect_left(rates, True, key=lambda place: self._smallest(stairs, float(steps[place])) is None)
        carried = 0
        for way in self.ways[0]:

            def late(place: int, way: Way = way) -> bool:
                return self._fitting(way, stairs, float(steps[place])) is None

            if carried < steps.size and not late(carried):  # most ways carry no more than those before them
                carried = bisect_left(range(steps.size), True, carried + 1, key=late)
        return carried

    @cached_property
    def _quickest(self) -> Routes:
        steps = {pool: (self.aim.devices[pool] // step * step, step) for pool, step in self.steps.items()}
        return Routes(self.ways, self.shares, steps)

    @cached_property
    def _pools(self) -> list[str]:
        return sorted(self.aim.devices)

    @cached_property
    def _held(self) -> tuple[Floats, Floats]:
        """Devices of each pool in whole steps, and the size of a step."""
        counts, steps = np.array(self._counts, dtype=np.float64).T
        return counts * steps, steps

    def _smallest(self, stairs: Mapping[int, "_Stairs"], rate: float) -> Picks | None:
        """Return the best route that carries a rate, each side with its smallest sufficient column.

        Raises BadInput where over ``MOST_ROUTES`` of them take different room.
        """
        if len(self.ways) == 1:
            return self._of_one_model(stairs, rate)
        most, steps = self._held
        used, spent = np.zeros((1, most.size)), np.zeros((1, 2))  # [routes, pools], [routes, (objective, tie-break)]
        routes = np.zeros((1, 0), dtype=np.int64)  # [routes, models]
        for own in self.ways:
            if len(routes) * len(own) > MOST_ROUTES:
                raise BadInput(
                    f"the ways to spread these models over the pools are more than the {MOST_ROUTES} that are "
                    "compared; give some models the pools that they stand on, hw: prefill=NAME,decode=NAME"
                )
            each = ((number, _taken(way, stairs, rate, self._pools)) for number, way in enumerate(own))
            taken = [(number, found) for number, found in each if found is not None]
            if not taken:
                return None
            room = np.ceil(np.array([found[2:] for _, found in taken]) / steps) * steps
            numbers = np.array([number for number, _ in taken])
            used = (used[:, None] + room).reshape(-1, most.size)
            spent = (spent[:, None] + np.array([found[:2] for _, found in taken])).reshape(-1, 2)
            routes = np.column_stack([np.repeat(routes, numbers.size, axis=0), np.tile(numbers, len(routes))])
            fits = (used <= most + RELATIVE).all(axis=1)
            kept = np.flatnonzero(fits)[_least_spent(used[fits], spent[fits])]
            used, spent, routes = used[kept], spent[kept], routes[kept]
            if not len(routes):
                return None
        best = _cheapest(spent)[0]
        return tuple(
            Pick(int(way), tuple(int(at.columns[at.place(rate)]) for at in (stairs[id(side)] for side in own[way])))
            for own, way in zip(self.ways, routes[best], strict=True)
        )

    def _of_one_model(self, stairs: Mapping[int, "_Stairs"], rate: float) -> Picks | None:
        """Return ``_smallest`` for a single model, whose few ways need no arrays.

        Of separate ways that take as much, the one that carries most is the best, then the one whose roles do.
        """
        best: tuple[float, float, bool, float, float, int] | None = None
        for number, way in enumerate(self.ways[0]):
            found = self._fitting(way, stairs, rate)
            if found is None:
                continue
            rates = [float(at.rates[at.place(rate)]) for at in (stairs[id(side)] for side in way)]
            key = round(found[0], 9), round(found[1], 9), len(way) == 1, -min(rates), -sum(rates), number
            best = key if best is None else min(best, key)
        if best is None:
            return None
        chosen = (stairs[id(side)] for side in self.ways[0][best[-1]])
        return (Pick(best[-1], tuple(int(own.columns[own.place(rate)]) for own in chosen)),)

    def _fitting(self, way: Way, stairs: Mapping[int, "_Stairs"], rate: float) -> list[float] | None:
        """Return what a way of a single model takes at a rate; None where it is too slow or does not fit."""
        found = _taken(way, stairs, rate, self._pools)
        if found is None or any(
            math.ceil(room / step - RELATIVE) > count
            for room, (count, step) in zip(found[2:], self._counts, strict=True)
        ):
            return None
        return found

    @cached_property
    def _counts(self) -> list[tuple[int, int]]:
        return [self._steps(pool) for pool in self._pools]

    def _steps(self, pool: str) -> tuple[int, int]:
        """Return the number of steps of a pool, and the devices of one step."""
        return self.aim.devices[pool] // self.steps[pool], self.steps[pool]

    def likely(self, known: float = 0.0) -> Picks | None:
        """Return the best choice by guesses, with solved queues; None where none carries ``known``. Good, not proven.

        Offers with a solved column come first: their other columns are well estimated, and a good incumbent prunes
        more. Where the rate is maximised, offers race on few requests before the queue of the first is solved.
        """
        if self.aim.goal.timed:
            return self.settle()
        while True:
            choice = self.best(known, "tried") if self.aim.goal.maximised else None
            if choice is None or not opened(self.picked(choice)):
                choice = self.best(known, "guess")
            if choice is not None and self.aim.goal.maximised and self._estimated(choice, known):
                continue
            if choice is None or solve_open(self.picked(choice), self.aim.rate or known):
                return choice
            # A choice that carries no more than the incumbent need not be solved in full.
            known = self._exactly(known)

    def _estimated(self, picks: Picks, known: float) -> bool:
        """Guess the rates of chosen columns from few played requests; return whether guesses have changed.

        In a long search, what was not played is not chosen any more.
        """
        if self.count.long:
            return any([side.forgo(column) for side, column in self.picked(picks)])
        most = self.aim.devices
        return any([side.estimate(column, most[side.machines.budget], known) for side, column in self.picked(picks)])

    def settle(self, least_rate: float = 0.0) -> Picks | None:
        """Return the best choice of all, with solved queues; None where nothing fits.

        A queue is solved only if the best choice at current bounds needs it, and only until it is known whether that
        choice beats the incumbent. The first incumbent is the likely best choice, or ``least_rate`` where something
        else carries that. A long search (``Count``) ends with the best solved choice, where there is one.
        """
        if self.aim.goal.timed:
            while (choice := self.best()) is not None and not time_open(self.picked(choice)):
                pass
            return choice
        found = self.likely() if not least_rate else None
        known = self.carried(found) if found is not None and self.aim.goal.maximised else least_rate
        raced = not least_rate or not self.aim.goal.maximised
        while True:
            choice = self.best(known * (1 - BELOW), "bound")
            if choice is None:
                return None
            if self.count.long and (solved := self.best(known, "exact")):
                if opened(self.picked(choice)):
                    self.unproven.append(solved)
                return solved
            wanted = self.aim.rate if self.aim.rate is not None else known * (1 - BELOW)
            if not self._short(choice, wanted):
                if not raced and opened(self.picked(choice)):
                    self.likely(known)
                    raced = True
                elif solve_open(self.picked(choice), wanted):
                    return choice
            known = self._exactly(known)

    def _short(self, choice: Picks, wanted: float) -> bool:
        """Whether an offer of the choice carries too little even with the most instances that could beat the incumbent.

        Then fewer instances carry too little as well (``Side.carries``), so one queue prunes all its columns. The other
        sides take least where they just carry ``wanted``; for chips and cost the incumbent is the best of the solved
        columns.
        """
        if wanted <= 0 or len(self.ways) > 1:
            return False
        chosen, goal, most = self.picked(choice), self.aim.goal, self.aim.devices
        solved = None if goal.maximised else self.best(wanted, "exact")
        if solved is None and not goal.maximised:
            return False
        spent = math.inf if solved is None else self.incumbent(solved).spent[0] * (1 - RELATIVE)
        least = [int(side.room[side.staircase(most[side.machines.budget], wanted)[0]]) for side, _ in chosen]
        for side, column in chosen:
            others = [(each, room) for (each, _), room in zip(chosen, least, strict=True) if each is not side]
            beside = sum(room for each, room in others if each.machines.budget == side.machines.budget)
            left = spent - sum(room * each.machines.per_device(goal)[0] for each, room in others)
            room = min(most[side.machines.budget] - beside, left / side.machines.per_device(goal)[0])
            widest = side.widest(column, room)
            if widest != column and not side.exact[column] and not side.carries(widest, wanted):
                return True
        return False

    def sufficient(self) -> Picks | None:
        """Return the first columns found that carry the asked rate; None where none is likely to.

        The best guess comes first, as it most likely carries enough. Capacities are solved only of columns that carry
        the rate, because a search accepts rates up to a root's tolerance below it and must agree.
        """
        rate = self.aim.rate or 0.0
        while (choice := self.carrying(rate, "guess")) is not None:
            solve_open(self.picked(choice), rate * (1 - RELATIVE))
            if self.carried(choice) >= rate * (1 - RELATIVE):
                break
        return choice

    def carrying(self, rate: float, by: Rates = "bound") -> Picks | None:
        """Return some columns that carry a rate, in units of the asked ones; None where none do by bounds, or guesses.

        Those that may carry most come first.
        """
        rate *= 1 - RELATIVE
        while rate > 0 and (choice := self._largest.best(rate, by)) is not None:
            if all(side.carries(column, rate) for side, column in self.picked(choice)):
                return choice
        return None

    @cached_property
    def _largest(self) -> "Programme":
        """The programme of the largest rate over the same columns."""
        return replace(self, aim=replace(self.aim, objective="throughput", rate=None))

    def carries_any(self) -> bool:
        """Whether every column of some choice carries anything."""
        while (choice := self._largest.best()) is not None:
            if all(side.carries_any(column) for side, column in self.picked(choice)):
                return True
        return False

    def _exactly(self, known: float) -> float:
        """Return the largest rate of solved columns; ``known`` where none carry more, or for other objectives."""
        best = self.best(known, "exact") if self.aim.goal.maximised else None
        return known if best is None else max(known, self.carried(best))


class _Stairs:
    """Columns of a side with rising rate and room, and the weights of its devices in the objective."""

    def __init__(self, side: Side, columns: Ints, by: Rates, aim: Aim) -> None:
        self.columns, self.rates, self.room = columns, side.rates(by)[columns], side.room[columns]
        self.pool, self.per_device = side.machines.budget, side.machines.per_device(aim.goal)

    def place(self, rate: float) -> int:
        """Return the index of the smallest column that carries a rate; past the end where none does."""
        return int(self.rates.searchsorted(rate))


def _taken(way: Way, stairs: Mapping[int, _Stairs], rate: float, pools: Sequence[str]) -> list[float] | None:
    """Return (objective, tie-break, room of each pool) of a way at a rate; None where a side is too slow."""
    found = [0.0] * (2 + len(pools))
    for side in way:
        own = stairs[id(side)]
        place = own.place(rate)
        if place >= own.rates.size:
            return None
        room = float(own.room[place])
        found[0] += room * own.per_device[0]
        found[1] += room * own.per_device[1]
        found[2 + pools.index(own.pool)] += room
    return found


def _cheapest(spent: Floats) -> Ints:
    """Return the order of routes by objective, then by tie-break."""
    first, second = spent.round(9).T
    return np.lexsort((second, first))


def _least_spent(used: Floats, spent: Floats) -> Ints:
    """Return the cheapest of the routes with equal room in every pool; the other models cannot change that order."""
    order = _cheapest(spent)
    _, first = np.unique(used[order], axis=0, return_index=True)
    return np.asarray(order[np.sort(first)], dtype=np.int64)


def opened(chosen: Iterable[tuple[Side, int]]) -> list[tuple[Side, int]]:
    """Return the chosen columns that are not solved."""
    return [(side, column) for side, column in chosen if not side.exact[column]]


def solve_open(chosen: Iterable[tuple[Side, int]], wanted: float) -> bool:
    """Solve the unsolved chosen columns until one does not carry ``wanted``; return whether none was unsolved.

    The lowest bound comes first, as it most likely does not.
    """
    left = sorted(opened(chosen), key=lambda each: float(each[0].rate[each[1]]))
    for side, column in left:
        if not side.solve(column, wanted):
            break
    return not left


def time_open(chosen: Iterable[tuple[Side, int]]) -> bool:
    """Time the untimed chosen columns until one misses a limit; return whether none was untimed."""
    left = [(side, column) for side, column in chosen if not side.timed[column]]
    for side, column in left:
        if np.isinf(side.time(column)):
            break
    return not left
