"""The quickest plan against trying every pair of columns, and bounds that no queue undercuts."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from planner.instances.candidates import Count
from planner.objective import Aim
from planner.offers.aggregated_kinds import AggregatedKind
from planner.offers.decode_kinds import DecodeKind
from planner.offers.kinds import PrefillKind
from planner.programme.columns import Side
from planner.question import Question
from planner.search.gather import Pools, aggregated as aggregate, gather
from tests.questions import best_of, small_answer, small_question

SMALL: list[dict[str, Any]] = [
    {"model": "qwen3-8b", "devices": 3, "rate_per_second": 4.0, "ttft_seconds": 0.3},
    {"model": "qwen3-8b", "devices": 2, "decode": ("910b", 2), "rate_per_second": 2.0, "ttft_seconds": 0.3},
    {"model": "deepseek-v2-lite", "hardware": "cm384", "devices": 4, "rate_per_second": 8.0, "ttft_seconds": 0.3},
]
BOTH: list[dict[str, Any]] = [
    {"model": "qwen3-8b", "devices": 3, "rate_per_second": 4.0, "ttft_seconds": 0.3},
    {"model": "qwen3-8b", "devices": 4, "rate_per_second": 60.0},
]


def gathered(asked: dict[str, Any]) -> tuple[Question, Pools]:
    """Return a question for the lowest latency and its columns."""
    question = small_question(**asked, objective="latency")
    return question, gather(question)


def at_rate(side: Side, rate: float) -> Side:
    """Return the columns, unsolved, for a rate."""
    return Side(side.role, side.machines, side.offers, unit_per_second=rate)


def seconds_of(side: Side, column: int, rate: float) -> float:
    """Return what a request takes in a column, solved."""
    kind = side.server(int(side.offer[column]))
    assert isinstance(kind, PrefillKind | DecodeKind | AggregatedKind)
    return kind.mean_seconds(int(side.left[column]), rate)


@pytest.mark.parametrize("asked", SMALL, ids=str)
def test_no_pair_of_columns_is_quicker(asked: dict[str, Any]) -> None:
    """Every pair that fits and carries the rate, each column solved; the plan's own end to end agrees."""
    question, pools = gathered(asked)
    rate = float(asked["rate_per_second"])
    timed = [[seconds_of(side, column, rate) for column in range(side.size)] for side in pools.sides]
    shared = question.prefill.budget == question.decode.budget
    sums = [
        one + other
        for (first, one), (second, other) in product(enumerate(timed[0]), enumerate(timed[1]))
        if not shared or pools.prefill.devices[first] + pools.decode.devices[second] <= question.prefill.devices
    ]
    answer = small_answer(**asked, objective="latency")

    assert answer.best.e2e_mean_seconds == pytest.approx(min(sums), rel=1e-3)
    assert answer.bound.value == pytest.approx(min(sums), rel=1e-3) and answer.bound.gap < 1e-3
    assert answer.best.requests_per_second == rate
    assert answer.best.ttft.at(99) <= question.ttft_seconds and answer.best.tpot.at(99) <= question.tpot_seconds


@pytest.mark.parametrize("asked", SMALL, ids=str)
def test_no_column_is_quicker_than_its_bound(asked: dict[str, Any]) -> None:
    """At a low, a middling and a high share of what it carries at most."""
    _, pools = gathered(asked)
    random = np.random.default_rng(3)
    for side in pools.sides:
        for column in random.choice(side.size, min(side.size, 5), replace=False):
            for share in (0.05, 0.6, 0.95):
                rate = float(side.rate[column]) * share
                bound = float(at_rate(side, rate).seconds[column])
                assert bound <= seconds_of(side, int(column), rate) * (1 + 1e-9)


def test_the_quickest_plan_keeps_its_limits_behind_its_prefill() -> None:
    """Prompts of TP=4 end closer together than answers of 16 tokens bear: TPOT was 30.48 ms over 30.2."""
    shape: dict[str, Any] = {"model": "llama-3.1-70b", "hardware": "rtx-pro-6000", "devices": 8, "engine": "vllm"}
    asked = shape | {"lengths": (512.0, 16.0), "ttft_seconds": 20.0, "tpot_seconds": 0.0302, "percentile": 95.0}
    answer = small_answer(**asked, rate_per_second=0.266, objective="latency")
    assert answer.best.tpot.at(95) <= 0.0302
    assert answer.bound.value < answer.best.e2e_mean_seconds  # of the quicker one that is late


