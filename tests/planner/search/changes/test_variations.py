"""Whether similar questions have a plan."""

from dataclasses import replace

import pytest

from planner.search.changes import variations
from planner.search.fleet import Fleet
from planner.search.solve import Choice, choose
from planner.search.ways import gather_fleet
from tests.questions import small_question


def test_rows_of_a_known_choice_are_tried_before_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other row need be searched for a rate that the choice carries; for a higher one all are, and none carries it.

    Without a known choice the first is not known to be carried before all are gathered.
    """
    question = small_question(model="qwen3-8b", devices=4, squared_cv=1.0, shape="aggregated")
    choice = choose(gather_fleet(Fleet.of(replace(question, objective="throughput", rate_per_second=None))))
    assert isinstance(choice, Choice)
    own, searched = variations._has_plan, []
    monkeypatch.setattr(variations, "_has_plan", lambda *asked: searched.append(asked) or own(*asked))
    carried, more = (replace(question, rate_per_second=part * choice.carried) for part in (0.99, 1.05))

    feasible = variations.alike(choice)

    assert feasible(carried) and not searched
    assert not feasible(more) and len(searched) == 1
    assert variations.has_plan(carried) and len(searched) == 2
