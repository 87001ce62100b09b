"""The search against trying everything, and what must hold when a question changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from ground.workers import Steps
from planner.programme.programme import Programme
from planner.search.fleet import Fleet, aim_of
from planner.search.pareto import dominates
from planner.search.search import Besides, others_of, search
from planner.search.ways import gather_fleet
from tests.planner.programme.test_programme import by_enumeration
from tests.questions import best_of, rate_of, small_answer, small_question

ASKED: list[dict[str, Any]] = [
    {},
    {"model": "qwen3-8b", "devices": 24, "squared_cv": 1.0},
    {"hardware": "cm384", "devices": 24, "tpot_seconds": 0.02},
    {"hardware": "cm384", "devices": 16, "decode": ("h100", 8)},
    {"devices": 16, "objective": "chips", "rate_per_second": 150.0},
    {"devices": 16, "objective": "latency", "rate_per_second": 400.0},
    {"hardware": "cm384", "devices": 16, "decode": ("h100", 8), "objective": "cost", "rate_per_second": 60.0},
]

SMALL: list[dict[str, Any]] = [
    {"model": "qwen3-8b", "devices": 2, "squared_cv": 1.0},
    {"model": "qwen3-8b", "hardware": "cm384", "devices": 2, "decode": ("h100", 2), "ttft_seconds": 0.2},
    {"devices": 3, "objective": "chips", "rate_per_second": 20.0, "microbatches": (1,)},
    {
        "model": "qwen3-8b",
        "hardware": "cm384",
        "devices": 3,
        "decode": ("h100", 2),
        "objective": "cost",
        "rate_per_second": 5.0,
    },
]


@pytest.mark.parametrize("asked", ASKED[3:6], ids=str)
def test_what_stands_beside_a_plan_does_not_change_it(asked: dict[str, Any]) -> None:
    """Commands that ask many questions leave runners-up, certificate and published deployments out."""
    alone, full = search(small_question(**asked), beside=False), small_answer(**asked)
    assert alone.bound is None and full.bound is not None
    for one, other in zip(alone.best.pools(), full.best.pools(), strict=True):
        assert (one[1].instances, one[1].candidate.row) == (other[1].instances, other[1].candidate.row)
    assert alone.best.requests_per_second == full.best.requests_per_second
    assert (alone.best.ttft, alone.best.tpot) == (full.best.ttft, full.best.tpot)


def test_engines_that_are_searched_aside_count_as_those_searched_here() -> None:
    """The last of three is searched aside: each engine comes to what it does alone."""
    names = ("vllm", "sglang", "trtllm")
    question = small_question(model="qwen3-8b", devices=2)
    alone = {name: search(replace(question, engine=name)) for name in names}
    rates = {name: each.best.requests_per_second for name, each in alone.items() if each.best}
    bounds = [each.bound.value for each in alone.values() if each.bound]
    engines = (*names[1:], names[0])
    answer = search(replace(question, engine=engines[0], engines=engines))
    assert {each.engine: each.plan and each.plan.requests_per_second for each in answer.engines} == rates
    assert answer.best.question.engine == answer.engines[0].engine == max(rates, key=lambda name: rates[name])
    assert answer.best in answer.pareto
    assert answer.bound.value == max(bounds)


@pytest.mark.parametrize(
    ("engines", "fields"), [(("vllm", "sglang"), {}), (("vllm", "sglang", "trtllm"), {"ttft_seconds": 1e-3})], ids=str
)
def test_what_is_searched_aside_ends_as_it_should(engines: tuple[str, ...], fields: dict[str, Any]) -> None:
    """Of two engines none is searched aside, and one that is may have no plan: another process goes on to the end."""

    @contextmanager
    def to_the_end(work: Steps[Besides]) -> Iterator[Callable[[], Besides]]:
        yield iter(list(work())).__next__

    question = small_question(model="qwen3-8b", devices=2, engine=engines[0], engines=engines, **fields)
    assert (search(question, aside=to_the_end).best is None) == bool(fields)


@pytest.mark.parametrize("asked", SMALL, ids=str)
def test_the_plan_is_the_best_of_all_choices(asked: dict[str, Any]) -> None:
    """Every (prefill, count) with every (decode, count): none carries more, or the rate on less."""
    question = small_question(**asked)
    (ways,) = gather_fleet(Fleet.of(question)).options
    asked_programme = Programme((tuple(option.sides for option in ways),), aim_of(Fleet.of(question)))
    every = by_enumeration(asked_programme)
    answer = small_answer(**asked)

    assert answer.bound.value == pytest.approx(abs(every), rel=1e-6)
    if question.objective == "throughput":
        carried = answer.best.requests_per_second * (1 + answer.bound.gap)  # before more requests were played
        assert carried == pytest.approx(-every, rel=1e-6)
    if question.objective == "chips":
        assert answer.best.chips == every
    if question.objective == "cost":
        assert answer.best.cost_per_hour == pytest.approx(every)


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_every_plan_keeps_limits_budgets_and_rate(asked: dict[str, Any]) -> None:
    """Of the front too; and none of them is beaten by another."""
    question, answer = small_question(**asked), small_answer(**asked)
    assert answer.best in answer.pareto
    for plan in answer.pareto:
        assert plan.ttft.at(question.percentile) <= question.ttft_seconds
        assert plan.tpot.at(question.percentile) <= question.tpot_seconds
        assert plan.requests_per_second >= (question.rate_per_second or 0.0) * (1 - 1e-9)
        used: dict[str, int] = {}
        for pool in (plan.prefill, plan.decode):
            used[pool.machines.budget] = used.get(pool.machines.budget, 0) + pool.instances * pool.candidate.devices
        for machines in (question.prefill, question.decode):
            assert used[machines.budget] <= machines.devices
        assert not any(dominates(other, plan) for other in answer.pareto)


@pytest.mark.parametrize("shape", ["auto", "aggregated"])
def test_a_plan_that_is_late_over_more_requests_gives_way_to_the_next(shape: str) -> None:
    """Four chips in one instance carry what two instances of two do not, and no more chips are told than that takes."""
    asked = {"model": "qwen3-32b", "hardware": "910b", "devices": 8, "engine": "vllm-ascend@0.23.0", "shape": shape}
    plan = best_of(**asked, lengths=(1500.0, 800.0), rate_per_second=2.0, ttft_seconds=2.0, objective="chips")
    assert plan.chips == 4


def test_no_runner_up_carries_more_than_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short answers that wait for KV carry less than decode alone does, and not the most where that carries most.

    The runners-up that may take the place of the plan are solved once, not again to be told.
    """
    solved = Mock(side_effect=others_of)
    monkeypatch.setattr("planner.search.search.others_of", solved)
    asked = {"devices": 8, "hardware": "h200", "lengths": (128.0, 16.0), "squared_cv": 1.0, "ttft_seconds": 2.0}
    answer = small_answer(**asked)
    assert solved.call_count == 1
    assert all(plan.requests_per_second < answer.best.requests_per_second for plan in answer.pareto[1:])


@pytest.mark.parametrize("rate", [30.0, 200.0])
def test_a_sized_plan_is_the_smallest(rate: float) -> None:
    """Its devices carry the rate when asked for the most, and a device fewer does not."""
    sized = best_of(devices=16, objective="chips", rate_per_second=rate)

    assert rate_of(devices=sized.devices) >= rate * (1 - 1e-9)
    assert rate_of(devices=sized.devices - 1) < rate
