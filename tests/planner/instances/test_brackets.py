"""The largest integer within a limit, against trying every integer; few rows at many points, and many rows at two."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.arrays import Floats
from planner.instances import brackets
from planner.instances.brackets import largest, largest_between

ROWS = st.lists(
    st.tuples(st.floats(0.1, 5), st.floats(0, 20), st.integers(1, 9), st.integers(0, 90)), min_size=1, max_size=6
)


@pytest.fixture(params=[1, 512], autouse=True, scope="module")
def points(request: pytest.FixtureRequest):
    """Points of an array operation: as many rows as a search has leave two for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brackets, "POINTS", request.param)
        yield


@dataclass
class Staircase:
    """What is measured of several rows, as a step cost that can leave rows out."""

    slope: Floats
    offset: Floats

    def __call__(self, number: Floats) -> Floats:
        """Measure at numbers, [rows] or [points, rows]."""
        return self.offset + np.floor(self.slope * number)

    def of(self, rows: Floats) -> "Staircase":
        """Return some of the rows."""
        return Staircase(self.slope[rows], self.offset[rows])


def tried_one_by_one(measure: Callable[[Floats], Floats], limit: float, low: Floats, high: Floats) -> list[float]:
    """Return the largest integers as trying all of them finds them."""
    numbers = np.arange(low.min(), high.max() + 1)[:, None] + np.zeros(low.size)
    keeps = (np.asarray(measure(numbers)) <= limit) & (numbers >= low) & (numbers <= high)
    return np.where(keeps, numbers, low - 1).max(axis=0).tolist()


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, limit=st.floats(0.5, 60))
def test_largest_is_the_brute_force_answer(rows: list[tuple[float, float, int, int]], limit: float):
    """Row by row what trying every integer finds, rows that are done left out or not."""
    slope, offset, low, span = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    stairs = Staircase(slope, offset)
    expected = tried_one_by_one(stairs, limit, low, low + span)

    assert largest(stairs, limit, low, low + span).tolist() == expected
    assert largest(lambda number: stairs(number), limit, low, low + span).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS,
    limit=st.floats(0.5, 60),
    known=st.lists(st.floats(0, 120).map(round), min_size=1, max_size=3),
    thought=st.none() | st.floats(-10, 90),
)
def test_what_is_known_spares_work_and_changes_nothing(rows, limit, known, thought):
    """Numbers measured before, inside the range or not, a guess at the first, and the measure of what is found."""
    slope, offset, low, span = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    stairs = Staircase(slope, offset)
    tried = np.stack([np.full(low.shape, float(each)) for each in known])
    likely = None if thought is None else np.full(low.shape, thought)
    found, measured = largest_between(stairs, limit, np.stack([low, low + span]), tried, stairs(tried), likely)

    assert found.tolist() == tried_one_by_one(stairs, limit, low, low + span)
    inside = found >= low
    assert measured[inside].tolist() == stairs(found)[inside].tolist()
