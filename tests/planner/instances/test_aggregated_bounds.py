"""Steps that wait for single chunks of prompts, beside steps drawn at random."""

import numpy as np
import pytest

from planner.instances.aggregated_bounds import _ROUNDS, _mean_step
from planner.instances.candidates import Count
from planner.instances.space import built, role_rows
from planner.offers.aggregated_offers import bounds_of
from tests.questions import small_question


@pytest.mark.parametrize("per_second", [0.3, 1.0, 8.0])
def test_no_mean_step_is_below_its_bound(per_second: float) -> None:
    """A step takes what came during the step before, and lasts as long as the longest of three sorts of chunks."""
    steps, shares = np.array([[0.5], [0.8], [1.5], [4.0]]), np.array([0.5, 0.3, 0.2])
    random = np.random.default_rng(1)
    seconds, total, number = 0.5, 0.0, 100_000
    for _ in range(number):
        come = random.poisson(per_second * seconds * shares)
        seconds = float(steps[np.flatnonzero(come).max(initial=-1) + 1, 0])
        total += seconds
    at_least = per_second * shares[::-1].cumsum()[::-1][:, None]  # chunks of each sort or a longer one
    once, found = (float(_mean_step(at_least, steps, rounds)[0]) for rounds in (1, _ROUNDS))

    assert 0.85 * total / number < found < 1.01 * total / number
    assert once < found


def test_late_chunks_of_long_prompts_read_what_earlier_ones_left() -> None:
    """Where every step has a chunk of a long prompt, it lasts longer than a full step of first chunks."""
    question = small_question("qwen3-30b-a3b", "h100", 8, lengths=(32_000.0, 64.0), squared_cv=1.0, shape="aggregated")
    own = max(built(question, "mixed", role_rows(question, "mixed")), key=lambda each: len(each.group.rows))
    bounds = bounds_of(question, own, Count()).with_budgets([4096])
    few, busy, many = (
        np.full(bounds.ranks.shape, 1e-3),
        np.full(bounds.ranks.shape, 100.0),
        np.full(bounds.ranks.shape, 1e6),
    )
    step = bounds._with_singles(busy, few, many)[0]

    assert (step > 1.2 * bounds.alone(4096.0)).all()


def test_half_of_saturation_bounds_an_instance_that_may_take_no_more() -> None:
    """With limits that bind nothing, the bound falls as the utilisation that is planned with."""
    found = []
    for most in (1.0, 0.5):
        question = small_question("qwen3-8b", "h100", 1, shape="aggregated", most_utilisation=most)
        (own,) = built(question, "mixed", role_rows(question, "mixed"))
        bounds, room = bounds_of(question, own, Count()), np.full(len(own.group.rows), 64.0)
        found.append([bounds.bound(1e3, 0.99, room), bounds.quick_bound(room)])

    assert np.array(found[1]) == pytest.approx(0.5 * np.array(found[0]))
