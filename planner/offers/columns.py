"""Columns whose rate is solved only when it matters: a bound first, the queue where the bound is not enough.

A column is so many instances of one kind (an offer) in one role. Until its queue is solved its rate is a bound
that no queue passes; the best choice over bounds is solved, and again, until every column of it is solved. What is
then chosen is the best over all columns, for those that were never solved were counted at no less than they carry.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.instances.alignment import occupied_devices
from planner.instances.least import Least
from planner.offers.programme import Column, Objective
from planner.question import Machines
from planner.survival import Loss, lost_of_sizes
from podplan.records import dataclass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rates = Literal["bound", "guess", "exact"]
Choice = tuple[int, ...]
"""A column of each side."""
T = TypeVar("T")
_RELATIVE = 1e-9
_BELOW = 1e-6
"""By how much a column that does not carry a rate is counted below it."""
_SOLVED = 1.01
"""To which factor the rates of solved queues are known."""


class Server(Protocol):
    """What a kind of instance carries."""

    def pool_capacity(self, instances: int) -> float:
        """Largest rate of so many instances within the limits; 0 where there is none."""
        ...

    def pool_carries(self, instances: int, rate_per_second: float) -> bool:
        """Whether so many instances carry a rate within the limits."""
        ...

    def at(self, instances: int, rate_per_second: float | None = None) -> object:
        """The queue with the budget or cap with which so many instances carry most: what a plan is made of.

        With a rate, the one that is quickest at it.
        """
        ...

    @property
    def independent(self) -> bool:
        """Whether several instances carry just several times what one does."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A kind of instance: ``bound_per_second`` is what one of any number of them can carry at most.

    ``guess_per_second`` is about what it does carry: it only decides what is solved first.
    """

    devices: int
    bound_per_second: float
    build: Callable[[], Server]
    guess_per_second: float = math.inf
    layers: tuple[int, int] = (1, 1)
    """Attention TP and pipeline stages: what two roles must agree on in some engines."""


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """Kinds of instances as arrays, [offers]; thousands of them are made in one go and few are ever built.

    The fields are those of ``Offer``; ``layers`` is [offers, 2], and ``build`` makes the server of one by its number.
    """

    devices: Ints
    bound_per_second: Floats
    guess_per_second: Floats
    layers: Ints
    build: Callable[[int], Server]
    least: Least | None = None
    """How long requests take at least; None where nobody asks for the quickest."""

    def __len__(self) -> int:
        return int(self.devices.size)

    @classmethod
    def of(cls, offers: Sequence[Offer]) -> Self:
        """Return single offers as arrays."""
        return cls(
            devices=np.array([offer.devices for offer in offers], dtype=np.int64),
            bound_per_second=np.array([offer.bound_per_second for offer in offers], dtype=np.float64),
            guess_per_second=np.array([offer.guess_per_second for offer in offers], dtype=np.float64),
            layers=np.array([offer.layers for offer in offers], dtype=np.int64).reshape(-1, 2),
            build=partial(_of_list, offers),
        )

    @classmethod
    def joined(cls, parts: Sequence["Offers"]) -> Self:
        """Return the offers of several parts, in their order."""
        if not parts:
            return cls.of([])
        starts = np.cumsum([0, *(len(part) for part in parts)]).tolist()
        known = [part.least for part in parts if part.least is not None]
        return cls(
            devices=np.concatenate([part.devices for part in parts]),
            bound_per_second=np.concatenate([part.bound_per_second for part in parts]),
            guess_per_second=np.concatenate([part.guess_per_second for part in parts]),
            layers=np.concatenate([part.layers for part in parts]),
            build=partial(_of_parts, starts, [part.build for part in parts]),
            least=Least.joined(known) if len(known) == len(parts) else None,
        )

    @property
    def alone_seconds(self) -> Floats:
        """What a request alone takes at least, [offers]; of none where nobody asks for the quickest."""
        return np.zeros(0) if self.least is None else self.least.alone + self.least.fixed

    def select(self, index: Ints) -> "Offers":
        """Return some of the offers."""
        return Offers(
            devices=self.devices[index],
            bound_per_second=self.bound_per_second[index],
            guess_per_second=self.guess_per_second[index],
            layers=self.layers[index],
            build=partial(_of_some, index, self.build),
            least=None if self.least is None else self.least.select(index),
        )

    def with_layers(self, allowed: set[tuple[int, int]]) -> "Offers":
        """Return those whose attention TP and stages are among ``allowed``."""
        return self.select(np.flatnonzero([(tp, pp) in allowed for tp, pp in self.layers.tolist()]))

    def leading(self, most: int) -> list[int]:
        """Return the offers that carry most per device at their bounds, at most so many."""
        return [int(number) for number in np.argsort(-self.bound_per_second / self.devices, kind="stable")[:most]]

    def leading_of_each_size(self, most: int) -> list[int]:
        """Return of each number of devices the offers that carry most at their bounds, at most so many, the best first.

        Most is carried per device by the first.
        """
        order = np.lexsort((-self.bound_per_second, self.devices))
        sizes = self.devices[order]
        within = np.arange(order.size) - np.searchsorted(sizes, sizes)
        kept = order[within < most]
        return [int(n) for n in kept[np.argsort(-(self.bound_per_second / self.devices)[kept], kind="stable")]]


def _of_list(offers: Sequence[Offer], number: int) -> Server:
    """Make the server of a single offer."""
    return offers[number].build()


def _of_parts(starts: list[int], builds: list[Callable[[int], Server]], number: int) -> Server:
    """Make the server of an offer of parts that stand one after the other."""
    part = bisect_right(starts, number) - 1
    return builds[part](number - starts[part])


def _of_some(index: Ints, build: Callable[[int], Server], number: int) -> Server:
    """Make the server of one of the offers that ``index`` keeps."""
    return build(int(index[number]))


class Side:
    """All columns of one role as arrays, [columns]: devices, and rates in units of what the role has to carry."""

    def __init__(
        self,
        role: str,
        machines: Machines,
        offers: Offers,
        survive: Loss | None = None,
        unit_per_second: float = 1.0,
        most_instances: int | None = None,
    ) -> None:
        """Make a column of every offer and count that the devices hold; rates are in units of ``unit_per_second``."""
        self.role, self.machines, self.offers, self.unit = role, machines, offers, unit_per_second
        sizes = offers.devices
        lost = lost_of_sizes(survive, sizes, machines.devices_per_node)
        held = machines.devices // np.maximum(sizes, 1)
        if most_instances is not None:
            held = np.minimum(held, most_instances)
        counts = np.maximum(held - lost, 0)
        self.offer: Ints = np.repeat(np.arange(sizes.size), counts)
        within = np.arange(self.offer.size) - np.repeat(np.cumsum(counts) - counts, counts)
        self.left: Ints = within + 1  # instances that remain after the loss
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
        self.queues_solved = 0
        self.most_instances = most_instances
        self.beyond_grid = False
        self._servers: dict[int, Server] = {}
        self._stairs: dict[tuple[int, float, Rates], Ints] = {}
        """Staircases of the present rates, by what was asked."""

    @property
    def size(self) -> int:
        """Columns."""
        return int(self.offer.size)

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
            self.guess[same] = self.rate[same]
            return float(self.rate[column]) >= wanted
        if wanted > 0 and not server.pool_carries(left, wanted * self.unit):
            self.rate[column] = min(float(self.rate[column]), wanted * (1 - _BELOW))
            self._learn(offer, left, float(self.rate[column]), 1.0)
            return False
        # The bound is right for the queue; the root finder's last digits may pass it.
        self.rate[column] = min(server.pool_capacity(left) / self.unit, float(self.rate[column]))
        self._learn(offer, left, float(self.rate[column]), _SOLVED)
        self.exact[column], self.guess[column] = True, self.rate[column]
        return True

    def _learn(self, offer: int, left: int, rate: float, solved: float) -> None:
        """Guess that other numbers of a kind's instances carry as much each as ``left`` do, or no more than guessed.

        Fewer of them carry no more each, for arrivals that are dealt to fewer in turn are less even: that bounds them,
        by the factor ``solved`` where the rate is only known to it.
        """
        same = (self.offer == offer) & ~self.exact
        each = rate / left
        self.guess[same] = np.minimum(self.left[same] * each, self.guess[same])
        fewer = same & (self.left < left)
        self.rate[fewer] = np.minimum(self.left[fewer] * each * solved, self.rate[fewer])

    def rate_of_each(self, column: int) -> float:
        """Requests per second of one of the column's instances, of those that remain after a loss."""
        return float(self.rate[column]) * self.unit / int(self.left[column])

    @property
    def cost_per_hour(self) -> Floats:
        """Price of each column, devices where the chip has none."""
        return np.asarray(self.devices * device_cost(self.machines), dtype=np.float64)

    def rates(self, by: Rates) -> Floats:
        """Return bounds, guesses, or what is solved and 0 elsewhere; [columns]."""
        if by == "guess":
            return self.guess
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
        wanted = np.where(best > passed * (1 + _RELATIVE), best, np.inf)
        places = np.flatnonzero(able == wanted[self._size_of])  # of one size those with the best rate alone
        order = places[np.lexsort((~self.exact[self._rising[places]], self._size_of[places]))]
        first = np.diff(self._size_of[order], prepend=-1) > 0
        return np.asarray(self._rising[order[first]], dtype=np.int64)

    def column(self, number: int) -> Column:
        """Return one column for the integer programme."""
        return Column(
            role=self.role,
            candidate=int(self.offer[number]),
            instances=int(self.instances[number]),
            devices=int(self.devices[number]),
            unusable=int(self.room[number] - self.devices[number]),
            rate_per_second=float(self.rate[number]),
            pool=self.machines.budget,
            cost_per_hour=float(self.devices[number]) * device_cost(self.machines),
        )


