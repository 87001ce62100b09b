"""Plans with a confidence: how much longer service times are taken to be."""

from dataclasses import replace
from functools import partial
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from planner.costs.interval import Interval
from planner.plans.servers import deviation_behind
from planner.search import sure
from planner.search.changes.resources import more_compute, more_memory
from planner.search.search import search
from tests.questions import small_question

# By how much longer times are assumed: the plan that is best then, and by how much longer its own are.
SHORTER_SUFFICE = {1.0: ("a", 1.05), 1.05: ("b", 1.02), 1.02: ("b", 1.02)}
BETWEEN = {1.0: ("a", 1.05), 1.05: ("b", 1.02), 1.02: ("c", 1.04), 1.04: ("c", 1.03)}
SHORTER_DO_NOT = {1.0: ("a", 1.05), 1.05: ("b", 1.02), 1.02: ("c", 1.06)}
UNEVEN = {
    "model": "gpt-oss-20b",
    "hardware": "l40s",
    "devices": 4,
    "lengths": (1000.0, 256.0),
    "ttft_seconds": 5.0,
    "engine": "vllm@0.33.0",
}
"""Prefill binds; decode, which is less certain, has room."""


@pytest.mark.parametrize(("best", "found"), [(SHORTER_SUFFICE, "b"), (BETWEEN, "c"), (SHORTER_DO_NOT, "b")])
def test_times_are_those_of_the_plan_that_is_found(best, found, monkeypatch):
    """A plan whose own times are shorter than those it was found with is searched for with its own."""
    asked, tried = small_question(confidence=0.9), []
    monkeypatch.setattr(sure, "needed", lambda plan, _: {"prefill": plan[1], "decode": 1.0})

    def solve(stressed):
        tried.append(stressed[0].stretch_of("prefill"))
        assert stressed[0].on_clock("prefill").ttft_seconds == asked.ttft_seconds / tried[-1]
        assert stressed[0].on_clock("decode").tpot_seconds == asked.tpot_seconds
        return SimpleNamespace(plans=(best[tried[-1]],))

    assert [plan[0] for plan in sure.surely([asked], solve).plans] == [found]
    assert tried == list(best)


def _sure(question):
    return search(replace(question, confidence=0.9, tpot_seconds=0.1), beside=False).best


def test_a_pool_is_slowed_by_its_own_uncertainty_alone():
    """Where decode has room to spare, how uncertain it is neither costs rate nor gives any."""
    plan = _sure(small_question(**{**UNEVEN, "hardware": "h200"}))
    times = sure.times_of(plan, 0.9)
    assert plan.prefill.capacity_per_second < plan.decode.capacity_per_second and times["prefill"] != times["decode"]
    asked = replace(plan.question, stretch=(("prefill", times["prefill"]),)).on_clock("prefill")
    carried = plan.prefill.server(asked).pool_capacity(plan.prefill.instances) / times["prefill"]
    assert plan.requests_per_second == pytest.approx(carried, rel=1e-3)
    assert sure.rate_with(plan, 0.9) == pytest.approx(plan.requests_per_second, rel=1e-3)


@pytest.mark.parametrize("more", [more_memory, more_compute])
def test_more_of_a_resource_never_carries_less_with_confidence(more):
    """Though more memory gives decode a batch whose time is less certain."""
    question = small_question(**UNEVEN)
    machines = replace(question.prefill, hardware=more(question.prefill.hardware))
    richer = replace(question, prefill=machines, decode=machines)
    assert _sure(richer).requests_per_second >= _sure(question).requests_per_second


@given(high=st.floats(1.0001, 2.0), more=st.floats(1.0, 1.00001))
def test_a_deviation_is_told_in_steps_and_never_too_small(high, more):
    """So that the batch that a deviation leads to has that deviation."""
    told, exact = deviation_behind(Interval(1.0, high, 0.8), 1.0), (high - 1) / NormalDist().inv_cdf(0.9)
    assert exact * (1 - 1e-6) <= told < exact + 0.0021
    assert deviation_behind(Interval(1.0, high * more, 0.8), 1.0) - told in (0.0, pytest.approx(0.002))


def test_what_a_surer_plan_carries_is_not_refused(monkeypatch):
    """The plan that is first best needs times with which nothing carries the rate; another needs shorter ones."""
    monkeypatch.setattr(sure, "needed", lambda plan, _: {"prefill": plan})
    asked = small_question(confidence=0.9, rate_per_second=1.0, objective="chips")

    def solve(stressed, surer):
        factor = stressed[0].stretch_of("prefill")
        if factor == 1:
            return SimpleNamespace(plans=(1.05,))
        return SimpleNamespace(plans=(surer,) if factor <= surer or stressed[0].goal.maximised else ())

    assert sure.surely([asked], partial(solve, surer=1.02)).plans == (1.02,)
    assert sure.surely([asked], partial(solve, surer=1.0)).plans == ()


def test_aggregated_steps_are_as_sure_as_the_plan_tells() -> None:
    """On the slower clock fewer requests ran, and the plan counted as surer: it carried 1.709/s, its check 1.699/s."""
    asked: dict[str, Any] = {"model": "qwen3-8b", "hardware": "l40s", "devices": 8, "lengths": (3000.0, 1024.0)}
    question = small_question(**asked, shape="aggregated", engine="sglang@0.5.23", ttft_seconds=0.2, confidence=0.9)
    best = search(question, beside=False).best
    assert best is not None and sure.rate_with(best, 0.9) >= best.requests_per_second * (1 - 1e-9)
    half = search(replace(question, confidence=None, headroom=1.0), beside=False).best
    assert half.played.requests_per_second[1] < 1.5 * half.requests_per_second  # not twice, as without headroom
