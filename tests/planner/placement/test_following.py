"""Expert maps that follow their loads: when they serve, what they move, and what a run gains by them."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ground.errors import BadInput
from planner.manifest.schema import Manifest
from planner.placement.following import Changing, rebalanced
from podplan.simulation import simulate
from tests.manifests import manifest

LAST = 100.0


def made() -> Manifest:
    """16 experts over 8 ranks, each of them twice."""
    return manifest(slots=[*range(16), *((expert + 5) % 16 for expert in range(16))])


def hot(number: int) -> NDArray[np.float64]:
    """One expert is as popular as all others together, another one in each stretch."""
    loads = np.ones((1, 16))
    loads[0, 3 * number % 16] = 16.0
    return loads


def played(drift: float | None, every: float | None) -> list[tuple[float, float]]:
    """Return (begin, imbalance) of the decode pool."""
    found = rebalanced(made(), Changing(loads=hot, drift_seconds=drift, every_seconds=every, last_seconds=LAST))
    return [
        (0.0, found.balance["decode"]),
        *((time, each["decode"]) for time, each in found.changes if "decode" in each),
    ]


def test_loads_that_stay_take_one_new_map() -> None:
    """It serves once counts were collected and weights moved, and it is better than the planned one."""
    (_, before), (time, after) = played(None, 10.0)
    assert 10.0 < time < 11.0 and after < 0.7 * before


def test_maps_follow_a_drift_behind_it() -> None:
    """After each change the old map serves until the next counts are in; without maps that follow it stays bad."""
    still, following = played(30.0, None), played(30.0, 10.0)
    assert [time for time, _ in still] == [0.0, 30.0, 60.0, 90.0]
    drifted = {time: value for time, value in following if time in (30.0, 60.0)}
    for time, value in drifted.items():
        adapted = [each for begin, each in following if time + 9.9 < begin < time + 25.0]
        assert adapted and min(adapted) < 0.7 * value


def test_counts_over_a_change_are_those_of_both_sides() -> None:
    """A map of an interval in which the loads changed is for their mean."""
    changing = Changing(loads=hot, drift_seconds=30.0, every_seconds=None, last_seconds=LAST)
    assert changing.collected(20.0, 50.0) == pytest.approx(10.0 * hot(0) + 20.0 * hot(1))


def test_a_run_ends_with_the_last_map() -> None:
    """The same requests under skewed loads: less imbalance at the end, and the note tells what was moved."""
    still, following = (
        simulate(made(), rate="40/s", requests="500", expert_loads="zipf:1", rebalance=every) for every in (None, "1s")
    )
    assert following.measured.expert_imbalance["decode"] < 0.8 * still.measured.expert_imbalance["decode"]
    assert any("weights were moved" in note for note in following.offered.notes)


def test_too_many_changes_are_refused() -> None:
    """The sentence names the flag and the time."""
    with pytest.raises(BadInput, match="--rebalance: every 1 ms is more than 500 times"):
        Changing(loads=hot, drift_seconds=None, every_seconds=0.001, last_seconds=LAST)
