"""Ranges of a sweep."""

import pytest

from ground.errors import BadInput
from podplan.readers import spaced


def test_ends_and_spacing() -> None:
    """Even steps, or even factors; both ends are points."""
    assert spaced(20, 100, 5, logarithmic=False) == [20, 40, 60, 80, 100]
    assert spaced(1, 16, 5, logarithmic=True) == [1, 2, 4, 8, 16]
    assert spaced(9, 3, 3, logarithmic=False) == [9, 6, 3]


@pytest.mark.parametrize(
    ("first", "last", "count", "logarithmic"),
    [(1, 2, 1, False), (1, 2, 5000, False), (3, 3, 4, False), (0, 5, 3, True), (1, float("inf"), 3, False)],
)
def test_ranges_that_cannot_be(first: float, last: float, count: int, logarithmic: bool) -> None:
    """Too few or too many points, equal ends, and factors from zero."""
    with pytest.raises(BadInput, match="range"):
        spaced(first, last, count, logarithmic=logarithmic)
