"""Stretches of iterations, each as much longer than the one before it."""

import numpy as np
import pytest

from runtime.simulate.batch import Stretch


@pytest.mark.parametrize("more", [0.0, 1e-9, 3e-4])
def test_the_iteration_that_runs_is_found(more: float) -> None:
    """At the end of each, between two of them, before the first and behind the last, as ends one by one tell."""
    stretch = Stretch(5.0, 0.04, more, 300)
    ends = 5.0 + np.cumsum(0.04 + more * np.arange(300))
    assert [stretch.end(count) for count in (1, 150, 300)] == pytest.approx(ends[[0, 149, 299]], rel=1e-12)
    assert [stretch.reached(stretch.end(count)) for count in range(1, 301)] == list(range(1, 301))
    between = (ends[1:] + ends[:-1]) / 2
    assert [stretch.reached(seconds) for seconds in between] == (np.searchsorted(ends, between) + 1).tolist()
    assert stretch.reached(5.0) == 1 and stretch.reached(1e3) == 300
