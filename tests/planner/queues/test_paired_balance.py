"""Chains whose two parts are drawn apart from each other, against all states solved at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.queues.paired_balance import paired_balance
from planner.serving.closed_forms.arrival_counts import Arrivals
from planner.serving.latency import Array


def _chain(size: int, count: int, seed: int, spread: float) -> tuple[Array, Array]:
    """Arrivals within a time that every state has of its own, and any moves of what lacks."""
    draw = np.random.default_rng(seed)
    first = Arrivals.of(1.0, 1.0).counts(draw.uniform(0.1, spread, size * count), 1.0, size)
    second = draw.dirichlet(np.full(count, 0.5), size * count).T
    return first, second


def _whole(first: Array, second: Array) -> Array:
    """The balance of all states at once, [a, b]."""
    states = second.shape[1]
    moves = (first[:, :, None] * second.T[:, None, :]).reshape(states, states)
    equations = np.vstack([moves.T - np.eye(states), np.ones(states)])
    found = np.linalg.lstsq(equations, np.append(np.zeros(states), 1.0), rcond=None)[0]
    return np.asarray(found.reshape(first.shape[1], second.shape[0]))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.integers(1, 14), st.integers(0, 1000), st.floats(0.2, 6.0))
def test_it_is_the_balance_of_all_states(size: int, count: int, seed: int, spread: float) -> None:
    """Solving for few dimensions of the first part finds what solving for every state finds."""
    first, second = _chain(size, count, seed, spread)
    assert paired_balance(first, second) == pytest.approx(_whole(first, second), abs=1e-6)


def test_slow_chains_are_in_balance_too() -> None:
    """Where what lacks changes once in ten thousand steps, no steps in a row would find it: 1 : 3 here."""
    first, _ = _chain(3, 2, 0, 2.0)
    stays = np.array([[1 - 3e-4, 1e-4], [3e-4, 1 - 1e-4]])  # [after, before]
    found = paired_balance(first, np.tile(stays, 3))
    assert found.sum(axis=0) == pytest.approx([0.25, 0.75], rel=1e-6)
