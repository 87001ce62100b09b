"""Counts of arrivals on lattices finer and coarser than their events."""

import numpy as np
import pytest

from planner.closed_forms.bulk_lattice import Arrivals, count_distribution


def _counts(arrivals, seconds, prompts_per_cell, cells):
    """Chances of 0, 1, ... cells of prompts, [times, cells]; the last: so many or more."""
    reached = np.zeros((seconds.size, cells + 1))
    found = arrivals.reached(seconds, prompts_per_cell, cells)[:, :cells]
    reached[:, : found.shape[1]] = found
    return reached[:, :-1] - reached[:, 1:]


@pytest.mark.parametrize("dispersion", [1.0, 4.0])
def test_counts_have_mean_and_dispersion(dispersion):
    """Mean 12 and variance 12 d for Poisson and negative binomial counts; few of a short time, too."""
    for mean in (12.0, 0.1):
        masses = count_distribution(np.array([mean]), dispersion, 300)[0]
        k = np.arange(300)
        assert masses.sum() == pytest.approx(1)
        assert masses @ k == pytest.approx(mean)
        assert masses @ (k - mean) ** 2 == pytest.approx(mean * dispersion)


@pytest.mark.parametrize("squared_cv", [1 / 16, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("prompts_per_cell", [0.25, 0.5, 1.0, 3.0])
def test_any_lattice_keeps_the_mean_and_adds_little_variance(squared_cv, prompts_per_cell):
    """Mean exact for short and long times; variance c² rate t, and up to a quarter of a cell for the rounding."""
    arrivals = Arrivals.of(2.0, squared_cv)
    if prompts_per_cell * arrivals.events_per_prompt < 1:
        return  # finer than the events themselves
    seconds = np.array([0.0, 0.2, 3.0, 12.0])
    found = _counts(arrivals, seconds, prompts_per_cell, 300)
    prompts = np.arange(300) * prompts_per_cell
    means = found @ prompts
    assert found.sum(axis=1) == pytest.approx(np.ones(4))
    assert found.min() >= -1e-12
    assert means == pytest.approx(2 * seconds, abs=0.02)
    variances = (found * (prompts - means[:, None]) ** 2).sum(axis=1)
    assert np.all(variances >= squared_cv * 2 * seconds * 0.98 - 1e-9)
    assert np.all(variances <= squared_cv * 2 * seconds * 1.02 + prompts_per_cell**2 / 4 + 1e-6)


def test_many_events_are_normal():
    """The normal number that stands for many events differs from them by less than 0.01 at every count."""
    arrivals = Arrivals.of(3.0, 1 / 8)
    seconds = np.array([0.5, 2.0, 6.0])
    exact, normal = (_counts(arrivals, seconds, 0.5, cells) for cells in (100, 400))
    assert np.cumsum(normal, axis=1)[:, :60] == pytest.approx(np.cumsum(exact, axis=1)[:, :60], abs=0.02)
