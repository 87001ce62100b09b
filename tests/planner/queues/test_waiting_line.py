"""The wait in a line of one server: against Pollaczek and Khinchine, Lindley's recursion, and an idle server."""

import numpy as np
import pytest

from planner.queues.queueing import pollaczek_khinchine_wait
from planner.queues.waiting_line import stationary_wait

WORK, WEIGHTS = np.array([0.5, 1.0, 8.0]), np.array([0.6, 0.35, 0.05])
MEAN = float(WORK @ WEIGHTS)
SQUARED_CV = float(WORK**2 @ WEIGHTS) / MEAN**2 - 1


@pytest.mark.parametrize("load", [0.05, 0.5, 0.85, 0.95])
def test_mean_of_poisson_arrivals_is_that_of_pollaczek_and_khinchine(load: float) -> None:
    """M/G/1 within 1 %, at any load."""
    found = stationary_wait(WORK, WEIGHTS, load / MEAN, 1.0)
    assert found.mean_seconds == pytest.approx(pollaczek_khinchine_wait(load / MEAN, MEAN, SQUARED_CV), rel=0.01)


def test_who_comes_at_random_finds_the_server_idle_as_often_as_it_is() -> None:
    """M/D/1: nothing is waited for with chance 1 - load."""
    found = stationary_wait(np.ones(1), np.ones(1), 0.7, 1.0)
    assert found.masses[0] == pytest.approx(0.3, rel=0.02)
    assert found.at(np.array([0.25]))[0] == 0


@pytest.mark.parametrize(("squared_cv", "load"), [(0.25, 0.5), (0.25, 0.85), (4.0, 0.7)])
def test_other_gaps_are_as_lindley_draws_them(squared_cv: float, load: float) -> None:
    """Mean and upper tail of a million drawn waits within 3 %."""
    rng = np.random.default_rng(3)
    gaps = rng.gamma(1 / squared_cv, squared_cv * MEAN / load, 1_000_000)
    walk = np.append(0.0, np.cumsum(rng.choice(WORK, gaps.size, p=WEIGHTS) - gaps))
    waits = walk - np.minimum.accumulate(walk)
    found = stationary_wait(WORK, WEIGHTS, load / MEAN, squared_cv)
    assert found.mean_seconds == pytest.approx(waits.mean(), rel=0.03)
    assert found.at(np.array([0.99]))[0] == pytest.approx(np.quantile(waits, 0.99), rel=0.03)
