"""The largest integer that keeps a limit, for many rows at once, given a measure that does not fall with the integer.

The measure is nearly linear, so the integers next to the crossing of the limit and a straight line between the ends of
the bracket are tried first. With few rows more integers are tried per call, which saves calls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats
from planner.manifest.terms import Number

# Numbers that one array operation should have: fewer cost as much, for its call.
POINTS = 512
# Rows with a closed bracket are dropped when no more than this share is open.
_NARROWED = 0.75
# How far from the line both numbers are tried, in widths of the bracket, where the nearest two have not closed it.
_MARGIN = 0.05
# Steps in a row that may fail to halve a bracket before it is cut in three.
_PATIENCE = 3
Measure = Callable[[Number], Number]


@runtime_checkable
class Narrowing(Protocol):
    """A measure that can leave out rows."""

    def __call__(self, number: Number) -> Number:
        """Measure at [points, rows] numbers."""
        ...

    def of(self, rows: NDArray[np.int64]) -> Self:
        """Return the measure of some of the rows."""
        ...


@dataclass(slots=True)
class _Bracket:
    """Per row the largest integer known to keep the limit and the smallest known to miss it, with their measures."""

    limit: Floats
    low: Floats
    below: Floats
    above: Floats
    bottom: Floats
    top: Floats
    stalled: NDArray[np.int64]  # steps in a row that did not halve the bracket
    apart: bool = False  # whether guesses keep a distance from the line

    @classmethod
    def between(cls, limit: Number, low: Floats, high: Floats) -> Self:
        """Return brackets from ``low`` - 1 to ``high`` + 1 with no measures."""
        unknown, limits = np.full(low.shape, np.nan), np.broadcast_to(limit, low.shape)
        return cls(limits, low, low - 1, high + 1, unknown, unknown.copy(), np.zeros(low.shape, dtype=np.int64))

    def of(self, rows: NDArray[np.int64]) -> "_Bracket":
        """Return the brackets of some rows."""
        ends = self.below[rows], self.above[rows], self.bottom[rows], self.top[rows]
        return _Bracket(self.limit[rows], self.low[rows], *ends, self.stalled[rows], self.apart)

    @property
    def open(self) -> NDArray[np.int64]:
        """Rows that have numbers left to try."""
        return np.flatnonzero(self.above - self.below > 1)

    def narrow(self, tried: Floats, measured: Floats) -> None:
        """Narrow the brackets by measures at integers, each [points, rows]; integers outside a bracket are ignored."""
        width, rows = self.above - self.below, np.arange(self.below.size)
        inside, keeps = (tried > self.below) & (tried < self.above), measured <= self.limit
        lower, upper = np.where(inside & keeps, tried, self.below), np.where(inside & ~keeps, tried, self.above)
        best, worst = lower.argmax(axis=0), upper.argmin(axis=0)
        below, above = lower[best, rows], upper[worst, rows]
        self.bottom = np.where(below > self.below, measured[best, rows], self.bottom)
        self.top = np.where(above < self.above, measured[worst, rows], self.top)
        self.below, self.above = below, above
        self.stalled = np.where(above - below > width / 2, self.stalled + 1, 0)

    def guesses(self, points: int) -> Floats:
        """Return integers to try, [points, rows]: on both sides of the linear crossing of the limit, then evenly
        spaced.

        The two are neighbours at first, then a little apart, until that has failed to halve the bracket.
        """
        width = self.above - self.below
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.nan_to_num((self.limit - self.bottom) / (self.top - self.bottom), nan=0.5, posinf=0.5, neginf=0.5)
        line, margin = np.floor(self.below + width * part), np.floor(width * (_MARGIN if self.apart else 0.0))
        far, self.apart = self.stalled >= _PATIENCE, True
        tried = np.empty((points, width.size))
        tried[0] = np.where(far, np.floor(self.below + width / 3), line - margin)
        tried[1] = np.where(far, np.floor(self.below + width * 2 / 3), line + 1 + margin)
        shares = np.arange(1.0, points - 1)[:, None] / (points - 1)
        tried[2:] = np.floor(self.below + width * shares)
        inside: Floats = np.minimum(np.maximum(tried, self.below + 1), self.above - 1)
        return np.maximum(inside, self.low)


def largest(measure: Measure, limit: Number, low: Floats, high: Floats) -> Floats:
    """Return per row the largest integer in [low, high] with measure <= limit; low - 1 where there is none.

    Args: ``limit``, ``low`` and ``high`` [rows]; ``measure`` takes [points, rows], returns an array that broadcasts to
    it, and must not fall as a row's integer rises.
    """
    ends = np.stack([low, high])
    return largest_between(measure, limit, ends, ends, np.broadcast_to(np.asarray(measure(ends)), ends.shape))[0]


def largest_between(
    measure: Measure, limit: Number, ends: Floats, tried: Floats, measured: Floats, likely: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return ``largest`` and its measure, where some integers are measured already.

    Args: ``ends``: low and high, [2, rows]; ``tried``: integers, and ``measured``: their measures, each [points, rows];
    ``likely``: a guess of the measure at low, [rows]. The measure is undefined where no integer keeps the limit.
    """
    bracket = _Bracket.between(limit, ends[0], ends[1])
    if likely is not None:
        bracket.bottom = likely
    bracket.narrow(tried, measured)
    found, taken = bracket.below.copy(), bracket.bottom.copy()
    rows = np.arange(found.size)
    while (still := bracket.open).size:
        if isinstance(measure, Narrowing) and still.size <= _NARROWED * rows.size:
            measure, bracket, rows = measure.of(still), bracket.of(still), rows[still]
        numbers = bracket.guesses(max(POINTS // rows.size, 2))
        bracket.narrow(numbers, np.broadcast_to(np.asarray(measure(numbers)), numbers.shape))
        found[rows], taken[rows] = bracket.below, bracket.bottom
    return found, taken
