"""Ranges of a flag: what `plan sweep` asks one after the other."""

import math

from ground.errors import BadInput

MOST_POINTS = 1000


def spaced(first: float, last: float, count: int, *, logarithmic: bool) -> list[float]:
    """Return ``count`` values from ``first`` to ``last``, evenly spaced or by equal factors.

    >>> spaced(1, 100, 3, logarithmic=True)
    [1.0, 10.0, 100.0]

    Raises BadInput for fewer than 2 points, too many, and ends that no factor leads from one to the other.
    """
    if not 2 <= count <= MOST_POINTS:
        raise BadInput(f"a range of {count} points must have from 2 to {MOST_POINTS}")
    if not (math.isfinite(first) and math.isfinite(last)) or first == last:
        raise BadInput(f"a range from {first:g} to {last:g} must have two different ends")
    if logarithmic and not (first > 0 and last > 0):
        raise BadInput(f"a logarithmic range from {first:g} to {last:g} must have ends above zero")
    share = [number / (count - 1) for number in range(count)]
    if logarithmic:
        return [float(f"{first * (last / first) ** part:.12g}") for part in share]
    return [float(f"{first + (last - first) * part:.12g}") for part in share]
