"""Tokens of an iteration with drafts: by hand, and as xDeepServe reports them."""

import numpy as np
import pytest

from planner.manifest.drafts import (
    MOST_DRAWN,
    accepted_tokens,
    drawn_iterations,
    mean_iterations,
    reached,
    step_chances,
    tokens_per_iteration,
)


def test_tokens_by_hand() -> None:
    """Each draft counts only where those before it were accepted; beyond the last stated depth it holds on."""
    assert tokens_per_iteration(0, 0.7) == 1.0
    assert tokens_per_iteration(3, 0.5) == 1.875
    assert tokens_per_iteration(3, (0.8, 0.5)) == pytest.approx(1 + 0.8 + 0.4 + 0.2)
    assert reached(2, (0.9, 0.4)) == pytest.approx([1.0, 0.9, 0.36])


def test_the_second_draft_of_xdeepserve() -> None:
    """arXiv 2508.02520, section 4.6: 2.26 tokens a step where the layer is reused, 2.35 where a second is trained.

    With a first acceptance of 0.9, the second is accepted in 40 % of the steps that reach it, and in 50 %.
    """
    assert tokens_per_iteration(2, (0.9, 0.4)) == pytest.approx(2.26)
    assert tokens_per_iteration(2, (0.9, 0.5)) == pytest.approx(2.35)


@pytest.mark.parametrize("acceptance", [0.7, (0.9, 0.4), (1.0, 0.0, 0.5)])
def test_drawn_steps_have_those_chances(acceptance: float | tuple[float, ...]) -> None:
    """What the simulator draws has the stated chances; they sum to 1 and give the mean."""
    chances = step_chances(3, acceptance)
    assert chances.sum() == pytest.approx(1.0)
    assert chances @ np.arange(1, 5) == pytest.approx(tokens_per_iteration(3, acceptance))
    drawn = accepted_tokens(np.random.default_rng(1), 100_000, 3, acceptance)
    assert np.bincount(drawn, minlength=5)[1:] / drawn.size == pytest.approx(chances, abs=0.01)


def test_answers_take_the_iterations_that_pass_their_tokens() -> None:
    """Drawn ones are distributed as playing each answer by itself; the longest take the mean, and no answer none."""
    random = np.random.default_rng(3)
    answers = np.full(20_000, 10)
    drawn = drawn_iterations(answers, 2, 0.6, random)
    played = np.cumsum(accepted_tokens(random, answers.size * 10, 2, 0.6).reshape(-1, 10), axis=1)
    alone = 1 + (played < 10).sum(axis=1)
    assert np.bincount(drawn, minlength=11) / 20_000 == pytest.approx(
        np.bincount(alone, minlength=11) / 20_000, abs=0.02
    )
    mixed = np.array([0, 1, MOST_DRAWN, MOST_DRAWN + 1])
    assert drawn_iterations(mixed, 0, 0.6, random).tolist() == [1, 1, MOST_DRAWN, MOST_DRAWN + 1]
    found = drawn_iterations(mixed, 2, 0.6, random)
    means = mean_iterations(mixed, 2, 0.6)
    assert found[:2].tolist() == [1, 1] and found[3] == means[3] and found[2] != means[2]
    assert found[2] == pytest.approx(means[2], rel=0.01)
    assert mean_iterations(np.array([0, 1, 4, 98]), 1, 0.6).tolist() == [1, 1, 3, 62]
