"""The whole number at which a measure is least: budgets of a prefill pass, requests of a decode batch.

Service levels fall and then rise in both: a small pass or batch leaves requests waiting, a large one makes those beside
them wait. So of a range only as many numbers are measured as it takes to close in on the least.
"""

import math
from collections.abc import Callable

Measure = Callable[[int], float]

_GOLDEN = (math.sqrt(5) - 1) / 2


def first_within(measure: Measure, low: int, high: int, start: int, limit: float) -> int | None:
    """Return a number from ``low`` to ``high`` whose measure keeps the limit; None where the least one does not.

    ``start`` is tried first. The measure falls and then rises, and may be infinite before it falls; each number is
    measured once.

    >>> first_within(lambda n: (n - 40) ** 2, 1, 1000, 900, 1.0)
    39
    """
    known: dict[int, float] = {}

    def value(number: int) -> float:
        if number not in known:
            known[number] = measure(number)
        return known[number]

    if low > high:
        return None
    start = min(max(start, low), high)
    if value(start) <= limit:
        return start
    while high > low:
        one, other = _inner(low, high, start)
        start = other if value(one) > value(other) or math.isinf(value(one)) else one
        if value(start) <= limit:
            return start
        low, high = (one + 1, high) if start == other else (low, other - 1)
    return low if low == high and value(low) <= limit else None


def least_of(measure: Measure, low: int, high: int) -> tuple[int, float]:
    """Return a number from ``low`` to ``high`` with the least measure, and that; infinite where all are.

    The measure falls and then rises, and may be infinite at either end. Where two numbers measure alike within a
    millionth, all between are taken to.

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
    """Return two different numbers inside a range, one of them ``tried`` where that divides it well."""
    span = high - low
    one, other = high - round(span * _GOLDEN), low + round(span * _GOLDEN)
    if span >= 4 and low + span // 4 <= tried <= high - span // 4:
        one, other = (tried, other) if tried < other else (one, tried)
    if one >= other:
        one = max(low, other - 1)
        other = one + 1
    return (one, other) if one != other else (low, high)
