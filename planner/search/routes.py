"""The best columns of several models at once, where a model may stand on one of several pools.

A *way* of a model is one side for each of its roles, each side on one pool: prefill here and decode there, or both
here; or the one side of aggregated instances, which fill both roles. A *route* is a way of every model. Along a route
each side's smallest column that carries a rate is best, whatever is made small, for all devices of a pool are alike; so
a rate needs one look at every side, and all routes are compared as arrays. What fits at a rate fits at every smaller
one: the largest rate is found by bisection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from planner.offers.choice import Aim, Contest
from planner.offers.columns import Rates, Side, device_cost

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Way = tuple[Side, ...]
"""A side of each role of a model, or one of aggregated instances."""

MOST_ROUTES = 2_000_000
"""Routes that are compared; more models on more pools take longer than anyone waits."""
_RELATIVE = 1e-9


@dataclass(frozen=True, slots=True)
class Pick:
    """What a model gets: the number of its way, and a column of each of its sides."""

    way: int
    columns: tuple[int, ...]


Picks = tuple[Pick, ...]
"""One of each model."""


@dataclass(frozen=True, slots=True)
class Programme:
    """Every way of every model, [models][ways], and what is to be best within which budgets."""

    ways: tuple[tuple[Way, ...], ...]
    aim: Aim
    whole_nodes: bool = False
    """Whether no two models may share a node: each takes whole ones of every pool."""
    _sides: tuple[Side, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Refuse more routes than are compared."""
        routes = float(np.prod([float(len(own)) for own in self.ways]))
        if routes > MOST_ROUTES:
            raise BadInput(
                f"{routes:.0f} ways to spread these models over the pools are more than the {MOST_ROUTES} that are "
                "compared; give some models the pools that they stand on, hw: prefill=NAME,decode=NAME"
            )
        found = {id(side): side for own in self.ways for way in own for side in way}
        object.__setattr__(self, "_sides", tuple(found.values()))

    @property
    def sides(self) -> tuple[Side, ...]:
        """Every side once."""
        return self._sides

    @property
    def steps(self) -> dict[str, int]:
        """Devices of each pool in whose multiples a model takes them: those of a node, or single ones."""
        sizes = {side.machines.budget: side.machines.devices_per_node for side in self.sides}
        return {pool: sizes.get(pool, 1) if self.whole_nodes else 1 for pool in self.aim.devices}

    def picked(self, picks: Picks) -> list[tuple[Side, int]]:
        """Return the sides of a choice with their columns."""
        return list(
            chain.from_iterable(
                zip(own[pick.way], pick.columns, strict=True) for own, pick in zip(self.ways, picks, strict=True)
            )
        )

    def carried(self, picks: Picks) -> float:
        """Share of every asked rate that a choice carries: that of its slowest side."""
        return min(float(side.rate[column]) for side, column in self.picked(picks))


def best_picks(programme: Programme, least_rate: float = 0.0, by: Rates = "bound") -> Picks | None:
    """Return the best columns at their present bounds, guesses or solved rates; None where none fit.

    Most carried and then fewest chips; or fewest chips, then the least cost; or the least cost, then fewest chips.
    """
    aim = programme.aim
    least = max(least_rate, (aim.rate or 0.0) * (1 - _RELATIVE))
    stairs = {
        id(side): _Stairs(side, side.staircase(aim.devices[side.machines.budget], least, by), by)
        for side in programme.sides
    }
    found = _smallest(programme, stairs, least)
    if found is None or aim.objective != "throughput":
        return found
    steps = np.unique(np.concatenate([own.rates for own in stairs.values()]))
    low, high = 0, int(steps.size)
    while low < high:
        middle = (low + high) // 2
        tried = _smallest(programme, stairs, float(steps[middle]))
        found, low, high = (found, low, middle) if tried is None else (tried, middle + 1, high)
    return found


