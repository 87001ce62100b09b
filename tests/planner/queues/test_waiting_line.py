"""The wait in a line of one server: against Pollaczek and Khinchine, Lindley's recursion, and an idle server."""

import numpy as np
import pytest

from planner.queues.waiting_line import stationary_wait, waits_in_line
from planner.serving.closed_forms.waits import pollaczek_khinchine_wait

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


def test_lines_that_begin_with_the_law_stay_in_it() -> None:
    """Of 4,000 lines of 40 prompts: mean and 90th percentile of the last within 5 % of the law, the first by it."""
    rng, rate = np.random.default_rng(4), 0.7 / MEAN
    law = stationary_wait(WORK, WEIGHTS, rate, 1.0)
    work, gaps = rng.choice(WORK, (4, 1000, 40), p=WEIGHTS), rng.exponential(1 / rate, (4, 1000, 40))
    waits = waits_in_line(law, work, gaps, 0)
    assert waits.shape == work.shape
    assert waits[..., 0].mean() == pytest.approx(law.mean_seconds, rel=0.01)
    assert waits[..., -1].mean() == pytest.approx(law.mean_seconds, rel=0.05)
    assert np.quantile(waits[..., -1], 0.9) == pytest.approx(law.at(np.array([0.9]))[0], rel=0.05)
    one = np.maximum(waits[2, 7, 11] + work[2, 7, 11] - gaps[2, 7, 12], 0.0)
    assert waits[2, 7, 12] == pytest.approx(one)
