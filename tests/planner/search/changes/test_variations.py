"""Whether similar questions have a plan."""

from dataclasses import replace

import pytest

from planner.search.changes.variations import alike
from planner.search.fleet import Fleet
from planner.search.solve import Choice, choose
from planner.search.ways import gather_fleet
from tests.questions import small_question


def test_rows_of_a_known_choice_are_tried_before_all_bounds_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other row need be searched for the rate that the choice carries; a higher one needs all, and has no plan."""
    question = small_question(model="qwen3-8b", devices=4, squared_cv=1.0, shape="aggregated")
    choice = choose(gather_fleet(Fleet.of(replace(question, objective="throughput", rate_per_second=None))))
    assert isinstance(choice, Choice)
    searched = []
    monkeypatch.setattr("planner.search.changes.variations.find", lambda every: searched.append(every) or _Nothing)

    feasible = alike(choice)

    assert feasible(replace(question, rate_per_second=0.99 * choice.carried)) and not searched
    assert not feasible(replace(question, rate_per_second=1.05 * choice.carried)) and searched


class _Nothing:
    plans = ()
    choice = None
