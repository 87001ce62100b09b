"""Which sizes are queued: those that the best plans use."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner.shortlist as shortlist_room
from planner.candidates import decode_all, prefill_found
from planner.decode_candidates import Count
from planner.question import Question
from planner.search import search
from planner.shortlist import NOMINAL, best_per_size, pair_score, shortlist
from tests.questions import small_answer, small_question


def brute_force_rate(question: Question, first, second) -> float:
    """The most that any pair of counts of two sizes carries at nominal rates."""
    shared = question.prefill.budget == question.decode.budget
    return max(
        (
            min(
                one * NOMINAL["prefill"] * first.requests_per_second,
                other * NOMINAL["decode"] * second.requests_per_second,
            )
            for one in range(1, question.prefill.devices // first.devices + 1)
            for other in range(1, question.decode.devices // second.devices + 1)
            if not shared or one * first.devices + other * second.devices <= question.prefill.devices
        ),
        default=0.0,
    )


@pytest.mark.parametrize("decode", [None, ("h20", 8)])
def test_scores_are_the_best_counts_of_two_sizes(decode: tuple[str, int] | None) -> None:
    """Against trying every pair of counts, one pool of devices or two."""
    question = small_question(devices=24, decode=decode)
    for first in prefill_found(question, Count()):
        for second in decode_all(question, Count()):
            expected = brute_force_rate(question, first, second)
            assert pair_score(question, first, second) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(rate=st.floats(1.0, 900.0))
def test_an_asked_rate_scores_the_fewest_devices(rate: float) -> None:
    """For chips the score of two sizes is minus the devices of the fewest instances that carry the rate."""
    question = small_question(devices=24, objective="chips", rate_per_second=rate)
    for first in prefill_found(question, Count())[:3]:
        for second in decode_all(question, Count())[:3]:
            counts = (
                math.ceil(rate / (NOMINAL["prefill"] * first.requests_per_second)),
                math.ceil(rate / (NOMINAL["decode"] * second.requests_per_second)),
            )
            used = counts[0] * first.devices + counts[1] * second.devices
            score = pair_score(question, first, second)
            assert score == -used if used <= 24 else score < -1e8


def test_best_per_size_keeps_one_of_each() -> None:
    """The highest rate of each size, smallest size first."""
    found = decode_all(small_question(), Count())

    assert best_per_size([*reversed(found), *found]) == found
    assert [each.devices for each in found] == sorted({each.devices for each in found})


def test_at_most_so_many_sizes_are_queued() -> None:
    """A large machine has many sizes; few are queued."""
    question = small_question(hardware="cm384", devices=256)
    lists = shortlist(question, prefill_found(question, Count()), decode_all(question, Count()))

    assert [len(each) for each in lists] == [shortlist_room.QUEUED_SIZES] * 2


@pytest.mark.parametrize(
    "asked",
    [
        {"hardware": "cm384", "devices": 80, "squared_cv": 0.5, "ttft_seconds": 0.4, "tpot_seconds": 0.02},
        {"devices": 72, "model": "qwen3-8b", "squared_cv": 1.0, "tpot_seconds": 0.015},
        {"devices": 88, "model": "qwen3-8b", "objective": "chips", "rate_per_second": 1500.0},
    ],
    ids=str,
)
def test_queueing_every_size_finds_nothing_better(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortlist loses less than half a percent of the rate, and no device."""
    short = small_answer(**asked).best
    monkeypatch.setattr(shortlist_room, "QUEUED_SIZES", 1000)
    whole = search(small_question(**asked)).best

    assert short is not None and whole is not None
    assert short.requests_per_second >= whole.requests_per_second * 0.995
    if asked.get("objective") == "chips":
        assert short.devices == whole.devices
