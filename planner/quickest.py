"""The columns in which a request takes least from its arrival to its last token, at a rate and within the devices.

Its mean time is that in prefill, the transfer of its KV, and that in decode; but for what KV waits for busy links, each
depends on the column of its own side alone, so at every number of devices a side has one best column. Columns begin
with what a request takes at least (``planner.least``); those of the best choice are solved until nothing of it is a
bound. What was never solved takes longer than the choice, whatever stands beside it; what the chosen plan's KV waits
is left as the gap.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.columns import Aim, Choice, Side
from planner.proof import Bound, Pruned
from podplan.records import dataclass

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
    """The best choice of columns, its mean seconds, and the bound on all choices."""

    choice: Choice
    seconds: float
    bound: Bound


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


def quickest(timed: Sequence[TimedSide], aim: Aim) -> Quickest | None:
    """Return the choice of least mean seconds that fits the devices; of equals the fewest devices; None if none.

    One or two sides, from one budget or from one each; what is solved of them stays.
    """
    while True:
        choice = _best(timed, aim)
        if choice is None:
            return None
        opened = [(own, column) for own, column in zip(timed, choice, strict=True) if not own.solved[column]]
        if not opened:
            return Quickest(choice, _seconds(timed, choice), _bound(timed, aim, choice))
        for own, column in opened:
            own.solve(column)
            if math.isinf(own.seconds[column]):
                break


def reached(bound: Bound, seconds: float) -> Bound:
    """Return the bound with the gap that a plan leaves, which takes so long with its waits for links."""
    return replace(bound, gap=max(seconds - bound.value, 0.0) / seconds)


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


def _bound(timed: Sequence[TimedSide], aim: Aim, choice: Choice) -> Bound:
    """Return the least seconds that any choice can take, which is that of the best by bounds, and what was left."""
    reached = _seconds(timed, choice)
    least = _best(timed, aim)
    value = reached if least is None else _seconds(timed, least)
    return Bound(
        objective="latency",
        value=value,
        gap=abs(value - reached) / reached,
        covers=_covers([own.side for own in timed]),
        queues_solved=sum(own.side.queues_solved for own in timed),
        pruned=tuple(each for own in timed for each in _pruned(own)),
    )


def _covers(sides: Sequence[Side]) -> str:
    rows = " and ".join(f"{len(side.offers)} {side.role}" for side in sides)
    return (
        "the mean time from arrival to the last token in separate prefill and decode pools: "
        f"{sum(side.size for side in sides)} columns, each so many instances of one of the {rows} rows, with every "
        "budget and batch that keeps the limits at the asked rate; waits for links that KV crosses are not in the bound"
    )


def _pruned(own: TimedSide) -> list[Pruned]:
    """Say how many columns were never solved, and under which bound."""
    slow = ~own.solved & np.isfinite(own.seconds)
    weak = ~own.solved & ~np.isfinite(own.seconds)
    found = []
    if slow.any():
        found.append(
            Pruned(
                what=f"{own.side.role} columns that take longer with what fits beside them",
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
                why="98 % of saturation bounds what they carry",
            )
        )
    return found
