"""Columns whose rate is solved only when it matters: a bound first, the queue where the bound is not enough.

A column is so many instances of one kind (an offer) in one role. Until its queue is solved its rate is a bound
that no queue passes; ``programme.programme`` asks for the queues of what it would choose. So it is with the mean time
of a request, where that is what is made small: it is bounded by what a request takes at least (``instances.least``).
"""

from dataclasses import replace
from functools import cache, cached_property
from typing import Literal, Protocol

import numpy as np

from ground.arrays import Floats, Ints
from planner.instances.alignment import occupied_devices
from planner.instances.space import Role
from planner.offers.offer import Offers, Server
from planner.question import Loss, Machines, lost_of_sizes

Rates = Literal["bound", "guess", "tried", "exact"]
RELATIVE = 1e-9
"""Rates nearer than this are one."""
BELOW = 1e-6
"""By how much a column that does not carry a rate is counted below it."""


class Timed(Protocol):
    """A kind of instance that knows how long requests take."""

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean seconds of a request in so many instances at their rate; infinite where a limit is missed."""
        ...


class Side:
    """All columns of one role as arrays, [columns]: devices, and rates in units of what the role has to carry."""

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
        """Make a column of every offer and count that the devices hold; rates are in units of ``unit_per_second``.

        ``allowed`` are the numbers of instances that there may be; ``model`` names the model of a fleet that they
        serve.
        """
        self.role, self.machines, self.offers, self.unit = role, machines, offers, unit_per_second
        self.model, self.survive = model, survive
        sizes = offers.devices
        lost = lost_of_sizes(survive, sizes, machines.devices_per_node)
        held = machines.devices // np.maximum(sizes, 1)
        fewest = np.ones_like(held)
        if allowed is not None:
            held, fewest = np.minimum(held, allowed.stop - 1), np.maximum(allowed.start - lost, 1)
        counts = np.maximum(held - lost - fewest + 1, 0)
        self.offer: Ints = np.repeat(np.arange(sizes.size), counts)
        within = np.arange(self.offer.size) - np.repeat(np.cumsum(counts) - counts, counts)
        self.left: Ints = within + fewest[self.offer]  # instances that remain after the loss
        self.instances: Ints = self.left + lost[self.offer]
        self.devices: Ints = self.instances * sizes[self.offer]
        self.room: Ints = occupied_devices(machines, sizes[self.offer], self.instances)
        self._rising: Ints = np.argsort(self.room, kind="stable")  # columns of one room stand together
        steps = np.diff(self.room[self._rising], prepend=-1) > 0
        self._size_starts: Ints = np.flatnonzero(steps)
        self._size_of: Ints = np.cumsum(steps) - 1
        bounds = offers.bound_per_second / unit_per_second
        self.rate: Floats = self.left * bounds[self.offer]
        guesses = np.minimum(offers.guess_per_second / unit_per_second, bounds)
        self.guess: Floats = self.left * guesses[self.offer]
        self.exact = np.zeros(self.offer.size, dtype=bool)
        self.timed = np.zeros(self.offer.size, dtype=bool)
        self._tried = np.zeros(sizes.size, dtype=bool)  # kinds of which a column is solved
        self._quick = False
        self.queues_solved = 0
        self.allowed = allowed
        self.beyond_grid = False
        self._servers: dict[int, Server] = {}
        self._carried: dict[int, float] = {}
        """Rates that columns are known to carry."""
        self._stairs: dict[tuple[int, float, Rates], Ints] = {}
        """Staircases of the present rates, by what was asked."""

    @property
    def size(self) -> int:
        """Columns."""
        return int(self.offer.size)

    @property
    def label(self) -> str:
        """The role, with the model's name before it in a fleet."""
        return f"{self.model} {self.role}" if self.model else self.role

    def of(self, offers: Offers) -> "Side":
        """Return the columns of other offers in the same role."""
        return Side(self.role, self.machines, offers, self.survive, self.unit, self.allowed, self.model)

    def without_spares(self) -> "Side":
        """Return the columns as they are where no loss has to be survived."""
        return Side(self.role, self.machines, self.offers, None, self.unit, self.allowed, self.model)

    def with_more(self, offers: Offers) -> "Side":
        """Return the columns with those of further offers behind them; what is solved stays."""
        joined = Offers.joined([self.offers, offers])
        wider = self.of(replace(joined, build=cache(joined.build)))
        for mine, theirs in ((wider.rate, self.rate), (wider.guess, self.guess), (wider.exact, self.exact)):
            mine[: self.size] = theirs
        wider._tried[: len(self.offers)] = self._tried
        wider._quick, wider._servers, wider.queues_solved = self._quick, dict(self._servers), self.queues_solved
        wider.beyond_grid = True
        return wider

    def server(self, offer: int) -> Server:
        """Return the server of an offer, built once."""
        if offer not in self._servers:
            self._servers[offer] = self.offers.build(offer)
        return self._servers[offer]

    def chosen(self, column: int, rate_per_second: float | None = None) -> object:
        """Return the queue of a column as the plan runs it: as carries most, or is quickest at a rate."""
        return self.server(int(self.offer[column])).at(int(self.left[column]), rate_per_second)

    def solve(self, column: int, wanted: float) -> bool:
        """Solve a column's queue where it carries ``wanted``; otherwise bound it below that. Whether it does."""
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
        # The bound is right for the queue; the root finder's last digits may pass it.
        self.rate[column] = min(server.pool_capacity(left) / self.unit, float(self.rate[column]))
        self._learn(offer, left, float(self.rate[column]))
        self.exact[column], self.guess[column], self._tried[offer] = True, self.rate[column], True
        return True

    def carries(self, column: int, wanted: float) -> bool:
        """Whether a column carries ``wanted``; otherwise it is bounded below that."""
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

    def widest(self, column: int, most_room: float) -> int:
        """Return the column with most instances of the same kind within so much room, or the column itself."""
        alike = slice(column, int(np.searchsorted(self.offer, self.offer[column], side="right")))
        return max(column + int(np.searchsorted(self.room[alike], most_room, side="right")) - 1, column)

    def _learn(self, offer: int, left: int, rate: float) -> None:
        """Guess that other numbers of a kind's instances carry as much each as ``left`` do, or no more than guessed.

        Fewer of them carry no more each, for arrivals that are dealt to fewer in turn are less even: that bounds them.
        """
        same = (self.offer == offer) & ~self.exact
        each = rate / left
        self.guess[same] = np.minimum(self.left[same] * each, self.guess[same])
        fewer = same & (self.left < left)
        self.rate[fewer] = np.minimum(self.left[fewer] * each, self.rate[fewer])

    def rate_of_each(self, column: int) -> float:
        """Requests per second of one of the column's instances, of those that remain after a loss."""
        return float(self.rate[column]) * self.unit / int(self.left[column])

    @cached_property
    def seconds(self) -> Floats:
        """What a request takes at the unit's rate, solved where ``timed``, else at least; infinite without capacity."""
        assert self.offers.least is not None, "gathered for an objective that times requests"
        able = np.flatnonzero(self.rate >= 1 - RELATIVE)
        found = np.full(self.size, np.inf)
        found[able] = self.offers.least.seconds(self.offer[able], self.unit / self.left[able])
        return found

    def time(self, column: int) -> float:
        """Find how long requests take in a column at the unit's rate, and return it."""
        kind: Timed = self.server(int(self.offer[column]))  # type: ignore[assignment]
        found = kind.mean_seconds(int(self.left[column]), self.unit)
        self.queues_solved += 1
        self.seconds[column], self.timed[column] = max(found, float(self.seconds[column])), True
        return float(self.seconds[column])

    def quickest(self, most_devices: int) -> Ints:
        """Return the columns that none with as little room beats: falling seconds with rising room."""
        order = self._rising[self.room[self._rising] <= most_devices]
        seconds = self.seconds[order]
        before = np.minimum.accumulate(np.concatenate([[np.inf], seconds[:-1]]))
        return np.asarray(order[seconds < before * (1 - RELATIVE)], dtype=np.int64)

    def rates(self, by: Rates) -> Floats:
        """Return bounds, guesses, those of kinds with a solved column, or what is solved; 0 elsewhere; [columns]."""
        if by == "guess":
            return self.guess
        if by == "tried":  # queues of one instance alone are solved at once
            return self.guess if self._quick else np.where(self._tried[self.offer], self.guess, 0.0)
        return np.where(self.exact, self.rate, 0.0) if by == "exact" else self.rate

    def staircase(self, most_devices: int, least_rate: float, by: Rates = "bound") -> Ints:
        """Return the columns that no other matches in as little room: falling rate with falling devices."""
        asked = most_devices, least_rate, by
        if asked not in self._stairs:  # mostly one side alone has changed since it was asked last
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
        places = np.flatnonzero(able == wanted[self._size_of])  # of one size those with the best rate alone
        order = places[np.lexsort((~self.exact[self._rising[places]], self._size_of[places]))]
        first = np.diff(self._size_of[order], prepend=-1) > 0
        return np.asarray(self._rising[order[first]], dtype=np.int64)
