"""Tokens of an iteration with drafts: by hand, and as xDeepServe reports them."""

import numpy as np
import pytest

from planner.manifest.drafts import accepted_tokens, reached, step_chances, tokens_per_iteration


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
