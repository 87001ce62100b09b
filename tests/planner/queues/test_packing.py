"""What full passes hold, against packings that can be done by hand."""

import numpy as np
import pytest

from planner.queues.packing import groups_sampled, packed
from planner.queues.prompts import Prompts


def _prompts(*kinds: tuple[float, float]) -> Prompts:
    tokens, weights = np.array(kinds).T
    return Prompts(tokens, np.zeros_like(tokens), weights)


def test_equal_prompts_fill_every_group_alike() -> None:
    """Three prompts of 1,200 tokens fit a budget of 4,000, on each of two groups."""
    found = packed(_prompts((1200.0, 1.0)), 2, 4000.0)
    assert np.all(found.ended == 6)
    assert np.all(found.parts == 6)
    assert np.all(found.tokens == 7200)


def test_long_prompts_leave_no_room_unused() -> None:
    """6,000 tokens on a budget of 4,000: two prompts in three passes, all of them full."""
    found = packed(_prompts((6000.0, 1.0)), 1, 4000.0)
    assert np.all(found.tokens == 4000)
    assert found.ended.mean() == pytest.approx(2 / 3, abs=0.01)
    assert np.all(found.parts <= 2)


def test_a_prompt_that_fits_nowhere_ends_the_pass() -> None:
    """Two of 3,000 never share a budget of 4,000; as many short ones as are drawn between them go along."""
    found = packed(_prompts((3000.0, 0.5), (100.0, 0.5)), 1, 4000.0)
    assert found.tokens.max() <= 4000
    assert np.all(found.tokens - 100 * (found.parts - 1) <= 3000)
    assert 1.5 < found.ended.mean() < 2.2  # half of them long, one long a pass; few passes are of short ones only


def test_reused_tokens_take_room_but_whole_budgets_of_them() -> None:
    """Of 1,000 tokens 900 are reused: four fit a budget of 4,000; of 9,000 that start behind 8,000 four, too."""
    found = packed(Prompts(np.array([1000.0]), np.array([900.0]), np.ones(1)), 1, 4000.0)
    assert np.all(found.ended == 4)
    long = packed(Prompts(np.array([9000.0]), np.array([8500.0]), np.ones(1)), 1, 4000.0)
    assert np.all(long.ended == 4)


def test_many_groups_are_sampled_by_fewer() -> None:
    """As many as a sample fills some dozen times, at least one, at most all."""
    assert groups_sampled(_prompts((1000.0, 1.0)), 4, 2000.0) == 4
    assert 1 <= groups_sampled(_prompts((100.0, 1.0)), 320, 16_000.0) < 10
