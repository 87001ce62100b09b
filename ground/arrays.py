"""Array functions that NumPy lacks or does slowly."""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def distinct(values: Floats) -> Floats:
    """Return the distinct values, ascending.

    ``np.unique`` without further results imports masked arrays when it is first called, which takes 30 ms.

    >>> distinct(np.array([2.0, 1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return np.unique(values, return_index=True)[0]


def percentiles(values: Floats, levels: float | Floats) -> Floats:
    """Return ``np.percentile``, which imports masked arrays too; of equal values that value, without it.

    >>> percentiles(np.array([3.0, 3.0]), 99.0).tolist()
    3.0
    """
    if (values == values[0]).all():
        return np.full(np.shape(levels), values[0])
    return np.asarray(np.percentile(values, levels))


def placed(counts: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the distinct values of non-negative integers, ascending, and the index of each number among them.

    Same result as ``np.unique`` with ``return_inverse``, without sorting.

    >>> [found.tolist() for found in placed(np.array([8.0, 2.0, 8.0]))]
    [[2.0, 8.0], [1, 0, 1]]
    """
    whole = counts.astype(np.intp)
    there = np.bincount(whole) > 0
    return np.flatnonzero(there).astype(counts.dtype), (np.cumsum(there) - 1)[whole]


def by_value(function: Callable[[float], float], values: float | Floats) -> float | Floats:
    """Return a function of each number, called once for each distinct one; shaped like ``values``.

    >>> by_value(lambda value: value + 0.5, np.array([[2.0, 1.0, 2.0]])).tolist()
    [[2.5, 1.5, 2.5]]
    """
    if np.ndim(values) == 0:
        return function(float(values))
    each, where = np.unique(values, return_inverse=True)
    return np.array([function(value) for value in each.tolist()])[where].reshape(np.shape(values))


def windows(rows: Floats, length: int) -> Floats:
    """All runs of so many neighbours in each row, [rows, starts, length], of contiguous ``rows``; they share memory.

    What numpy's ``sliding_window_view`` gives, fifteen times quicker.

    >>> windows(np.array([[1.0, 2.0, 3.0]]), 2).tolist()
    [[[1.0, 2.0], [2.0, 3.0]]]
    """
    number, size = rows.shape
    along, step = rows.strides
    return np.ndarray((number, size - length + 1, length), rows.dtype, rows, strides=(along, step, step))


def on_nodes(places: Floats, weights: Floats, nodes: int) -> Floats:
    """Put point masses on the two nodes beside each, so that means stay, [..., nodes]; what lies beyond on the last.

    Args: ``places`` [..., points] in units of the nodes, 0 or more; their ``weights`` [points], or of each.

    >>> on_nodes(np.array([[0.5, 2.0], [1.0, 9.0]]), np.array([0.25, 0.75]), 3).tolist()
    [[0.125, 0.125, 0.75], [0.0, 0.25, 0.75]]
    """
    rows = places.reshape(-1, places.shape[-1])
    within = np.minimum(rows, nodes - 1.0)
    low = np.minimum(within.astype(np.intp), nodes - 2)
    part = (within - low) * weights
    low += np.arange(rows.shape[0])[:, None] * nodes
    low = low.ravel()
    found = np.bincount(low, (weights - part).ravel(), rows.shape[0] * nodes)
    found += np.bincount(low + 1, part.ravel(), rows.shape[0] * nodes)
    return np.asarray(found.reshape(*places.shape[:-1], nodes), dtype=np.float64)


Freedom = TypeVar("Freedom", float, Floats)


def student(level: float, freedom: Freedom) -> Freedom:
    """Return the quantile of Student's t, from four degrees of freedom 0.3 % off at most (Abramowitz, Stegun 26.7.5).

    >>> round(student(0.9, 4.0), 3), round(student(0.975, 9.0), 3)
    (1.533, 2.262)
    """
    z, over = NormalDist().inv_cdf(level), 1.0 / freedom
    terms = z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return terms[0] + over * (terms[1] + over * (terms[2] + over * terms[3]))
