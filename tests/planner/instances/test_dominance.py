"""What no other matches, against comparing every pair."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.instances.dominance import undominated

ROW = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(ROW, max_size=12))
def test_kept_are_those_that_no_pair_beats(rows: list[tuple[int, int, int]]) -> None:
    """One of equals stays, the first; every dropped one is matched by one that stays."""
    table = np.array(rows, dtype=float).reshape(-1, 3)
    kept = undominated(table[:, 0].astype(np.int64), table[:, 1:]).tolist()

    def matches(one: int, other: int) -> bool:
        return rows[one][0] == rows[other][0] and all(
            a <= b for a, b in zip(rows[one][1:], rows[other][1:], strict=True)
        )

    for number in range(len(rows)):
        others = [each for each in range(len(rows)) if each != number and matches(each, number)]
        beaten = any(not matches(number, each) or each < number for each in others)
        assert (number in kept) == (not beaten)
        if beaten:
            assert any(each in kept for each in others)
