"""The least of a falling and then rising measure, against measuring every number."""

import math

import numpy as np
from hypothesis import example, given, strategies as st

from planner.instances.brackets import largest_carried, least_of
from planner.serving.capacity import on_grid


@example(low=1, span=60, least=31.0, slope=1.0, none=0, within=9.0)  # the first two numbers measure the same
@example(low=0, span=1000, least=990.0, slope=1.0, none=985, within=2.0)  # few are within the limit, none below 985
@given(
    low=st.integers(0, 40),
    span=st.integers(0, 60),
    least=st.floats(-5, 110),
    slope=st.floats(0.1, 3),
    none=st.integers(0, 110),
    within=st.floats(0, 60),
)
def test_the_least_is_found_with_few_measures(low, span, least, slope, none, within):
    """Few numbers are measured, each once; those below ``none`` are infinite, far ones beyond a limit."""
    tried: list[int] = []

    def measure(number: int) -> tuple[float, float]:
        tried.append(number)
        far = abs(number - least)
        return (math.inf, math.inf) if number < none else (max(far - within, 1.0), 1 + slope * far)

    number, found = least_of(measure, low, low + span)
    assert len(tried) == len(set(tried)) <= 3 * math.log2(span + 2)
    assert found == min(map(measure, range(low, low + span + 1)))
    assert low <= number <= low + span


@example(best=10, most=1.0, first=0)  # the number to begin with carries a rate of 0
@given(best=st.integers(0, 30), most=st.floats(1.0, 50.0), first=st.integers(0, 30))
def test_no_number_carries_more_than_what_is_answered(best: int, most: float, first: int) -> None:
    """Wherever the search begins: capacities are on the grid, or the bounds of some numbers."""
    bounds = np.array([(most - abs(number - best) / 10) * (1 + number % 3 / 5000) for number in range(31)])

    def capacity(number: int) -> float:
        able = most - abs(number - best) / 10
        return float(bounds[number]) if number % 3 == 0 else max(on_grid(able), 0.0)

    def another(rate: float, last: int) -> int | None:
        return next((number for number in range(31) if number != last and capacity(number) >= rate), None)

    rate, number = largest_carried((capacity(first), first), another, lambda number, _: capacity(number), bounds)
    assert rate == max(map(capacity, range(31)))
    assert capacity(number) == rate
