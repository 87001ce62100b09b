"""The balance of chains whose two parts are drawn apart from each other, once the state is known.

In state s = (a, b) the next a' has the distribution ``first[s]`` and the next b' ``second[:, s]``. Where the first
distributions are all alike but for a number or two (arrivals during steps of some duration), they have few dimensions:
with first = part · basis, the balance is the sum over k of basis_k(a) w_k(b), and only w is solved for.

Ref: stationary distributions by direct solution, W. J. Stewart, Introduction to the Numerical Solution of Markov
Chains, chapter 2; the use of the dimensions is derived here.
"""

import math

import numpy as np

from planner.serving.latency import Array

_ALIKE = 1e-14
"""Of the squared size of all that is drawn, below which a dimension of it is none."""


def paired_balance(first: Array, second: Array) -> Array:
    """Return the stationary distribution, [a, b].

    Args: ``first`` [a · b, a] and ``second`` [b, a · b], each of distributions that sum to 1 over the last and the
    first axis. There has to be one balance alone.
    """
    size, count = first.shape[1], second.shape[0]
    values, vectors = np.linalg.eigh(first.T @ first)
    basis = vectors[:, values > _ALIKE * values[-1]]  # [a, dimensions]
    part = first @ basis  # [a · b, dimensions]
    unknown = basis.shape[1] * count
    later = part.reshape(size, count, -1, 1) * second.T.reshape(size, count, 1, count)
    moves = basis.T @ later.transpose(1, 0, 2, 3).reshape(count, size, unknown)  # [b, dimensions, unknown]
    moves = moves.transpose(1, 0, 2).reshape(unknown, unknown)
    # One equation too many: that the sum is 1 is added to one of them, in the dimension that tells most of it.
    total = np.repeat(basis.sum(axis=0), count)
    right = np.zeros(unknown)
    right[-1] = math.copysign(1.0, total[-1])
    weights = np.linalg.solve(np.eye(unknown) - moves.T + np.outer(right, total), right)
    chances = np.maximum(basis @ weights.reshape(-1, count), 0.0)
    return np.asarray(chances / chances.sum())
