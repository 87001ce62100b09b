"""A small share of the hunt; all of it is `python -m tests.fuzz --cases 20000`."""

from itertools import count

import pytest

from tests.fuzz.cases import PREDICTED, WEIGHTS, Case, drawn, read_case
from tests.fuzz.desks import desk_faults, desks
from tests.fuzz.hunt import faults
from tests.fuzz.truths import (
    TRUTHS,
    Asking,
    Truth,
    alike,
    contradictions,
    drawn as drawn_question,
    explained,
    looser,
    most,
    repeated,
    sized,
)

QUICK = [name for name, share in WEIGHTS.items() if share > 2 and name != "import"]  # which plans, in seconds
SMALL_QUESTIONS = [each for each in range(80) if drawn_question(each, 3).flags["devices"] <= 4][:4]


@pytest.mark.parametrize("command", QUICK)
def test_nothing_breaks_a_command(command: str) -> None:
    """Whatever is typed or stands in a file: done, bad input in one line, or infeasible, and nothing left behind."""
    for case in drawn(3, 1, command):
        assert faults(case) == [], case.arguments


def test_the_hunt_finds_what_is_wrong() -> None:
    """A fault, a hang, a file left and a payload are told; a case that is written down is the same case."""
    case = Case(command="deploy", arguments=["models", "qwen3-8b"], files={"a": b"\xff"})
    assert faults(case) == [] and read_case(case.told()) == case
    noise = Case(command="models", arguments=["models", "qwen3-8b"], files={}, environment={"PYTHONHOME": "/absent"})
    assert "ended with 1" in faults(noise)[0]
    assert faults(case, limit_seconds=0.001)[0].startswith("hangs")
    two = Case(command="predict", arguments=["predict", "qwen3-8b", *PREDICTED, "--out", "a"], files={}, beside=True)
    assert faults(two) == []
    shell = Case(command="models", arguments=["models", "qwen3-8b"], files={"a.sh": b"A=`echo>PWNED`\n"})
    assert faults(shell) == ["a payload was run"]


def test_a_page_answers_whatever_is_asked() -> None:
    """`plan ui` shows a plan with its files and its command, or why there is none, as sound HTML."""
    assert [(asked, found) for asked in desks(3, 1) for found in desk_faults(asked)] == []


def test_answers_do_not_contradict_each_other() -> None:
    """A small share of `python -m tests.fuzz --truths 500`."""
    flags, found = contradictions(2, 1, [truth for truth in TRUTHS if truth not in (alike, explained, repeated)])
    assert found == [], flags


@pytest.mark.parametrize("number", SMALL_QUESTIONS)
def test_every_door_tells_the_same_figures(number: int) -> None:
    """Headline, table, JSON, explain and check; more by `python -m tests.fuzz --truths 200 --only alike`."""
    flags, found = contradictions(number, 3, [alike])
    assert found == [], flags


def test_what_is_sized_for_a_rate_keeps_limits_where_prompts_find_prefill_full() -> None:
    """Where prefill's room binds, columns that carry a rate may be late at it: such a rate is refused, not promised."""
    ask = drawn_question(51, 41)
    rate = ask.rate()
    assert rate == ask.rate(rate=rate) and ask.rate(rate=rate * 1.001) == 0
    assert contradictions(51, 41, [sized])[1] == []
    plan = ask.plan(rate=rate)
    assert plan.crowded_share > 0


@pytest.mark.parametrize(("number", "seed", "truth"), [(33, 2, sized), (85, 41, looser)])
def test_budgets_are_told_apart_near_saturation(number: int, seed: int, truth: Truth) -> None:
    """Where TTFT may be long few requests hardly wait, and tell which budget is the least late, not which saturates."""
    assert contradictions(number, seed, [truth])[1] == []


def test_contradictions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that falls with every answer, a plan that sizing refuses and a pin that serves more are told."""
    falling, rising = count(100.0, -1.0), count(100.0)
    monkeypatch.setattr(Asking, "plan", lambda *_, **__: None)
    monkeypatch.setattr(Asking, "rate", lambda *_, **__: next(falling))
    assert [len(contradictions(0, 1, [truth])[1]) > 0 for truth in (looser, sized)] == [True, True]
    monkeypatch.setattr(Asking, "rate", lambda *_, **__: next(rising))
    assert len(contradictions(0, 1, [most])[1]) == 3
