"""Candidates that are late because those with quicker passes are."""

import numpy as np

from planner.offers.slower import Passes, Slower

ONE = Passes((4, 1), np.array([0.0, 0.1, 0.2]), np.array([0.3, 0.5, np.inf]))


def _scaled(factor: float, ranks: int = 4) -> Passes:
    return Passes((ranks, 1), factor * ONE.few, factor * ONE.full)


def test_time_that_runs_slower_is_as_late_at_a_lower_rate() -> None:
    """Passes twice as long are late at half the rate; shorter ones only where enough of the excess is left.

    Of fewer instances, to which requests come less evenly, each is as late; of more it may not be.
    """
    slower = Slower()
    slower.add(ONE, 4, 10.0, lambda: np.array([1.5, 1.2, 2.0]))
    assert slower.late(ONE, 4, 10.0).tolist() == slower.late(ONE, 1, 10.0).tolist() == [True, True, False]
    assert not slower.late(ONE, 5, 10.0).any()
    assert slower.late(_scaled(2.0), 4, 5.0).tolist() == [True, True, False]
    assert not slower.late(_scaled(2.0), 4, 4.9).any()
    assert slower.late(_scaled(0.8), 4, 12.5).tolist() == [True, False, False]


def test_other_ranks_and_a_single_quicker_pass_tell_nothing() -> None:
    """Prompts are dealt otherwise over other ranks; one quicker pass of a sort may be the one that counts."""
    slower = Slower()
    slower.add(ONE, 4, 10.0, lambda: np.array([1.5, 1.2, 0.0]))
    assert not slower.late(_scaled(3.0, ranks=8), 4, 20.0).any()
    assert not slower.late(Passes((4, 1), np.array([0.0, 0.01, 0.2]), ONE.full), 4, 10.0).any()