def aggregated(asked: dict[str, Any]) -> Side:
    """Return every column of aggregated instances that carries some rate, whatever is known."""
    question = small_question(**{**asked, "rate_per_second": 1e-6, "shape": "auto", "objective": "latency"})
    aim = Aim(devices={question.decode.budget: question.decode.devices}, objective="latency", rate=1.0)
    return aggregate(question, aim, None, None, Count()).option(question).decode


@pytest.mark.parametrize("asked", BOTH, ids=["aggregated", "separate"])
def test_no_column_of_either_shape_is_quicker(asked: dict[str, Any]) -> None:
    """Every aggregated column solved, beside the quickest separate pools; the bound is what is reached."""
    side, rate = aggregated(asked), float(asked["rate_per_second"])
    single = min(seconds_of(side, column, rate) for column in range(side.size))
    apart, best = (small_answer(**asked, objective="latency", shape=shape) for shape in ("disaggregated", "auto"))

    quickest_of_all = min(single, apart.best.e2e_mean_seconds)
    assert best.best.e2e_mean_seconds == pytest.approx(quickest_of_all, rel=1e-3)
    links = getattr(best.best, "links", None)  # waits for which are no part of the bound
    waits = links.wait_seconds if links else 0.0
    assert best.bound.value == pytest.approx(quickest_of_all - waits, rel=1e-3)
    assert best.bound.gap == pytest.approx(waits / best.bound.value, abs=1e-3)
    assert "separate prefill and decode pools" in best.bound.covers and "aggregated instances" in best.bound.covers
    assert ([role for role, _ in best.best.pools()] == ["mixed"]) == (single < apart.best.e2e_mean_seconds)
    assert best.best.ttft.at(99) <= side.server(0).question.ttft_seconds  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        # Few budgets of prompts are in time.
        (
            {"model": "qwen3-30b-a3b", "hardware": "a100", "devices": 2, "lengths": (8192, 1), "ttft_seconds": 3.1},
            0.999,
        ),
        # Most requests keep TPOT with caps whose full batch exceeds it.
        ({"model": "llama-3.1-8b", "hardware": "h200", "lengths": (8192, 1024), "percentile": 50}, 0.97),
        # No prefill instance of one size keeps the limit.
        ({"model": "llama-3.1-70b", "hardware": "h800", "devices": 8, "lengths": (4096, 128)}, 0.9),
    ],
    ids=["prefill", "decode", "sizes"],
)
def test_near_the_capacity_the_quickest_plan_is_no_slower_than_the_smallest(asked, share):
    """It exists up to the largest rate, whatever budgets and caps are late there."""
    asked = {"ttft_seconds": 5.0, "tpot_seconds": 0.015 if share == 0.97 else 0.05, "devices": 4} | asked
    most = best_of(**asked)
    rate = most.requests_per_second * share
    smallest, quickest = (
        best_of(**asked, rate_per_second=rate, objective=objective) for objective in ("chips", "latency")
    )
    assert quickest.e2e.mean <= smallest.e2e.mean * 1.01


def test_aggregated_alone_is_the_quickest_of_its_shape() -> None:
    """Where two pools do not fit, and where this shape alone is asked for."""
    asked = {"model": "qwen3-8b", "rate_per_second": 2.0, "ttft_seconds": 0.5, "objective": "latency"}
    single = best_of(**asked, devices=1, shape="auto")
    alone = best_of(**asked, devices=3, shape="aggregated")

    assert [role for role, _ in single.pools()] == ["mixed"]
    assert alone.e2e.mean <= single.e2e.mean * (1 + 1e-6)


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "qwen3-8b", "devices": 2, "ttft_seconds": 2.0, "lengths": (20000.0, 20.0)},
        {"model": "qwen3-8b", "devices": 2, "ttft_seconds": 1.0, "squared_cv": 1.0},
        {"model": "qwen3-30b-a3b", "devices": 8},
        {"model": "qwen3-8b", "devices": 2, "lengths": (512.0, 1.0)},
        {"model": "deepseek-r1", "hardware": "h200", "devices": 16, "lengths": (8000.0, 200.0), "drafts": (0, 1)},
    ],
    ids=["long prompts", "varied", "experts", "one token", "drafts"],
)
def test_no_aggregated_column_is_quicker_than_its_bound(asked: dict[str, Any]) -> None:
    """At a low and a high share of what it carries at most, at the budget that is quickest."""
    side, random = aggregated(asked), np.random.default_rng(3)
    few = 1 if asked.get("squared_cv") else 3  # whose queues are sampled, a second each
    for column in random.choice(side.size, min(side.size, few), replace=False):
        for share in (0.02, 0.6):
            rate = float(side.rate[column]) * share
            bound = float(at_rate(side, rate).seconds[column])
            assert 0 < bound <= seconds_of(side, int(column), rate)
