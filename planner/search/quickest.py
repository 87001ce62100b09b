"""The columns in which a request takes least from its arrival to its last token, at a rate and within the devices.

Its mean time is that in an aggregated instance, or that in prefill, the transfer of its KV, and that in decode; but for
what KV waits for busy links, each depends on the column of its own side alone, so at every number of devices a side has
one best column. Columns begin with what a request takes at least (``instances.least``); those of the best choice are
solved until nothing of it is a bound. What was never solved takes longer than the choice, whatever stands beside it;
what the chosen plan's KV waits is left as the gap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.offers.choice import Aim, Choice
from planner.offers.columns import Side
from planner.search.proof import Bound, Pruned

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_RELATIVE = 1e-9


class Timed(Protocol):
    """A kind of instance that knows how long requests take."""

    def mean_seconds(self, instances: int, rate_per_second: float) -> float:
        """Mean seconds of a request in so many instances at their rate; infinite where a limit is missed."""
        ...


@dataclass(frozen=True, slots=True)
class Quickest:
    """The best choice of columns, and its mean seconds."""

    choice: Choice
    seconds: float


class TimedSide:
    """Columns of a side that may carry a rate, [columns]: what a request takes, or takes at least."""

    def __init__(self, side: Side, rate_per_second: float) -> None:
        """Bound every column that may carry the rate; the others take for ever."""
        assert side.offers.least is not None, "gathered for the objective latency"
        self.side, self.rate_per_second = side, rate_per_second
        able = np.flatnonzero(side.rate * side.unit >= rate_per_second * (1 - _RELATIVE))
        self.seconds: Floats = np.full(side.size, np.inf)
        each = rate_per_second / side.left[able]
        self.seconds[able] = side.offers.least.seconds(side.offer[able], each)
        self.solved = np.zeros(side.size, dtype=bool)
        self.bounds: Floats = self.seconds.copy()
        self.room_order: Ints = np.argsort(side.room, kind="stable")

    def solve(self, column: int) -> None:
        """Find how long requests take in a column."""
        kind: Timed = self.side.server(int(self.side.offer[column]))  # type: ignore[assignment]
        found = kind.mean_seconds(int(self.side.left[column]), self.rate_per_second)
        self.side.queues_solved += 1
        self.seconds[column], self.solved[column] = max(found, float(self.seconds[column])), True

    def staircase(self, most_devices: int) -> Ints:
        """Return the columns that none with as little room beats: falling seconds with rising room."""
        order = self.room_order[self.side.room[self.room_order] <= most_devices]
        seconds = self.seconds[order]
        before = np.minimum.accumulate(np.concatenate([[np.inf], seconds[:-1]]))
        return np.asarray(order[seconds < before * (1 - _RELATIVE)], dtype=np.int64)


def quickest(timed: Sequence[TimedSide], aim: Aim, known_seconds: float = math.inf) -> Quickest | None:
    """Return the choice of least mean seconds that fits the devices; of equals the fewest devices; None if none.

    One or two sides, from one budget or from one each; what is solved of them stays. With ``known_seconds`` of a choice
    of other sides None where none is quicker, which is known as soon as all bounds are above that.
    """
    while True:
        choice = _best(timed, aim)
        if choice is None or _seconds(timed, choice) >= known_seconds:
            return None
        opened = [(own, column) for own, column in zip(timed, choice, strict=True) if not own.solved[column]]
        if not opened:
            return Quickest(choice, _seconds(timed, choice))
        for own, column in opened:
            own.solve(column)
            if math.isinf(own.seconds[column]):
                break


def bound_over(parts: Sequence[Sequence[TimedSide]], aim: Aim, seconds: float, pruned: Sequence[Pruned] = ()) -> Bound:
    """Return the least seconds that any choice of any part can take, and the gap of a plan that takes ``seconds``.

    A plan takes longer than its columns by its waits for links. ``pruned`` is what has no columns.
    """
    values = [_seconds(timed, choice) for timed in parts if timed and (choice := _best(timed, aim)) is not None]
    value = min([seconds, *values])
    sides = {id(own): own for timed in parts for own in timed}.values()
    return Bound(
        objective="latency",
        value=value,
        gap=(seconds - value) / seconds,
        covers="the mean time from arrival to the last token in "
        + "; and in ".join(dict.fromkeys(_covers([own.side for own in timed]) for timed in parts if timed)),
        queues_solved=sum(own.side.queues_solved for own in sides),
        pruned=(*(each for own in sides for each in pruned_columns(own)), *pruned),
    )


def _seconds(timed: Sequence[TimedSide], choice: Choice) -> float:
    return sum(float(own.seconds[column]) for own, column in zip(timed, choice, strict=True))


def _best(timed: Sequence[TimedSide], aim: Aim) -> Choice | None:
    """Return the choice of least seconds by what is known, solved or bounded."""
    budgets = [own.side.machines.budget for own in timed]
    stairs = [own.staircase(aim.devices[budget]) for own, budget in zip(timed, budgets, strict=True)]
    if not all(stair.size for stair in stairs):
        return None
    if len(timed) == 1 or budgets[0] != budgets[1]:
        return tuple(int(stair[-1]) for stair in stairs)
    (one, other), (first, second) = timed, stairs
    left = aim.devices[budgets[0]] - one.side.room[first]
    place = np.searchsorted(other.side.room[second], left, side="right") - 1
    fits = place >= 0
    if not fits.any():
        return None
    first, beside = first[fits], second[place[fits]]
    sums = one.seconds[first] + other.seconds[beside]
    used = one.side.devices[first] + other.side.devices[beside]
    equal = sums <= sums.min() * (1 + _RELATIVE)
    best = int(np.lexsort((used, ~equal))[0])
    return int(first[best]), int(beside[best])


def _covers(sides: Sequence[Side]) -> str:
    columns = sum(side.size for side in sides)
    rows = " and ".join(f"{len(side.offers)} {side.role}" for side in sides)
    if len(sides) == 1:
        return (
            f"aggregated instances: {columns} columns, each so many of one of the {rows} rows in which a request alone "
            "is quicker than in the others, with every listed token budget; not over both shapes side by side"
        )
    return (
        f"separate prefill and decode pools: {columns} columns, each so many instances of one of the {rows} rows of "
        "the grid, with the largest batch that keeps the limits at the asked rate, which is the quickest, and prefill "
        "budgets that close in on the least mean, taken to fall and then to rise; waits for links that KV crosses are "
        "not in it"
    )


def pruned_columns(own: TimedSide) -> list[Pruned]:
    """Say how many columns were never solved, and under which bound."""
    alone = own.side.role.endswith("mixed")  # a fleet names its models, too
    slow = ~own.solved & np.isfinite(own.seconds)
    weak = ~own.solved & ~np.isfinite(own.seconds)
    found = []
    if slow.any():
        found.append(
            Pruned(
                what=f"{own.side.role} columns that take longer{'' if alone else ' with what fits beside them'}",
                number=int(slow.sum()),
                bound=float(own.seconds[slow].min()),
                unit="s",
                why="a request alone, and Little's law at the rate, bound its mean time from below",
            )
        )
    if weak.any():
        found.append(
            Pruned(
                what=f"{own.side.role} columns that do not carry the rate",
                number=int(weak.sum()),
                bound=own.rate_per_second,
                unit="requests/s",
                why=f"{90 if alone else 98} % of saturation bounds what they carry",
            )
        )
    return found