def device_cost(machines: Machines) -> float:
    """Price of a device and hour; 1 where the chip has none."""
    price = machines.hardware.price_usd_per_chip_hour
    return price.value / machines.devices_per_chip if price else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a choice is for: an objective within budgets of devices, and the rate to carry where one is asked."""

    devices: Mapping[str, int]
    objective: Objective
    rate: float | None = None


def best_choice(sides: Sequence[Side], aim: Aim, least_rate: float = 0.0, by: Rates = "bound") -> Choice | None:
    """Return the best column of each side at their present bounds, guesses or solved rates; None where none fits.

    Most carried and then fewest devices, or fewest devices: in one pool all devices cost alike, and a side takes its
    devices from one pool. So at any rate each side's smallest sufficient column is best, and what all of them
    take together rises with the rate: the largest rate that fits is found by bisection over the columns' rates.
    """
    least = max(least_rate, (aim.rate or 0.0) * (1 - _RELATIVE))
    stairs = [side.staircase(aim.devices[side.machines.budget], least, by) for side in sides]
    if not all(own.size for own in stairs):
        return None
    rates = [side.rates(by)[own] for side, own in zip(sides, stairs, strict=True)]

    def smallest(rate: float) -> Choice | None:
        places = [int(np.searchsorted(own, rate)) for own in rates]
        if any(place >= own.size for place, own in zip(places, rates, strict=True)):
            return None
        choice = tuple(int(own[place]) for own, place in zip(stairs, places, strict=True))
        return choice if fits(sides, choice, aim.devices) else None

    choice = smallest(least)
    if choice is None or aim.objective != "throughput":
        return choice
    steps = np.sort(np.concatenate(rates))
    low, high = 0, int(np.searchsorted(steps, min(own[-1] for own in rates), side="right"))
    while low < high:
        middle = (low + high) // 2
        found = smallest(float(steps[middle]))
        choice, low, high = (choice, low, middle) if found is None else (found, middle + 1, high)
    return choice


def fits(sides: Sequence[Side], choice: Choice, devices: Mapping[str, int]) -> bool:
    """Whether chosen columns keep every pool's budget."""
    used: dict[str, int] = {}
    for side, column in zip(sides, choice, strict=True):
        used[side.machines.budget] = used.get(side.machines.budget, 0) + int(side.room[column])
    return all(count <= devices[budget] for budget, count in used.items())


