"""The number of redundant experts, the verdict on balancing, and seconds instead of tokens."""

from dataclasses import replace

import numpy as np
import pytest

from planner.balance.imbalance import measured_distribution
from planner.costs.predict import expert_layouts
from planner.manifest.loads import check_expert_map
from planner.placement.arranged import place_for_seconds, seconds_objective
from planner.placement.decide import Choice, Effect, best_choice, curve, redundancies, verdict
from planner.placement.methods import place
from planner.placement.problem import Problem
from podplan.options import PredictFlags
from podplan.prediction import read_configuration
from tests.expert_loads import power_law


@pytest.fixture(scope="module")
def asked():
    """DeepSeek-R1 decode on 32 H800, one DP and one EP rank per device."""
    flags = PredictFlags(model="deepseek-r1", hw="h800", phase="decode", strategy="DP=32, EP=32", batch="32")
    return read_configuration(flags)


def test_redundancies_divide_over_the_ranks():
    """The fewest, and a slot more on every rank, as long as an expert is at most once on a rank."""
    assert redundancies(256, 72) == [32, 104, 176, 248, 320]
    assert redundancies(4, 2) == [0, 2, 4]


def test_imbalance_falls_with_redundancy_and_weights_grow(asked):
    """Each choice states what it costs: a slot more takes one expert's weights in every layer."""
    problem = Problem(loads=power_law(3, 256, 1.0), ranks=32)
    choices = curve(problem, [0, 32, 64], asked, measured_distribution(problem.loads, "test"))
    assert choices[0].imbalance > 1.5 > 1.01 > choices[1].imbalance
    assert [choice.slots_per_rank for choice in choices] == [8, 9, 10]
    weights = [choice.effect.weights_bytes for choice in choices]
    one_expert = 58 * 3 * 7168 * 2048  # bytes in FP8
    assert weights[1] - weights[0] == pytest.approx(one_expert, rel=0.05)
    assert best_choice(choices).redundant == 32
    assert all(choice.lower_bound <= choice.imbalance for choice in choices)


def test_the_best_choice_fits_and_wastes_no_copies():
    """What does not fit is passed over; of equals the fewest copies win; without a machine imbalance decides."""

    def choice(redundant, seconds, fits):
        effect = Effect(seconds=seconds, weights_bytes=1.0, fits=fits)
        return Choice(redundant=redundant, slots_per_rank=1, imbalance=1.0, worst=1.0, lower_bound=1.0, effect=effect)

    assert best_choice([choice(0, 2.0, True), choice(8, 1.0005, True), choice(16, 1.0, True)]).redundant == 8
    assert best_choice([choice(0, 2.0, True), choice(8, 1.0, False)]).redundant == 0
    bare = [replace(choice(0, 1.0, True), effect=None, imbalance=3.0), replace(choice(8, 1.0, True), effect=None)]
    assert best_choice(bare).redundant == 8


def test_balancing_skewed_loads_is_worth_it_and_even_loads_are_not(asked):
    """The verdict follows the loads: equal ones leave nothing to save."""
    for loads, worth in ((power_law(2, 256, 1.0), True), (np.ones((2, 256)), False)):
        found = verdict(asked, Problem(loads=loads, ranks=32), 32, measured_distribution(loads, "test"))
        assert found.worth_it is worth
        assert found.saves == pytest.approx(1 - found.balanced.seconds / found.unbalanced.seconds)


def test_seconds_count_weights_that_are_read(asked):
    """At few tokens a rank's time grows with experts that are hit, at many with tokens; it never loses.

    One expert with all of a rank's tokens is read once; eight with an eighth each are read eight times.
    """
    deployment = expert_layouts(replace(asked, redundant=32, shared="local"))[0]
    objective = seconds_objective(deployment)
    one, eight = np.array([16.0, 1.0]), np.array([16.0, 8.0])
    assert objective.cost(eight) > 2 * objective.cost(one)
    many_one, many_eight = np.array([16000.0, 1.0]), np.array([16000.0, 8.0])
    assert objective.cost(many_eight) < 1.2 * objective.cost(many_one)
    problem = Problem(loads=power_law(2, 256, 0.8), ranks=32, redundant=32)
    placed = place(problem)
    timed = place_for_seconds(problem, deployment, 32 * 32, placed.slots)
    check_expert_map(timed.slots, 256, 32)
    assert (timed.seconds <= np.minimum(timed.balanced_tokens, timed.eplb) * (1 + 1e-9)).all()
