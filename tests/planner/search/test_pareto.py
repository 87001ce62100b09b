"""A wide front: no plan reaches another in every figure, the best is among them, and each holds its own figures."""

import pytest

from planner.search.pareto import ALIKE, dominates, figures, wide_front
from planner.search.search import search
from tests.questions import small_question


@pytest.mark.parametrize("asked", [{}, {"objective": "chips", "rate_per_second": 20.0}], ids=["throughput", "chips"])
def test_no_plan_of_a_front_is_reached_by_another(asked: dict[str, object]) -> None:
    """Of both kinds of questions; more levels find no fewer trades, and limits and budgets of the question hold."""
    question = small_question(model="qwen3-8b", devices=8, **asked)
    best = search(question).best
    assert best is not None
    front = wide_front(question, best, 2)

    assert best in front.plans and len(front.plans) > 2 and front.cells <= 8
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
    """Beside separate pools: whatever these reach, the front of both shapes reaches, and some of it only aggregated."""
    fronts = {}
    for shape in ("disaggregated", "auto"):
        question = small_question(model="qwen3-8b", devices=2, shape=shape)
        best = search(question).best
        assert best is not None
        fronts[shape] = wide_front(question, best, 2).plans

    shapes = [[role for role, _ in plan.pools()] for plan in fronts["auto"]]
    assert ["mixed"] in shapes
    for plan in fronts["auto"]:
        assert plan.ttft.at(99) <= question.ttft_seconds * 1.001 and plan.tpot.at(99) <= question.tpot_seconds * 1.001
    for plan in fronts["disaggregated"]:
        assert any(
            all(a <= b * (1 + ALIKE) for a, b in zip(figures(other), figures(plan), strict=True))
            for other in fronts["auto"]
        )


def test_aggregated_alone_have_a_front() -> None:
    """Of this shape only, where it alone is asked for."""
    question = small_question(model="qwen3-8b", devices=2, shape="aggregated")
    best = search(question).best
    assert best is not None
    plans = wide_front(question, best, 2).plans
    assert len(plans) > 1 and all([role for role, _ in plan.pools()] == ["mixed"] for plan in plans)


def test_the_best_plan_is_not_beaten_on_the_whole_cluster() -> None:
    """What the search proves, guesses of the front cannot pass."""
    question = small_question(model="qwen3-8b", devices=8)
    best = search(question).best
    most = max(plan.requests_per_second for plan in wide_front(question, best, 2).plans)
    assert most <= best.requests_per_second * (1 + 1e-6)
