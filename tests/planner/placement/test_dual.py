"""The dual bound: never above the optimum, tight where the simple bounds are not, checkable without a solver."""

import sys

import numpy as np
import pytest

from planner.placement.dual import Certificate, certificate_holds, certify, strongest_bound
from planner.placement.methods import place
from planner.placement.problem import Problem
from tests.expert_loads import brute_force, power_law


@pytest.mark.parametrize(
    ("experts", "ranks", "redundant"), [(6, 3, 0), (5, 3, 4), (4, 3, 2), (7, 4, 1), (5, 5, 5), (6, 2, 2)]
)
def test_the_bound_never_passes_the_optimum(experts, ranks, redundant):
    """60 random instances against the best of all maps; every certificate holds for its target."""
    rng = np.random.default_rng(experts + 10 * ranks + redundant)
    loads = np.exp(rng.standard_normal((10, experts)))
    best = brute_force(loads, ranks, redundant)
    for layer, optimum in zip(loads, best, strict=True):
        bound, certificate = strongest_bound(layer, ranks, experts + redundant, 1.0, float(optimum) * 1.2, goal=1e-3)
        assert bound <= optimum * (1 + 1e-9)
        if certificate is not None:
            assert certificate.target == bound
            assert certificate_holds(certificate, layer, ranks, experts + redundant)


def test_two_slots_are_proven_within_one_and_a_half_per_cent():
    """288 slots on 144 ranks, where mean and water level leave 5 to 18 %."""
    problem = Problem(loads=power_law(2, 256, 0.8), ranks=144, redundant=32)
    placed = place(problem)
    certified = certify(problem, placed)
    after = certified.placement
    assert (placed.lower_bound < placed.imbalance * 0.985).any()
    assert (after.lower_bound >= after.imbalance * 0.985).all()
    for layer, certificate in certified.certificates.items():
        assert certificate.target == after.lower_bound[layer]
        assert certificate_holds(certificate, problem.loads[layer], 144, 288)


def test_a_certificate_is_refused_where_it_proves_nothing():
    """Prices of another layer, a target that a map reaches, prices that are no numbers."""
    problem = Problem(loads=power_law(1, 64, 1.0), ranks=36, redundant=8)
    placed = place(problem)
    bound, certificate = strongest_bound(problem.loads[0], 36, 72, 1.0, float(placed.imbalance[0]))
    assert bound > 1
    reachable = Certificate(float(placed.imbalance[0]) * 1.001, certificate.prices)
    assert not certificate_holds(reachable, problem.loads[0], 36, 72)
    assert not certificate_holds(Certificate(bound, certificate.prices[::-1]), problem.loads[0], 36, 72)
    assert not certificate_holds(Certificate(bound, certificate.prices * np.nan), problem.loads[0], 36, 72)
    assert not certificate_holds(Certificate(bound, certificate.prices[1:]), problem.loads[0], 36, 72)


def test_mean_and_water_level_are_certificates_too():
    """Prices w / T prove the mean, ceil(w / T) / slots the water level, up to the grid of one in a thousand."""
    loads = power_law(1, 64, 0.2)[0]
    scaled = loads * 16 / loads.sum()
    assert certificate_holds(Certificate(0.99, scaled), loads, 16, 64)
    assert not certificate_holds(Certificate(1.05, scaled), loads, 16, 64)


def test_checking_needs_no_solver(monkeypatch):
    """The check runs where the solver cannot be imported."""
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert certificate_holds(Certificate(0.9, np.ones(4)), np.ones(4), 4, 4)