class _Stairs:
    """Columns of a side of rising rate and rising devices, and what they take."""

    def __init__(self, side: Side, columns: Ints, by: Rates) -> None:
        self.columns, self.rates = columns, side.rates(by)[columns]
        self.room = side.room[columns].astype(np.float64)
        per_device = (1 / side.machines.devices_per_chip, device_cost(side.machines))
        self.amounts = self.room[:, None] * np.array(per_device)  # [columns, (chips, cost)], the empty ones too


def _smallest(programme: Programme, stairs: Mapping[int, _Stairs], rate: float) -> Picks | None:
    """Return the cheapest route that carries a rate, each side with its smallest sufficient column."""
    budgets = sorted(programme.aim.devices)
    steps = np.array([programme.steps[budget] for budget in budgets])
    most = np.array([float(programme.aim.devices[budget]) for budget in budgets]) // steps * steps
    used, spent = np.zeros((1, most.size)), np.zeros((1, 2))  # [routes, pools], [routes, (chips, cost)]
    routes = np.zeros((1, 0), dtype=np.int64)  # [routes, models]
    for own in programme.ways:
        able = [(number, found) for number, way in enumerate(own) if (found := _taken(way, stairs, rate, budgets))]
        if not able:
            return None
        room, amounts = (np.array([found[place] for _, found in able]) for place in (0, 1))
        used = (used[:, None] + np.ceil(room / steps) * steps).reshape(-1, most.size)
        spent = (spent[:, None] + amounts).reshape(-1, 2)
        numbers = np.array([number for number, _ in able])
        routes = np.column_stack([np.repeat(routes, numbers.size, axis=0), np.tile(numbers, len(routes))])
        fits = (used <= most + _RELATIVE).all(axis=1)
        kept = np.flatnonzero(fits)[_least_spent(programme.aim, used[fits], spent[fits])]
        used, spent, routes = used[kept], spent[kept], routes[kept]
        if not len(routes):
            return None
    best = _cheapest(programme.aim, spent)[0]
    return tuple(
        Pick(int(way), tuple(_column(stairs[id(side)], rate) for side in own[way]))
        for own, way in zip(programme.ways, routes[best], strict=True)
    )


def _cheapest(aim: Aim, spent: Floats) -> Ints:
    """Return the order of routes by what is made small, then by the other: (chips, cost) of each."""
    chips, cost = spent.round(9).T
    return np.lexsort((chips, cost) if aim.objective == "cost" else (cost, chips))


def _least_spent(aim: Aim, used: Floats, spent: Floats) -> Ints:
    """Return of routes that take the same of every pool the cheapest: whatever the other models take, it stays so."""
    order = _cheapest(aim, spent)
    _, first = np.unique(used[order], axis=0, return_index=True)
    return np.asarray(order[np.sort(first)], dtype=np.int64)


def _taken(
    way: Way, stairs: Mapping[int, _Stairs], rate: float, budgets: Sequence[str]
) -> tuple[list[float], list[float]] | None:
    """Return what a way takes at a rate: room of each pool, (chips, cost); None where a side does not carry it."""
    room, amounts = [0.0] * len(budgets), [0.0, 0.0]
    for side in way:
        own = stairs[id(side)]
        place = int(np.searchsorted(own.rates, rate))
        if place >= own.rates.size:
            return None
        room[budgets.index(side.machines.budget)] += float(own.room[place])
        amounts = [known + float(more) for known, more in zip(amounts, own.amounts[place], strict=True)]
    return room, amounts


def _column(own: _Stairs, rate: float) -> int:
    return int(own.columns[int(np.searchsorted(own.rates, rate))])


def settle_picks(programme: Programme, least_rate: float = 0.0) -> Picks | None:
    """Return the best choice over all routes and columns, as ``columns.Contest.settle``.

    ``least_rate``: what is known to be carried, or the asked rate; then no likely choice is looked for first.
    """
    return Contest(
        programme.aim,
        best=lambda least, by: best_picks(programme, least, by),
        columns=programme.picked,
        carried=programme.carried,
    ).settle(least_rate)
