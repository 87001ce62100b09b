"""Devices divided among several things against trying every division."""

import math
from itertools import product

import numpy as np
from hypothesis import given, strategies as st

from planner.programme.routes import NOTHING, Curve

ALTERNATIVES = st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 10.0, allow_nan=False)), min_size=1, max_size=6)


def curve(alternatives: list[tuple[int, float]]) -> Curve:
    """Return the curve of (devices, amount) alternatives, numbered as they come."""
    devices, amounts = (np.array(column) for column in zip(*alternatives, strict=True))
    return Curve.of(devices, amounts, np.arange(len(alternatives))[:, None])


@given(st.lists(ALTERNATIVES, min_size=1, max_size=4), st.integers(0, 20))
def test_no_division_takes_less(things: list[list[tuple[int, float]]], most: int) -> None:
    """Every choice of an alternative of each thing; the choice told takes what is said and fits."""
    together = NOTHING
    for alternatives in things:
        together = together.beside(curve(alternatives), most)
    tried = [chosen for chosen in product(*things) if sum(devices for devices, _ in chosen) <= most]
    least = min((sum(amount for _, amount in chosen) for chosen in tried), default=math.inf)

    assert together.least == least or math.isclose(together.least, least, rel_tol=1e-12)
    if tried:
        chosen = [alternatives[number] for alternatives, number in zip(things, together.choice[-1], strict=True)]
        assert sum(devices for devices, _ in chosen) == together.devices[-1] <= most
        assert math.isclose(sum(amount for _, amount in chosen), least, rel_tol=1e-12)


@given(ALTERNATIVES, st.integers(1, 4))
def test_whole_steps_take_no_less(alternatives: list[tuple[int, float]], step: int) -> None:
    """Devices are multiples of a step, and with as many of them as before rounded up it takes the same."""
    single = curve(alternatives)
    stepped = single.in_steps(step)

    assert not (stepped.devices % step).any() and stepped.least == single.least
    assert (np.diff(stepped.devices) > 0).all() and (np.diff(stepped.amount) < 0).all()
