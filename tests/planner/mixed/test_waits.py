"""Waits behind longer prompts of the own DP rank."""

import numpy as np
import pytest

from planner.mixed.parts import CutPrompts
from planner.mixed.waits import behind_long_ones


def _prompts(parts: list[float], weights: list[float]) -> CutPrompts:
    """Return prompts in so many parts of 512 tokens, one to a rank and step."""
    full = np.full(len(parts), 512.0)
    return CutPrompts(parts=np.array(parts), first=full, last=full, weights=np.array(weights), room=512.0, together=1.0)


def _mean(parts: list[float], weights: list[float], load: float, squared_cv: float) -> float:
    prompts = _prompts(parts, weights)
    seconds, chances = behind_long_ones(prompts, 0.03, load / (0.03 * prompts.mean_parts), squared_cv)
    assert chances.sum() == pytest.approx(1.0)
    assert (seconds >= 0).all()
    assert (chances >= 0).all()
    return float(seconds @ chances)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_at_random_it_is_what_the_variance_adds_to_m_g_1(load: float) -> None:
    """Pollaczek and Khinchine: load / (1 - load) · service / 2 · squared CV of the parts."""
    parts, weights = [1.0, 9.0], [0.75, 0.25]  # mean 3, variance 12
    expected = load / (1 - load) * (3 * 0.03) / 2 * (12 / 9)
    assert _mean(parts, weights, load, 1.0) == pytest.approx(expected)


def test_equal_prompts_wait_for_no_longer_ones() -> None:
    """What crowds of equal prompts wait is told by the chain."""
    assert _mean([5.0], [1.0], 0.8, 0.2) == 0.0


def test_even_arrivals_wait_less_and_load_more() -> None:
    """Dealt to more ranks in turn a rank's gaps are evener."""
    waits = [_mean([1.0, 20.0], [0.9, 0.1], load, cv) for load, cv in ((0.5, 1.0), (0.5, 0.25), (0.8, 0.25))]
    assert waits[1] < waits[0]
    assert waits[1] < waits[2]
