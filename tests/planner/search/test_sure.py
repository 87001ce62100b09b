"""Plans with a confidence: how much longer service times are taken to be."""

from types import SimpleNamespace

import pytest

from planner.search import sure
from tests.questions import small_question

# By how much longer times are assumed: the plan that is best then, and by how much longer its own are.
SHORTER_SUFFICE = {1.0: ("a", 1.05), 1.05: ("b", 1.02), 1.02: ("b", 1.02)}
SHORTER_DO_NOT = {1.0: ("a", 1.05), 1.05: ("b", 1.02), 1.02: ("c", 1.04)}


@pytest.mark.parametrize(("best", "times"), [(SHORTER_SUFFICE, 1.02), (SHORTER_DO_NOT, 1.05)])
def test_times_are_those_of_the_plan_that_is_found(best, times, monkeypatch):
    """A plan whose own times are shorter than those it was found with is searched for with its own."""
    asked, tried = small_question(confidence=0.9), []
    monkeypatch.setattr(sure, "times_of", lambda plan, _: plan[1])

    def solve(stressed):
        tried.append(round(asked.ttft_seconds / stressed[0].ttft_seconds, 6))
        return SimpleNamespace(plans=(best[tried[-1]],))

    answer, found = sure.surely([asked], solve)
    assert (answer.plans, found) == ((("b", 1.02),), (times,))
    assert tried == [1.0, 1.05, 1.02]
