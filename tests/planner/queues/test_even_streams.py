"""Streams for samples: whole tokens, the rarest prompts as one kind, and levels that are even."""

import numpy as np
import pytest

from planner.queues.even_streams import even_gaps, even_levels, whole_tokens, without_rarest
from planner.serving.prompts import Prompts


def test_tokens_are_whole_and_one_is_computed() -> None:
    """A prompt that is all reused computes its last token; weights sum to 1."""
    found = whole_tokens(Prompts(np.array([0.2, 10.4, 8.0]), np.array([0.0, 3.6, 8.0]), np.array([1.0, 2.0, 1.0])))
    assert found.tokens.tolist() == [1.0, 10.0, 8.0]
    assert found.reused.tolist() == [0.0, 4.0, 7.0]
    assert found.weights.tolist() == [0.25, 0.5, 0.25]


def test_the_rarest_are_one_kind_of_their_mean() -> None:
    """Those beyond 1 in 20,000 and the one kind that reaches it; shorter ones stay, by rising length."""
    weights = np.array([0.5, 0.4999, 0.00007, 0.00002, 0.00001])
    tokens = np.array([100.0, 10.0, 1000.0, 4000.0, 7000.0])
    found = without_rarest(Prompts(tokens, np.zeros(5), weights), tokens)
    assert found.tokens.tolist() == [10.0, 100.0, 2200.0]
    assert found.weights == pytest.approx([0.4999, 0.5, 0.0001])


def test_levels_are_even_at_every_place_and_gaps_have_their_law() -> None:
    """One level in each of as many parts as there are streams; gaps of mean 1 and the squared CV that is asked for."""
    levels = even_levels(0, 16, 50)
    assert (np.sort(np.floor(levels * 16), axis=0) == np.arange(16.0)[:, None]).all()
    gaps = even_gaps(1, 2.0, 64, 200)
    assert gaps.mean() == pytest.approx(1.0)
    assert gaps.var() == pytest.approx(2.0, rel=0.05)