def carried_by(sides: Sequence[Side], choice: Choice) -> float:
    """Requests per second of a choice: those of its slowest side."""
    return min(float(side.rate[column]) for side, column in zip(sides, choice, strict=True))


@dataclass(frozen=True, slots=True)
class Contest(Generic[T]):
    """How choices compare, of one model's columns or of a fleet's: the best by what is known of them, and what it is.

    ``best`` takes the least rate to carry and what rates are meant; it finds None where nothing fits.
    """

    aim: Aim
    best: Callable[[float, Rates], T | None]
    columns: Callable[[T], Iterable[tuple[Side, int]]]
    carried: Callable[[T], float]

    def likely(self) -> T | None:
        """Return the best choice by guesses, its queues solved; None where nothing fits. Good, not proven."""
        known = 0.0
        while True:
            choice = self.best(0.0, "guess")
            if choice is None or solve_open(self.columns(choice), self.aim.rate or known):
                return choice
            # What carries no more than a choice that is solved already need not be solved in full.
            known = self._exactly(known)

    def settle(self, least_rate: float = 0.0) -> T | None:
        """Return the best choice of all, its queues solved; None where nothing fits.

        Bounds are only ever solved where they hold the best choice, and only as far as tells whether it beats what was
        solved before; that begins with what is likely best, or with ``least_rate`` where that much is known to be
        carried otherwise.
        """
        found = self.likely() if not least_rate else None
        known = self.carried(found) if found is not None and self.aim.objective == "throughput" else least_rate
        while True:
            choice = self.best(known * (1 - _BELOW), "bound")
            wanted = self.aim.rate if self.aim.rate is not None else known * (1 - _BELOW)
            if choice is None or solve_open(self.columns(choice), wanted):
                return choice
            known = self._exactly(known)

    def _exactly(self, known: float) -> float:
        """Return the most that solved columns carry; ``known`` where none carry more or where it is not sought."""
        best = self.best(known, "exact") if self.aim.objective == "throughput" else None
        return known if best is None else max(known, self.carried(best))


def _contest(sides: Sequence[Side], aim: Aim) -> Contest[Choice]:
    return Contest(
        aim,
        best=lambda least, by: best_choice(sides, aim, least, by),
        columns=lambda choice: zip(sides, choice, strict=True),
        carried=lambda choice: carried_by(sides, choice),
    )


def likely(sides: Sequence[Side], aim: Aim) -> Choice | None:
    """Return the best choice by guesses, as ``Contest.likely``."""
    return _contest(sides, aim).likely()


def settle(sides: Sequence[Side], aim: Aim, least_rate: float = 0.0) -> Choice | None:
    """Return the best choice over all columns, as ``Contest.settle``."""
    return _contest(sides, aim).settle(least_rate)


def solve_open(chosen: Iterable[tuple[Side, int]], wanted: float) -> bool:
    """Solve what of chosen columns is not solved, until one does not carry ``wanted``; whether nothing was open."""
    opened = [(side, column) for side, column in chosen if not side.exact[column]]
    for side, column in opened:
        if not side.solve(column, wanted):
            break
    return not opened
