"""Columns with lazily solved rates: an upper bound first, the queue only where the bound does not decide.

A column is a number of instances of one offer in one role. Until its queue is solved its rate is an upper bound;
``programme.programme`` solves the queues of columns that it would choose. With the latency objective the mean time of a
request likewise starts as a lower bound (``instances.least``).
"""

from dataclasses import replace
from functools import cache, cached_property
from typing import Literal, NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from planner.instances.alignment import lost_instances, occupied_devices
from planner.instances.space import Role
from planner.objective import LEAST_PART
from planner.offers.offer import Offers, Server
from planner.question import Loss, Machines

Rates = Literal["bound", "guess", "tried", "exact"]
RELATIVE = 1e-9  # relative difference below which rates are equal
BELOW = 1e-6  # relative distance below a rate to which a column that does not carry the rate is bounded

_LOWER = 0.64  # factor on a guess that few requests show to be too high, where no offer leads yet
_LOWEST = 1 / 32  # part of the bound down to which guesses are lowered so


class Side:
    """All columns of one role as arrays, [columns]: devices, and rates in units of the role's asked rate."""

    def __init__(
        self,
        role: Role,
        machines: Machines,
        offers: Offers,
        survive: Loss | None = None,
        unit_per_second: float = 1.0,
        allowed: range | None = None,
        model: str = "",
    ) -> None:
        """Make a column for each offer and number of instances that the devices hold.

        Rates are in units of ``unit_per_second``; ``allowed`` are the numbers of instances that a plan may have;
        ``model`` is the name of the model in a fleet.
        """
        self.role, self.machines, self.offers, self.unit = role, machines, offers, unit_per_second
        self.model, self.survive = model, survive
        sizes = offers.devices
        held = machines.devices // np.maximum(sizes, 1)
        if machines.share:
            held = machines.devices // machines.share * (machines.share // np.maximum(sizes, 1))
        held, fewest = (held, 1) if allowed is None else (np.minimum(held, allowed.stop - 1), allowed.start)
        counts = np.maximum(held - fewest + 1, 0)
        offer = np.repeat(np.arange(sizes.size), counts)
        instances = np.arange(offer.size) - np.repeat(np.cumsum(counts) - counts, counts) + fewest
        left = instances - lost_instances(survive, machines, sizes[offer], instances)
        room = occupied_devices(machines, sizes[offer], instances)
        kept = (left > 0) & (room <= machines.devices)  # and more than with an instance less
        kept[1:] &= (offer[1:] != offer[:-1]) | (left[1:] > left[:-1])
        self.offer: Ints = offer[kept]
        self.instances: Ints = instances[kept]
        self.left: Ints = left[kept]  # instances that remain after the loss
        self.devices: Ints = self.instances * sizes[self.offer]
        self.room: Ints = room[kept]
        self._rising: Ints = np.argsort(self.room, kind="stable")  # columns of equal room are adjacent
        steps = np.diff(self.room[self._rising], prepend=-1) > 0
        self._size_starts: Ints = np.flatnonzero(steps)
        self._size_of: Ints = np.cumsum(steps) - 1
        bounds = offers.bound_per_second / unit_per_second
        self.rate: Floats = self.left * bounds[self.offer]
        guesses = np.minimum(offers.guess_per_second / unit_per_second, bounds)
        self.guess: Floats = self.left * guesses[self.offer]
        self.exact = np.zeros(self.offer.size, dtype=bool)
        self.timed = np.zeros(self.offer.size, dtype=bool)
        self._tried = np.zeros(sizes.size, dtype=bool)  # offers with a solved column
        self._quick = False
        self._estimated = np.zeros(sizes.size, dtype=bool)  # offers that few requests were played for
        self.queues_solved = 0
        self.allowed = allowed
        self.beyond_grid = False
        self._servers: dict[int, Server] = {}
        self._carried: dict[int, float] = {}  # largest rate that a column is known to carry, by column
        self._stairs: dict[tuple[int, float, Rates], Ints] = {}  # staircases of the current rates, by arguments

    @property
    def size(self) -> int:
        """Number of columns."""
        return int(self.offer.size)

    @property
    def label(self) -> str:
        """The role, with the model's name before it in a fleet."""
        return f"{self.model} {self.role}" if self.model else self.role

    def of(self, offers: Offers, machines: Machines | None = None, *, spares: bool = True) -> "Side":
        """Return the columns of other offers in the same role; without ``spares`` no loss has to be survived."""
        survive = self.survive if spares else None
        return Side(self.role, machines or self.machines, offers, survive, self.unit, self.allowed, self.model)

    def on(self, machines: Machines) -> "Side":
        """Return the columns of the same offers on a part of the machines; servers are shared."""
        part = self.of(self.offers, machines)
        part._servers = self._servers
        return part

    def beyond(self, offers: Offers) -> "Side":
        """Return the columns of offers beyond the grid on the same machines."""
        wider = self.of(replace(offers, build=cache(offers.build)))
        wider.beyond_grid = True
        return wider

    def server(self, offer: int) -> Server:
        """Return the server of an offer, built once."""
        if offer not in self._servers:
            self._servers[offer] = self.offers.build(offer)
        return self._servers[offer]

    def chosen(self, column: int, rate_per_second: float | None = None) -> object:
        """Return the server of a column as planned: with the largest capacity, or quickest at a rate."""
        return self.server(int(self.offer[column])).at(int(self.left[column]), rate_per_second)

    def solve(self, column: int, wanted: float) -> bool:
        """Solve a column's queue if it carries ``wanted``, else bound it below; return whether it carries that."""
        offer, left = int(self.offer[column]), int(self.left[column])
        server = self.server(offer)
        self.queues_solved += 1
        self._stairs.clear()
        if server.independent:
            same = self.offer == offer
            self.rate[same] = np.minimum(self.left[same] * server.pool_capacity(1) / self.unit, self.rate[same])
            self.exact |= same
            self._quick = True
            self.guess[same] = self.rate[same]
            return float(self.rate[column]) >= wanted
        if wanted > 0 and not self.carries(column, wanted):
            return False
        # The bound holds for the queue; the root finder's last digits may exceed it.
        self.rate[column] = min(server.pool_capacity(left) / self.unit, float(self.rate[column]))
        self._learn(offer, left, float(self.rate[column]))
        self.exact[column], self.guess[column], self._tried[offer] = True, self.rate[column], True
        return True

    def estimate(self, column: int, most_room: float, known: float = 0.0) -> bool:
        """Guess the rates of a column's offer from few played requests, once; return whether guesses have changed.

        A rate below that of an offer which is guessed so, and fits ``most_room``, is not told exactly. Until there is
        one, an offer that does not carry a little less than its guess waits: late instances are soon known to be late.
        """
        offer, left = int(self.offer[column]), int(self.left[column])
        if self.exact[column] or self._estimated[offer]:
            return False
        rivals = self._estimated[self.offer] & (self.room <= most_room)
        led = float(self.guess[rivals].max(initial=known)) * self.unit
        guess = float(self.guess[column])
        lower = _LOWER * guess * self.unit if guess > _LOWEST * float(self.rate[column]) else 0.0
        likely = self.server(offer).likely_capacity(left, led, lower)
        self._estimated[offer] = bool(led) or likely is None or likely >= lower
        if likely is None:
            return False
        same = (self.offer == offer) & ~self.exact
        self.guess[same] = np.minimum(self.left[same] * (likely / left / self.unit), self.rate[same])
        self._stairs.clear()
        return True

    def forgo(self, column: int) -> bool:
        """Guess that a column's offer carries nothing if no requests were played for it; return whether it was so."""
        offer = int(self.offer[column])
        if self.exact[column] or self._estimated[offer] or not self.guess[column]:
            return False
        self.guess[(self.offer == offer) & ~self.exact] = 0.0
        self._stairs.clear()
        return True

    def carries(self, column: int, wanted: float) -> bool:
        """Return whether a column carries ``wanted``; if not, bound it below."""
        offer, left = int(self.offer[column]), int(self.left[column])
        if self.exact[column]:
            return float(self.rate[column]) >= wanted
        if self.server(offer).independent:
            return self.solve(column, wanted)
        if self._carried.get(column, 0.0) >= wanted:
            return True
        if self.server(offer).pool_carries(left, wanted * self.unit):
            self._carried[column] = wanted
            return True
        self._stairs.clear()
        self.rate[column] = min(float(self.rate[column]), wanted * (1 - BELOW))
        self._learn(offer, left, float(self.rate[column]))
        return False

    def carries_any(self, column: int) -> bool:
        """Return whether a column carries the least rate that is told from none; if not, it and smaller ones do not."""
        if self.carries(column, LEAST_PART * float(self.rate[column])):
            return True
        self.rate[(self.offer == self.offer[column]) & (self.left <= self.left[column])] = 0.0
        return False

    def widest(self, column: int, most_room: float) -> int:
        """Return the column with the most instances of the same offer within ``most_room``, or the column itself."""
        alike = slice(column, int(np.searchsorted(self.offer, self.offer[column], side="right")))
        return max(column + int(np.searchsorted(self.room[alike], most_room, side="right")) - 1, column)

    def _learn(self, offer: int, left: int, rate: float) -> None:
        """Set guesses of an offer's other columns from the rate per instance of ``left`` instances, if it is lower.

        Columns with fewer instances are also bounded by it: arrivals dealt to fewer instances are less even.
        """
        same = (self.offer == offer) & ~self.exact
        each = rate / left
        self.guess[same] = np.minimum(self.left[same] * each, self.guess[same])
        fewer = same & (self.left < left)
        self.rate[fewer] = np.minimum(self.left[fewer] * each, self.rate[fewer])

    def rate_of_each(self, column: int) -> float:
        """Requests per second of one of the column's instances that remain after a loss."""
        return float(self.rate[column]) * self.unit / int(self.left[column])

    @cached_property
    def seconds(self) -> Floats:
        """Seconds of a request at the asked rate: solved where ``timed``, else a lower bound; infinite if too slow."""
        assert self.offers.least is not None, "gathered for an objective that times requests"
        able = np.flatnonzero(self.rate >= 1 - RELATIVE)
        found = np.full(self.size, np.inf)
        found[able] = self.offers.least.seconds(self.offer[able], self.unit / self.left[able])
        return found

    def time(self, column: int) -> float:
        """Solve and return the mean seconds of a request in a column at the asked rate."""
        found = self.server(int(self.offer[column])).mean_seconds(int(self.left[column]), self.unit)
        self.queues_solved += 1
        self.seconds[column], self.timed[column] = max(found, float(self.seconds[column])), True
        return float(self.seconds[column])

    def quickest(self, most_devices: int) -> Ints:
        """Return the columns that no other dominates: seconds fall as room rises."""
        order = self._rising[self.room[self._rising] <= most_devices]
        seconds = self.seconds[order]
        before = np.minimum.accumulate(np.concatenate([[np.inf], seconds[:-1]]))
        return np.asarray(order[seconds < before * (1 - RELATIVE)], dtype=np.int64)

    def rates(self, by: Rates) -> Floats:
        """Return bounds, guesses, guesses of offers with a solved column, or solved rates, else 0; [columns]."""
        if by == "guess":
            return self.guess
        if by == "tried":  # queues of independent instances are solved at once
            return self.guess if self._quick else np.where(self._tried[self.offer], self.guess, 0.0)
        return np.where(self.exact, self.rate, 0.0) if by == "exact" else self.rate

    def staircase(self, most_devices: int, least_rate: float, by: Rates = "bound") -> Ints:
        """Return the columns that no other dominates: rate falls with room."""
        asked = most_devices, least_rate, by
        if asked not in self._stairs:  # mostly only one side has changed since the last call
            self._stairs[asked] = self._staircase(*asked)
        return self._stairs[asked]

    def _staircase(self, most_devices: int, least_rate: float, by: Rates) -> Ints:
        rates = self.rates(by)
        if not self.size:
            return self._rising
        able = np.where((self.room <= most_devices) & (rates >= least_rate), rates, 0.0)[self._rising]
        best = np.maximum.reduceat(able, self._size_starts)  # [sizes]
        passed = np.concatenate([[0.0], np.maximum.accumulate(best)[:-1]])
        wanted = np.where(best > passed * (1 + RELATIVE), best, np.inf)
        places = np.flatnonzero(able == wanted[self._size_of])  # only the best rates of each size
        order = places[np.lexsort((~self.exact[self._rising[places]], self._size_of[places]))]
        first = np.diff(self._size_of[order], prepend=-1) > 0
        return np.asarray(self._rising[order[first]], dtype=np.int64)


Way = tuple[Side, ...]  # a side of each role of a model, or one of aggregated instances


class Pick(NamedTuple):
    """The choice for a model: the index of its way, and a column of each side."""

    way: int
    columns: tuple[int, ...]


Picks = tuple[Pick, ...]  # one pick per model
