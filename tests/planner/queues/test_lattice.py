"""The least of a falling and then rising measure, against measuring every number."""

import math

from hypothesis import given
from hypothesis import strategies as st

from planner.queues.lattice import first_within


@given(
    low=st.integers(1, 40),
    span=st.integers(0, 60),
    least=st.floats(-5, 110),
    slopes=st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)),
    infinite=st.integers(0, 60),
    start=st.integers(-5, 120),
    share=st.floats(0.9, 2.0),
)
def test_a_number_within_the_limit_is_found_where_there_is_one(
    low: int, span: int, least: float, slopes: tuple[float, float], infinite: int, start: int, share: float
) -> None:
    """Infinite below some number, then falling, then rising; every number is measured at most once."""
    tried: list[int] = []

    def value(number: int) -> float:
        if number < infinite:
            return math.inf
        return 1 + (slopes[0] * (number - least) if number > least else slopes[1] * (least - number))

    def measure(number: int) -> float:
        tried.append(number)
        return value(number)

    every = [value(number) for number in range(low, low + span + 1)]
    limit = min(every) * share if math.isfinite(min(every)) else 10.0
    found = first_within(measure, low, low + span, start, limit)

    assert (found is None) == (min(every) > limit)
    assert found is None or (low <= found <= low + span and value(found) <= limit)
    assert len(tried) == len(set(tried)) <= 14


def test_an_empty_range_has_none() -> None:
    """Nothing is measured."""
    assert first_within(lambda number: 0.0, 3, 2, 1, 1.0) is None
