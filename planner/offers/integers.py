"""The best integer: prompts of a prefill pass, requests of a decode batch.

Latency mostly falls and then rises: with a small pass or batch requests wait for their turn, with a large one for each
other. Where latency is unimodal, a section search measures only a few integers.
"""

import math
from collections.abc import Callable

from planner.serving.capacity import STEP

Measure = Callable[[int], float]

_GOLDEN = (math.sqrt(5) - 1) / 2


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


def least_of(measure: Measure, low: int, high: int) -> tuple[int, float]:
    """Return an integer from ``low`` to ``high`` with the least measure, and that measure; infinite where all are.

    The measure falls and then rises, and may be infinite at either end. Where two integers have the same measure within
    a millionth, all between count as equal.

    >>> least_of(lambda n: abs(n - 40) + 1.0, 1, 1000)
    (40, 1.0)
    """
    known: dict[int, float] = {}

    def value(number: int) -> float:
        if number not in known:
            known[number] = measure(number)
        return known[number]

    while high > low:
        one, other = _inner(low, high, low)
        first, second = value(one), value(other)
        if math.isclose(first, second, rel_tol=1e-6):
            break
        low, high = (one + 1, high) if first > second else (low, other - 1)
    if not known or (low == high and low not in known):
        value(low)
    best = min(known, key=lambda number: (known[number], number))
    return best, known[best]


def _inner(low: int, high: int, tried: int) -> tuple[int, int]:
    """Return two different integers inside a range, one of them ``tried`` where that divides it well."""
    span = high - low
    one, other = high - round(span * _GOLDEN), low + round(span * _GOLDEN)
    if span >= 4 and low + span // 4 <= tried <= high - span // 4:
        one, other = (tried, other) if tried < other else (one, tried)
    if one >= other:
        one = max(low, other - 1)
        other = one + 1
    return (one, other) if one != other else (low, high)
