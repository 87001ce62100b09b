"""Requests in decode, counted in steps: against a plain list of them, and in balance."""

import numpy as np
import pytest

from planner.mixed.decoding import Decoding


def test_it_is_what_a_list_of_requests_is() -> None:
    """Requests of 1 to 9 steps on 3 rows that make 1 to 4 steps at a time."""
    rng = np.random.default_rng(0)
    decoding, plain = Decoding(0.0, 1.0, np.arange(1, 10), 3), [[] for _ in range(3)]  # type: ignore[var-annotated]
    for _ in range(200):
        rows = np.flatnonzero(rng.random(3) < 0.8)
        steps = rng.integers(1, 5, rows.size) if rng.random() < 0.5 else np.ones(rows.size, dtype=np.int64)
        decoding.advance(rows, steps)
        for row, made in zip(rows, steps, strict=True):
            plain[row] = [(left - made, held) for left, held in plain[row] if left > made]
        begun, lives, held = rng.integers(0, 3, 4), rng.integers(0, 10, 4), rng.random(4)
        decoding.join(begun, lives, held)
        for row, life, tokens in zip(begun, lives, held, strict=True):
            plain[row] += [(life, tokens)] if life else []
        assert decoding.held[0] == pytest.approx([len(own) for own in plain])
        assert decoding.held[1] == pytest.approx([sum(tokens for _, tokens in own) for own in plain])


def test_who_runs_at_the_begin_leaves_as_others_come() -> None:
    """In balance: as many join a step as the mean running over the mean answer; all are gone after the longest."""
    lives = np.array([10, 20, 30, 100])
    decoding, row, one = Decoding(80.0, 5.0, lives, 1), np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    decoding.advance(row, one)
    assert decoding.held[:, 0] == pytest.approx([80 - 80 / 40, 5 * (80 - 80 / 40)])
    decoding.advance(row, 99 * one)
    assert decoding.held[:, 0] == pytest.approx([0.0, 0.0], abs=1e-9)


def test_answers_without_end_stay() -> None:
    """Longer ones than are told apart."""
    decoding = Decoding(10.0, 1.0, np.array([1_000_000]), 2)
    decoding.join(np.zeros(1, dtype=np.int64), np.array([1_000_000]), np.ones(1))
    decoding.advance(np.arange(2), np.full(2, decoding.most_steps))
    assert decoding.held[0] == pytest.approx([11.0, 10.0], rel=0.01)
