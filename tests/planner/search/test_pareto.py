"""A wide front: no plan reaches another in every figure, the best is among them, and each holds its own figures."""

from typing import Any

import pytest

from planner.plans.plan import Plan
from planner.search.pareto import ALIKE, Front, dominates, figures, wide_front
from tests.questions import best_of, small_question


def front_of(**asked: Any) -> tuple[Plan, Front]:
    """Return the best plan of Qwen3-8B and the front around it."""
    best = best_of(model="qwen3-8b", **asked)
    return best, wide_front(small_question(model="qwen3-8b", **asked), best, 2)


@pytest.mark.parametrize("asked", [{}, {"objective": "chips", "rate_per_second": 20.0}], ids=["throughput", "chips"])
def test_no_plan_of_a_front_is_reached_by_another(asked: dict[str, object]) -> None:
    """Of both kinds of questions; limits and budgets hold, and guesses do not pass what the search proves."""
    question = small_question(model="qwen3-8b", devices=8, **asked)
    best, front = front_of(devices=8, **asked)

    assert best in front.plans and len(front.plans) > 2 and front.cells <= 8
    if question.objective == "throughput":
        assert max(plan.requests_per_second for plan in front.plans) <= best.requests_per_second * (1 + 1e-6)
    for plan in front.plans:
        assert plan.ttft.at(99) <= question.ttft_seconds * 1.001 and plan.tpot.at(99) <= question.tpot_seconds * 1.001
        assert plan.devices <= 8
        for other in front.plans:
            alike = all(a <= b * (1 + ALIKE) for a, b in zip(figures(other), figures(plan), strict=True))
            assert other is plan or plan is best or other is best or not (alike and dominates(other, plan))
    for plan in front.plans:
        better = [a < b for a, b in zip(figures(plan), figures(best), strict=True)]
        assert plan is best or any(better)


def test_aggregated_plans_stand_where_they_are_better() -> None:
    """Whatever separate pools reach, the front of both shapes reaches, and some of it only aggregated instances."""
    shapes = ("disaggregated", "auto", "aggregated")
    fronts = {shape: front_of(devices=2, shape=shape)[1].plans for shape in shapes}
    question = small_question(model="qwen3-8b", devices=2, shape="auto")

    assert ["mixed"] in [[role for role, _ in plan.pools()] for plan in fronts["auto"]]
    for plan in fronts["auto"]:
        assert plan.ttft.at(99) <= question.ttft_seconds * 1.001 and plan.tpot.at(99) <= question.tpot_seconds * 1.001
    for plan in fronts["disaggregated"]:
        assert any(
            all(a <= b * (1 + ALIKE) for a, b in zip(figures(other), figures(plan), strict=True))
            for other in fronts["auto"]
        )
    alone = [[role for role, _ in plan.pools()] for plan in fronts["aggregated"]]
    assert len(alone) > 1 and alone == [["mixed"]] * len(alone)
