"""The columns with the least mean time from arrival to last token over all models.

A model is weighted by its share of all requests. Along a route (a way of every model, ``programme.programme``) the
devices of each pool are divided among its sides, and pools are independent. The time of a
column begins as a lower bound (``instances.least``) and rises when it is timed, and so does the time of a route. Routes
therefore wait in a heap, sorted by their last known time.

The least sum of two sides with d devices is the minimum over all divisions of d, a min-plus convolution of their curves
over devices; further sides are added one by one. Ref: R. Bellman, Dynamic Programming, Princeton University Press,
1957, chapter I (allocation of a resource).
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np

from ground.arrays import Floats, Ints
from ground.errors import BadInput
from planner.programme.columns import Pick, Picks, Way


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The least amount by devices, [points]: devices rise, amounts fall."""

    devices: Ints
    amount: Floats
    choice: Ints  # [points, things]: what each thing does there, by the caller's numbers

    @classmethod
    def of(cls, devices: Ints, amount: Floats, choice: Ints) -> Self:
        """Return the curve of alternatives in any order: [alternatives], choices [alternatives, sides]."""
        order = np.lexsort((amount, devices))
        before = np.minimum.accumulate(np.append(np.inf, amount[order]))[:-1]
        kept = order[amount[order] < before]
        return cls(devices[kept], amount[kept], choice[kept])

    @property
    def least(self) -> float:
        """Amount with all devices; infinite where they are too few."""
        return float(self.amount[-1]) if self.amount.size else float("inf")

    def beside(self, other: "Curve", most_devices: int) -> "Curve":
        """Return the curve of both together, up to so many devices."""
        devices = self.devices[:, None] + other.devices
        first, second = np.nonzero(devices <= most_devices)
        return Curve.of(
            devices[first, second],
            self.amount[first] + other.amount[second],
            np.concatenate([self.choice[first], other.choice[second]], axis=1),
        )

    def in_steps(self, step: int) -> "Curve":
        """Return the curve restricted to multiples of ``step`` devices."""
        return self if step == 1 else Curve.of(-(-self.devices // step) * step, self.amount, self.choice)


NOTHING = Curve(np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros((1, 0), dtype=np.int64))
"""The curve of no side: amount 0 with 0 devices."""


MOST_ROUTES = 20_000  # most routes; each takes about a tenth of a millisecond

Group = tuple[int, ...]  # indices of the sides of one model on one pool
Route = tuple[int, ...]  # index of the way of each model


class Routes:
    """Every route with a lower bound of its mean time, from the current times of its columns."""

    def __init__(
        self, every: Sequence[Sequence[Way]], shares: Sequence[float], pools: Mapping[str, tuple[int, int]]
    ) -> None:
        """Put every route in the heap. Raises BadInput for more than ``MOST_ROUTES``.

        Args: ``every`` way of each model, its share of all requests, and devices of each ``pool`` with their step.
        """
        number = math.prod(map(len, every))
        if number > MOST_ROUTES:
            raise BadInput(
                f"{number} ways to spread these models over the pools are more than the {MOST_ROUTES} "
                "that --objective latency looks at; give some models the pools that they stand on, hw: "
                "prefill=NAME,decode=NAME"
            )
        self.every, self._pools = every, pools
        self._sides = tuple({id(side): side for own in every for way in own for side in way}.values())
        self._number = {id(side): number for number, side in enumerate(self._sides)}
        self._weight = {
            id(side): share for share, own in zip(shares, every, strict=True) for way in own for side in way
        }
        self._groups = [[self._by_pool(way) for way in own] for own in every]
        self._curves: dict[tuple[str, tuple[Group, ...]], tuple[tuple[int, ...], Curve]] = {}
        routes = product(*(range(len(own)) for own in every))
        self._waiting = [(self._seconds(route), route) for route in routes]
        heapq.heapify(self._waiting)

    def best(self) -> Picks | None:
        """Return the quickest columns by their current times; None where none fit."""
        while self._waiting:
            _, route = heapq.heappop(self._waiting)
            seconds = self._seconds(route)
            heapq.heappush(self._waiting, (seconds, route))
            if self._waiting[0][1] == route:
                return None if math.isinf(seconds) else self._picks(route)
        return None

    def _by_pool(self, way: Way) -> dict[str, Group]:
        """Return the sides of a way, by pool."""
        found: dict[str, Group] = {}
        for side in way:
            budget = side.machines.budget
            found[budget] = (*found.get(budget, ()), self._number[id(side)])
        return found

    def _on_pools(self, route: Route) -> Iterator[tuple[str, tuple[Group, ...]]]:
        """Yield the pools of a route with the sides on each."""
        ways = [own[way] for own, way in zip(self._groups, route, strict=True)]
        for pool in sorted({pool for way in ways for pool in way}):
            yield pool, tuple(way[pool] for way in ways if pool in way)

    def _seconds(self, route: Route) -> float:
        """Return the lower bound of the mean time on a route; infinite where it does not fit."""
        return sum(self._curve(pool, groups).least for pool, groups in self._on_pools(route))

    def _picks(self, route: Route) -> Picks:
        """Return the column of each side that gives a route its least time."""
        columns: dict[int, int] = {}
        for pool, groups in self._on_pools(route):
            choice = self._curve(pool, groups).choice[-1].tolist()
            columns |= zip((number for group in groups for number in group), choice, strict=True)
        return tuple(
            Pick(way, tuple(columns[self._number[id(side)]] for side in own[way]))
            for own, way in zip(self.every, route, strict=True)
        )

    def _curve(self, pool: str, groups: tuple[Group, ...]) -> Curve:
        """Return the curve of the sides of some models on a pool; curves of all but the last model are shared."""
        state = tuple(int(self._sides[number].timed.sum()) for group in groups for number in group)
        known = self._curves.get((pool, groups))
        if known is None or known[0] != state:
            most, step = self._pools[pool]
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
        """Return the curve of one side, weighted by its model's share of requests."""
        side = self._sides[number]
        columns = side.quickest(most)
        return Curve.of(side.room[columns], side.seconds[columns] * self._weight[id(side)], columns[:, None])
