"""The best integer: prompts of a prefill pass, requests of a decode batch.

Latency mostly falls and then rises: with a small pass or batch requests wait for their turn, with a large one for each
other. Where latency is unimodal, a section search measures only a few integers.
"""

import math
from collections.abc import Callable

from ground.arrays import Floats, distinct
from planner.objective import LEAST_PART
from planner.serving.capacity import on_grid

Measured = tuple[float, float]  # how far beyond a limit, 1 within it, and a latency: the first decides
Measure = Callable[[int], Measured]

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


def least_of(measure: Measure, low: int, high: int) -> tuple[int, Measured]:
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
