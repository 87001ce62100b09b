"""The best integer: prompts of a prefill pass, requests of a decode batch.

Latency mostly falls and then rises: with a small pass or batch requests wait for their turn, with a large one for each
other. Where latency is unimodal, a section search measures only a few integers.
"""

import math
from collections.abc import Callable

from planner.serving.capacity import STEP

Measured = tuple[float, float]
"""How far beyond a limit, 1 within it, and a latency: the first decides."""
Measure = Callable[[int], Measured]

_GOLDEN = (math.sqrt(5) - 1) / 2
_ALIKE = 1e-6
"""Share of a measure within which two are the same."""


def largest_carried(
    known: tuple[float, int],
    another: Callable[[float, int], int | None],
    capacity: Callable[[int, float], float],
    least_rate: float,
) -> tuple[float, int]:
    """Return the largest rate that any integer carries, to within ``STEP``, and that integer.

    Args:
        known: (capacity, integer) to begin with.
        another: finds an integer that carries a rate, given the last choice; None where none does.
        capacity: capacity of an integer, given a rate that it carries.
        least_rate: rate below which all capacities count as equal.

    >>> largest_carried((1.0, 0), lambda rate, n: 7 if rate <= 7 else None, lambda n, rate: 7.0, 0.0)
    (7.0, 7)
    """
    rate, number = known
    while (found := another(wanted := max(rate, least_rate) * math.exp(STEP), number)) is not None:
        rate, number = max(capacity(found, wanted), wanted), found
    return rate, number


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
