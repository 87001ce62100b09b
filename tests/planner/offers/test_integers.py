"""The least of a falling and then rising measure, against measuring every number."""

import math

from hypothesis import assume, example, given
from hypothesis import strategies as st

from planner.offers.integers import largest_carried, least_of
from planner.serving.capacity import STEP


@given(low=st.integers(1, 40), span=st.integers(0, 60), least=st.floats(-5, 110), slope=st.floats(0.1, 3))
def test_the_least_is_found_with_few_measures(low: int, span: int, least: float, slope: float) -> None:
    """Every number is measured at most once, a dozen of them."""
    # Else two numbers beside the least measure the same, and all between count as equal.
    assume(abs(2 * least - round(2 * least)) > 0.01)
    tried: list[int] = []

    def measure(number: int) -> float:
        tried.append(number)
        return 1 + slope * abs(number - least)

    number, found = least_of(measure, low, low + span)
    assert found == min(1 + slope * abs(each - least) for each in range(low, low + span + 1))
    assert low <= number <= low + span
    assert len(tried) == len(set(tried)) <= 14


@example(best=10, most=1.0)  # the number to begin with carries a rate of 0
@given(best=st.integers(0, 30), most=st.floats(1.0, 50.0))
def test_no_number_carries_more_than_what_is_answered(best: int, most: float) -> None:
    """To a step between rates."""

    def capacity(number: int) -> float:
        return most - abs(number - best) / 10

    rate, number = largest_carried(
        (capacity(0), 0),
        lambda rate, last: best if capacity(best) >= rate and last != best else None,
        lambda number, rate: capacity(number),
        0.0,
    )
    assert most * math.exp(-STEP) <= rate <= most
    assert capacity(number) >= rate
