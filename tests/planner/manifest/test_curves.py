"""Kernels along measured curves: numbers, arrays, manifests."""

import numpy as np
import pytest

from planner.manifest.costs import CurveTermModel
from planner.manifest.curves import at, curve_seconds
from planner.manifest.terms import CurveTerm, timing

POINTS = (10e-6, 12e-6, 24e-6, 40e-6)
TERM = CurveTerm("x", "experts", {"routed": 0.5}, POINTS, {"routed": 1e6}, 1e15, {"hit": 1e6}, 1e12)


def test_a_curve_by_hand():
    """Its points are met, between them lies a power law, and past the last one the last slope goes on."""
    assert [at(POINTS, load) for load in (1.0, 2.0, 4.0, 8.0)] == pytest.approx(POINTS)
    assert at(POINTS, 2**0.5) == pytest.approx((10e-6 * 12e-6) ** 0.5)
    assert at(POINTS, 16.0) == pytest.approx(40e-6 * 40 / 24)
    assert (at(POINTS, 0.3), at(POINTS, 0.0)) == (10e-6, 0.0)


def test_arrays_are_what_numbers_are():
    """Loads, and points that differ from instance to instance."""
    loads = np.array([0.0, 0.4, 1.0, 3.0, 100.0])
    assert curve_seconds(POINTS, loads) == pytest.approx([at(POINTS, load) for load in loads])
    points = tuple(np.array([point, 2 * point]) for point in POINTS)
    expected = [[at(POINTS, load), at([2 * point for point in POINTS], load)] for load in loads]
    assert np.asarray(curve_seconds(points, loads[:, None])) == pytest.approx(np.array(expected))


def test_a_term_counts_its_load_and_its_work():
    """Six copies are three tokens on the curve; FLOP and bytes are those of the copies and experts."""
    own = timing(TERM, {"one": 1.0, "routed": 6.0, "hit": 4.0})
    assert own.seconds(cores=0.5, dilation=2.0) == pytest.approx(at(POINTS, 3.0))
    assert (own.flops, own.bytes) == (6e6, 4e6)


def test_a_manifest_carries_a_curve_bit_for_bit():
    """There and back."""
    assert CurveTermModel.from_term(TERM).to_term() == TERM
