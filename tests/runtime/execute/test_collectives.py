"""Collectives give the sums and permutations that their names promise, on every rank the same bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.execute import collectives as c
from runtime.execute.transport import Endpoint, Loop


def ran(n: int, body: Callable[[c.Comm], Any]) -> list[Any]:
    """Run a body per rank of a group of n and return the results in order."""

    def program(endpoint: Endpoint) -> Any:
        return body(c.comm(endpoint, range(n), "group"))

    results = Loop().run(dict.fromkeys(range(n), program))
    return [results[rank] for rank in range(n)]


def inputs(n: int, rows: int = 5) -> list[np.ndarray]:
    """Return what each rank starts with."""
    return [np.random.default_rng(rank).standard_normal((rows, 3)) for rank in range(n)]


@pytest.mark.parametrize("reduce", [c.all_reduce, c.ring_all_reduce])
@given(n=st.integers(1, 9), rows=st.integers(0, 7))
def test_all_reduce_adds_up(reduce: Any, n: int, rows: int) -> None:
    """Also where the parts are uneven or empty; every rank has the very same numbers."""
    x = inputs(n, rows)
    got = ran(n, lambda group: reduce(group, x[group.index]))
    assert all(np.array_equal(one, got[0]) for one in got)
    assert np.allclose(got[0], sum(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("exchange", [c.pairwise_all_to_all, c.direct_all_to_all])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_all_to_all_transposes(exchange: Any, n: int) -> None:
    """Rank i gets part i of every rank."""
    got = ran(n, lambda group: exchange(group, [(group.index, to) for to in range(n)]))
    assert got == [[(source, rank) for source in range(n)] for rank in range(n)]
