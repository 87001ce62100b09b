"""Nearest changes are feasible as printed, and a little less is not."""

from dataclasses import replace

import pytest

from planner.question import Formats, Question
from planner.search.changes.nearest import _quantised, limit_change, nearest_changes
from planner.search.changes.variations import has_plan
from planner.search.search import search
from tests.plans import small_plan
from tests.questions import small_question


def _asked() -> Question:
    plan = small_plan(model="qwen3-8b", devices=4)
    return replace(plan.question, rate_per_second=2.0 * plan.requests_per_second, objective="chips")


def test_every_change_has_a_plan() -> None:
    """Twice what the devices carry: each change that is told is solved, and names its flag."""
    question = _asked()
    assert not has_plan(question)
    changes = {change.direction: change for change in nearest_changes(question)}
    assert {"rate", "chips", "TTFT", "TPOT", "prompts", "outputs"} <= changes.keys()
    for change in changes.values():
        if change.question is not None:
            assert change.flag is not None
            assert change.value is not None
            assert search(change.question, beside=False).best is not None
    rate = changes["rate"].question
    assert rate.rate_per_second == pytest.approx(small_plan(model="qwen3-8b", devices=4).requests_per_second, rel=0.04)


def test_the_limit_that_is_told_is_near_the_least() -> None:
    """A TPOT below what any instance can do: the change keeps the limit, 8 % less does not."""
    question = replace(small_plan(model="qwen3-8b", devices=4).question, tpot_seconds=0.001)
    (change,) = [change for change in nearest_changes(question) if change.direction == "TPOT"]
    tighter = replace(change.question, tpot_seconds=change.question.tpot_seconds * 0.92)
    assert not has_plan(tighter)


def test_formats_that_were_asked_are_not_told_again() -> None:
    """INT8 would do for a model that two devices do not hold in BF16, unless it was among the formats asked."""
    bf16 = Formats(prefill="bf16", decode="bf16", kv="bf16")
    question = replace(small_question("qwen3-32b", "910b", 2), formats=(bf16,))
    machines = replace(question.prefill, weights="bf16")
    question = replace(question, prefill=machines, decode=machines)

    found = {change.value: change for change in (solve() for solve in _quantised(question, has_plan).values())}

    assert set(found) >= {"int8"} and "bf16" not in found
    changed = found["int8"].question
    assert not changed.formats and changed.prefill.weights == "int8" and has_plan(changed)


def test_a_limit_that_is_named_has_a_plan() -> None:
    """A rate close to none was a plan to what tries changes and none to the search: 314 ms was refused in its turn."""
    asked = {"model": "llama-3.3-70b", "hardware": "a100", "devices": 8, "lengths": (3000.0, 300.0), "shape": "auto"}
    question = small_question(**asked, engine="trtllm@1.2.1", ttft_seconds=0.15, tpot_seconds=0.04)
    change = limit_change(question, True, has_plan)
    assert change.question is not None
    assert search(change.question, beside=False).feasible
