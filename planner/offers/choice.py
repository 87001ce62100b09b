"""The best choice of columns: over bounds, and again, until every column of it is solved.

What is then chosen is the best over all columns, for those that were never solved were counted at no less than they
carry.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from planner.offers.columns import BELOW, RELATIVE, Rates, Side
from planner.offers.programme import Objective

Choice = tuple[int, ...]
"""A column of each side."""
T = TypeVar("T")


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
    least = max(least_rate, (aim.rate or 0.0) * (1 - RELATIVE))
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
        """Return the best choice by guesses, its queues solved; None where nothing fits. Good, not proven.

        Of kinds that are solved already it is known well what other numbers of them carry: these come first, for the
        more is known the less it takes to tell that others carry less.
        """
        known = 0.0
        while True:
            choice = self.best(known, "tried") if known else None
            if choice is None or all(side.exact[column] for side, column in self.columns(choice)):
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
            choice = self.best(known * (1 - BELOW), "bound")
            wanted = self.aim.rate if self.aim.rate is not None else known * (1 - BELOW)
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


def sufficient(sides: Sequence[Side], aim: Aim) -> Choice | None:
    """Return columns that carry the asked rate, the first that are found; None where none is likely to.

    The best guess comes first, for it most likely carries enough. How much columns carry is solved of those only that
    carry the rate: a search tells rates up to a root's tolerance short of that, and has to come to the same.
    """
    most, rate = replace(aim, objective="throughput"), (aim.rate or 0.0) * (1 - RELATIVE)
    while (choice := best_choice(sides, most, by="guess")) is not None:
        chosen = list(zip(sides, choice, strict=True))
        if not all(side.carries(column, rate) for side, column in chosen):
            continue
        solve_open(chosen, rate)
        if carried_by(sides, choice) >= rate:
            break
    return choice


def solve_open(chosen: Iterable[tuple[Side, int]], wanted: float) -> bool:
    """Solve what of chosen columns is not solved, until one does not carry ``wanted``; whether nothing was open."""
    opened = [(side, column) for side, column in chosen if not side.exact[column]]
    for side, column in opened:
        if not side.solve(column, wanted):
            break
    return not opened
