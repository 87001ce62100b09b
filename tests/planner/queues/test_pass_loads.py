"""What the busiest group of a pass holds, against units dealt at random to the group with most room."""

import numpy as np
import pytest

from planner.queues.pass_loads import Work, busiest_loads, means_between
from planner.queues.prompts import length_kinds
from planner.workload import Lengths


def _work(squared_cv: float) -> Work:
    return Work(*length_kinds(Lengths(mean=1.0001, squared_cv=squared_cv)))


def _dealt(work: Work, count: int, groups: int, samples: int = 1000) -> np.ndarray:
    rng = np.random.default_rng(4)
    drawn = rng.choice(work.values, (samples, count), p=work.weights / work.weights.sum())
    loads, rows = np.zeros((samples, groups)), np.arange(samples)
    for number in range(count):
        loads[rows, loads.argmin(axis=1)] += drawn[:, number]
    return loads.max(axis=1)


@pytest.mark.parametrize("count", [2, 8])
def test_sums_on_one_group_have_their_moments(count: int) -> None:
    """Mean n and variance n c²."""
    work = Work(np.array([0.4, 1.0, 2.8]), np.array([0.5, 0.3, 0.2]) / 1.06)
    work = Work(work.values / (work.values @ work.weights), work.weights / work.weights.sum())
    work = Work(work.values / (work.values @ work.weights), work.weights)
    grid, masses = busiest_loads(work, np.array([float(count)]), 1)
    mean = masses[0] @ grid
    assert mean == pytest.approx(count, rel=1e-6)
    assert masses[0] @ (grid - mean) ** 2 == pytest.approx(count * work.squared_cv, rel=0.01)


@pytest.mark.parametrize("squared_cv", [0.25, 1.0])
@pytest.mark.parametrize(("groups", "each"), [(2, 2), (4, 8), (16, 2), (64, 3)])
def test_busiest_group_against_dealing(groups: int, each: int, squared_cv: float) -> None:
    """Mean within 6 %, p90 within 10 %."""
    work = _work(squared_cv)
    grid, masses = busiest_loads(work, np.array([float(groups * each)]), groups)
    measured = _dealt(work, groups * each, groups)
    assert masses[0] @ grid == pytest.approx(measured.mean(), rel=0.06)
    assert grid[np.searchsorted(np.cumsum(masses[0]), 0.9)] == pytest.approx(np.quantile(measured, 0.9), rel=0.1)


def test_equal_units_fill_groups_evenly() -> None:
    """Without spread the busiest of 4 groups holds 3 of 10 or of 12 units, as the level is passed."""
    grid, masses = busiest_loads(Work(np.ones(1), np.ones(1)), np.array([10.0, 12.0]), 4)
    assert masses @ grid == pytest.approx(np.array([3.0, 3.0]), rel=0.01)


def test_means_between_levels_keep_the_mean() -> None:
    """Means of parts of a distribution, weighted by the parts, are its mean."""
    levels = np.array([0.0, 0.3, 0.9, 1.0])
    masses = np.array([[0.2, 0.5, 0.3]])
    values = np.array([[1.0, 2.0, 10.0]])
    found = means_between(levels, np.cumsum(masses, axis=1), masses, values)
    assert found @ np.diff(levels) == pytest.approx(masses @ values[0])
    assert found[0, -1] == pytest.approx(10.0)
