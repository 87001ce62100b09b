"""Units dealt to the groups of a pass: against every sequence of them, and the packing that goes prompt by prompt."""

from itertools import product

import numpy as np
import pytest

from planner.queues.dealing import Parcels, dealt, filled
from planner.queues.packing import packed
from planner.queues.prompts import Prompts, length_kinds
from planner.workload import Lengths


def _parcels(tokens, weights):
    ones = np.ones_like(tokens)
    return Parcels(np.stack([tokens, 0 * ones, tokens * (tokens + 1) / 2, ones], axis=1), tokens, weights)


@pytest.mark.parametrize(("groups", "units"), [(2, 2), (2, 3), (2, 6), (3, 5)])
def test_few_units_against_every_sequence(groups, units):
    """Two sizes, each sequence dealt to the group with most room: the busiest group's mean tokens within 7 %."""
    tokens, weights = np.array([100.0, 900.0]), np.array([0.7, 0.3])
    exact = 0.0
    for sequence in product(range(2), repeat=units):
        held = np.zeros(groups)
        for kind in sequence:
            held[held.argmin()] += tokens[kind]
        exact += float(np.prod(weights[list(sequence)])) * float(held.max())
    found = dealt(_parcels(tokens, weights), groups, 1e6, np.array([float(units)]))
    assert found.loads[0, :, 0, 0] @ found.masses[0] == pytest.approx(exact, rel=0.07)
    assert found.mean_tokens[0] @ found.masses[0] * groups == pytest.approx(units * tokens @ weights, rel=0.02)


def test_passes_whose_units_do_not_fit_count_for_nothing():
    """Three units on two groups of 1,000 tokens: two of 900 leave no room for a third, small ones go anywhere."""
    found = dealt(_parcels(np.array([50.0, 900.0]), np.array([0.5, 0.5])), 2, 1000.0, np.array([3.0]))
    assert found.masses.sum() == pytest.approx(1)
    assert found.loads[0, found.masses[0] > 0][:, 0, 0].max() <= 1000


@pytest.mark.parametrize(("groups", "squared_cv"), [(2, 0.25), (4, 1.0), (16, 1.0)])
def test_full_passes_hold_what_the_rule_packs(groups, squared_cv):
    """Log-normal prompts within a budget of eight: as many as packing them one by one gives, within 4 %."""
    tokens, weights = length_kinds(Lengths(mean=1000, squared_cv=squared_cv))
    keep = tokens <= 8000
    tokens, weights = tokens[keep], weights[keep] / weights[keep].sum()
    found = filled(_parcels(tokens, weights), groups, 8000.0)[1]
    one_by_one = packed(Prompts(tokens, np.zeros_like(tokens), weights), groups, 8000.0)
    assert found.counts.mean() == pytest.approx(one_by_one.parts.mean(), rel=0.04)
    assert found.mean_tokens.mean() * groups == pytest.approx(one_by_one.tokens.mean(), rel=0.02)


def test_a_pass_behind_a_full_one_holds_less():
    """It begins with a unit that fitted no more, which is longer than others."""
    parcels = _parcels(np.array([100.0, 900.0]), np.array([0.8, 0.2]))
    first, later = (passes.counts.mean() for passes in filled(parcels, 2, 1000.0))
    assert later < 0.98 * first
