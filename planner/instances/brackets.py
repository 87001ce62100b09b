"""The largest integer that keeps a limit, for many rows at once, given a measure that does not fall with the integer.

The measure is nearly linear, so the integers next to the crossing of the limit and a straight line between the ends of
the bracket are tried first. With few rows more integers are tried per call, which saves calls.

Then the best of one row, measured integer by integer: prompts of a prefill pass, requests of a decode batch. Latency
mostly falls and then rises: with a small pass or batch requests wait for their turn, with a large one for each other.
Where it is unimodal, a section search measures only a few integers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats, distinct
from planner.manifest.terms import Number
from planner.objective import LEAST_PART
from planner.serving.capacity import on_grid

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


Measured = tuple[float, float]  # how far beyond a limit, 1 within it, and a latency: the first decides
MeasureOfOne = Callable[[int], Measured]

_GOLDEN = (math.sqrt(5) - 1) / 2
_ALIKE, _SAME = 1e-6, 1e-9  # share of a measure, and of a rate, within which two are the same


def largest_carried(
    known: tuple[float, int],
    another: Callable[[float, int], int | None],
    capacity: Callable[[int, float], float],
    most: Floats,
) -> tuple[float, int]:
    """Return the largest rate that any integer carries, and that integer; rates below 1/1000 of the most count as none.

    A capacity is on the grid of rates or the upper bound of its integer. So no integer carries more once none carries
    the next such rate, and the answer depends neither on where the search begins nor on what it tries.

    Args:
        known: (capacity, integer) to begin with.
        another: finds an integer that carries a rate, given the last choice; None where none does.
        capacity: capacity of an integer, given a rate that it carries.
        most: [integers], upper bounds of their capacities.

    >>> import numpy as np
    >>> largest_carried((1.0, 0), lambda rate, n: 7 if rate <= 7 else None, lambda n, rate: 7.0, np.array([7.0]))
    (7.0, 7)
    """
    rate, number = known
    least = float(most.max(initial=0.0)) * LEAST_PART
    while (found := another(wanted := on_grid(max(rate, least), 1), number)) is not None:
        rate, number = max(capacity(found, wanted), wanted), found
    closer, best = distinct(most[(most > rate * (1 + _SAME)) & (most < wanted)]), number
    low, high = 0, closer.size
    while low < high:
        middle = (low + high) // 2
        found = another(float(closer[middle]), number)
        if found is None:
            high = middle
        else:
            rate, best, low = float(closer[middle]), found, middle + 1
    return rate, best


def least_of(measure: MeasureOfOne, low: int, high: int) -> tuple[int, Measured]:
    """Return an integer from ``low`` to ``high`` with the least measure, and that measure; infinite where all are.

    The measure is infinite up to some integer, then falls, then rises. Where two integers have the same measure within
    a millionth, the one in the middle tells a valley from a level, on which all between count as equal.

    >>> least_of(lambda n: (1.0, abs(n - 40) + 1.0), 1, 1000)
    (40, (1.0, 1.0))
    """
    known: dict[int, Measured] = {}

    def value(number: int) -> Measured:
        if number not in known:
            known[number] = measure(number)
        return known[number]

    while high > low:
        one, other = _inner(low, high)
        first, second = value(one), value(other)
        if second[0] == math.inf:
            low = other + 1
        elif not _alike(first, second):
            low, high = (one + 1, high) if first > second else (low, other - 1)
        elif _alike(middle := value((one + other) // 2), first) or middle > first:
            break
        else:
            low, high = one + 1, other - 1
    if low == high:
        value(low)
    best = min(known, key=lambda number: (known[number], number))
    return best, known[best]


def _alike(one: Measured, other: Measured) -> bool:
    return all(math.isclose(first, second, rel_tol=_ALIKE) for first, second in zip(one, other, strict=True))


def _inner(low: int, high: int) -> tuple[int, int]:
    """Return two different integers that divide a range by the golden section."""
    span = high - low
    one, other = high - round(span * _GOLDEN), low + round(span * _GOLDEN)
    if one >= other:
        one = max(low, other - 1)
        other = one + 1
    return one, other
