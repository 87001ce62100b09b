"""Refusals: the reason is right, and the nearest change that is told would really do."""

import re
from dataclasses import replace
from typing import Any

import pytest

from ground.units import parse_duration, parse_rate
from planner.search.answer import Answer
from planner.search.changes.missing import fastest_tpot, fastest_ttft, fitting_sizes, smallest_devices, with_devices
from planner.search.changes.refusal import answered
from planner.search.search import search
from planner.workload import Lengths, Workload
from tests.questions import small_question

LIMITS: list[dict[str, Any]] = [
    {"tpot_seconds": 0.0002, "model": "qwen3-8b", "devices": 4},
    {"ttft_seconds": 0.002},
    {"ttft_seconds": 0.002, "model": "qwen3-8b", "devices": 4, "squared_cv": 0.5},
    {"tpot_seconds": 0.005, "model": "qwen3-8b", "devices": 4, "lengths": (16_384.0, 8.0)},
]


def told(answer: Answer, pattern: str) -> str:
    """Return what the explanation of a refusal says in place of the pattern's group."""
    assert answer.best is None and answer.bound is None and answer.pareto == ()
    found = re.search(pattern, answer.explanation)
    return found.group(1)


@pytest.mark.parametrize("rate", [None, 0.1])
def test_answers_that_kv_makes_late_at_every_rate_are_refused_for_that(rate: float | None) -> None:
    """Of 16 tokens behind prompts of up to 20 times the mean, whose KV crosses PCIe: this ended as a fault."""
    asked: dict[str, Any] = {"model": "qwen3-8b", "hardware": "l40s", "devices": 2, "engine": "vllm@0.33.0"}
    question = small_question(**asked, ttft_seconds=2.0, tpot_seconds=0.03, rate_per_second=rate)
    lengths = Workload(input_tokens=Lengths(mean=2048.0, squared_cv=1.0), output_tokens=Lengths(mean=16.0))
    answer = answered(replace(question, workload=lengths, objective="chips" if rate else "throughput"))
    assert answer.best is None and "KV reaches decode too late" in answer.explanation
    assert "carry" not in answer.explanation


@pytest.mark.parametrize("asked", [("qwen3-8b", "h100", 1), ("llama-3.1-70b", "l40s", 8)])
def test_a_refusal_with_confidence_tells_what_lacks(asked: tuple[str, str, int]) -> None:
    """Of one device for two roles, and of eight where as predicted there is a plan: it said "devices binds"."""
    question = small_question(
        *asked, lengths=(1000.0, 200.0), tpot_seconds=0.055, confidence=0.9, shape="disaggregated"
    )
    answer = answered(replace(question, engine="trtllm@1.2.1"))
    assert "the roles together need more devices than there are: prefill at least" in answer.explanation


@pytest.mark.parametrize("asked", LIMITS, ids=str)
def test_the_nearest_limit_is_feasible(asked: dict[str, Any]) -> None:
    """Asked again with the limit as it is printed, there is a plan; the asked one was tighter."""
    question = small_question(**asked)
    name = next(field for field in asked if field in ("ttft_seconds", "tpot_seconds"))
    answer = answered(question)
    assert answer.binding_limit == name.removesuffix("_seconds")

    nearest = parse_duration(told(answer, r"nearest change: --t\w+ ([\d.]+\w+)"), "nearest")

    assert nearest > asked[name]
    assert search(replace(question, **{name: nearest}), beside=False).best is not None


def test_the_fastest_time_of_unequal_prompts_is_that_of_the_one_at_the_percentile() -> None:
    """That of a mean prompt kept the limit that the sentence said is missed."""
    question = small_question(model="qwen3-8b", devices=4, ttft_seconds=0.1, lengths=(4096.0, 64.0))
    lengths = replace(question.workload, input_tokens=Lengths(mean=4096.0, squared_cv=1.0))
    unequal = replace(question, workload=lengths)
    assert fastest_ttft(question) < 0.1 < 3 * fastest_ttft(question) < fastest_ttft(unequal)


@pytest.mark.parametrize("asked", [{}, {"model": "qwen3-8b", "devices": 2}], ids=["many", "one for each role"])
def test_two_limits_out_of_reach_are_eased_together(asked: dict[str, Any]) -> None:
    """Asked again with both, there is a plan; with either alone there is none."""
    question = small_question(ttft_seconds=0.002, tpot_seconds=0.0002, **asked)
    answer = answered(question)
    ttft = parse_duration(told(answer, r"nearest change: --ttft ([\d.]+\w+) with --tpot"), "nearest")
    tpot = parse_duration(told(answer, r"with --tpot ([\d.]+\w+), for 200 us cannot be kept either"), "nearest")

    assert search(replace(question, ttft_seconds=ttft), beside=False).best is None
    assert search(replace(question, ttft_seconds=ttft, tpot_seconds=tpot), beside=False).best is not None


def test_limits_that_no_easing_helps_are_told_with_what_the_devices_carry() -> None:
    """The rate is beyond the devices too: the rate that is told has a plan, where the asked one has none."""
    question = small_question(model="qwen3-8b", devices=4, objective="chips", rate_per_second=1e4, tpot_seconds=0.0002)
    answer = answered(question)
    limit = parse_duration(told(answer, r"not even --tpot ([\d.]+ \w+) suffices"), "nearest")
    rate = parse_rate(told(answer, r"with both limits so eased 4 devices carry ([\d.]+/s), not"), "nearest")

    loose = replace(question, tpot_seconds=limit, ttft_seconds=32 * question.ttft_seconds)
    assert search(replace(loose, rate_per_second=0.99 * rate), beside=False).best is not None
    assert search(loose, beside=False).best is None


def test_devices_are_offered_where_no_easing_of_limits_helps() -> None:
    """Four devices hold one role alone: the number that is told has a plan."""
    asked = small_question("llama-3.1-70b", "l40s", 4, tpot_seconds=0.05, shape="disaggregated", rate_per_second=0.01)
    size = int(told(answered(replace(asked, objective="chips")), r"nearest change: --devices (\d+); not even --tpot"))
    assert search(asked.on_roles(lambda part: replace(part, devices=size)), beside=False).best is not None


@pytest.mark.parametrize("devices", [4, 2])
def test_a_limit_beyond_the_fastest_time_is_not_answered_with_a_shorter_one(devices: int) -> None:
    """Prompts that spread far miss a limit above the fastest time: the change that is told is longer."""
    question = small_question(model="qwen3-8b", devices=devices, squared_cv=100.0, ttft_seconds=0.1)
    assert parse_duration(told(answered(question), r"nearest change: --ttft ([\d.]+\w+)"), "nearest") > 0.1


def test_a_cache_that_does_not_fit_is_not_blamed_on_the_weights() -> None:
    """Weights fit; what one request holds does not."""
    explanation = answered(small_question(model="qwen3-8b", devices=2, lengths=(1024.0, 4_000_000.0))).explanation
    assert "too much" not in explanation and "hold one decode request of 4001024 tokens" in explanation


def test_a_supernode_does_not_grow() -> None:
    """Beyond all of a supernode no number of devices is offered."""
    question = small_question(hardware="cm384", devices=32, objective="chips", rate_per_second=1e6)
    why = told(answered(question), "(.*times what they carry.*)")
    assert "--devices" not in why


def test_the_fastest_time_is_that_of_the_machine_not_of_the_question() -> None:
    """Whatever limit is asked, the fastest instance takes the same time."""
    tight, loose = small_question(tpot_seconds=0.001), small_question(tpot_seconds=0.05)

    assert fastest_tpot(tight) == pytest.approx(fastest_tpot(loose), rel=0.03)
    assert fastest_ttft(tight) == fastest_ttft(loose)


@pytest.mark.parametrize(("model", "devices"), [("llama-3.1-70b", 1), ("qwen3-235b-a22b", 4)])
def test_the_smallest_number_of_devices_is_the_smallest(model: str, devices: int) -> None:
    """An instance fits on the devices told and on none fewer, tried one by one."""
    question = small_question(model=model, devices=devices)
    answer = answered(question)
    assert (answer.best, answer.binding_limit) == (None, "memory")

    smallest = int(told(answer, r"holds a \w+ instance is (\d+)"))

    fits = [count for count in range(1, 2 * smallest + 1) if fitting_sizes(with_devices(question, count), "prefill")]
    assert fits[0] == smallest == smallest_devices(question, "prefill")
    assert fits == list(range(smallest, 2 * smallest + 1))


def test_one_of_each_role_is_needed() -> None:
    """A model that fits once does not fit twice: devices bind, and twice as many do."""
    question = small_question(model="qwen3-8b", devices=1)
    answer = answered(question)

    assert (answer.best, answer.binding_limit) == (None, "devices")
    assert search(with_devices(question, 2), beside=False).best is not None


def test_a_rate_beyond_the_devices_is_refused_with_one_that_they_carry() -> None:
    """The nearest rate, as it is printed, has a plan, and the devices told carry what was asked."""
    question = small_question(model="qwen3-8b", devices=8, rate_per_second=2_000.0, objective="latency")
    answer = answered(question)
    assert (answer.best, answer.binding_limit) == (None, "devices")

    nearest = parse_rate(told(answer, r"--rate (\S+),"), "nearest")
    wanted = int(told(answer, r"--devices (\d+)"))

    assert nearest < 2_000.0
    assert search(replace(question, rate_per_second=nearest), beside=False).best is not None
    assert search(with_devices(question, round(wanted * 1.1)), beside=False).best is not None


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "qwen3-8b", "devices": 2, "tpot_seconds": 0.001},
        {"model": "qwen3-8b", "devices": 2, "ttft_seconds": 0.005},
        {"model": "deepseek-r1", "devices": 2},
        {"model": "qwen3-8b", "devices": 2, "objective": "chips", "rate_per_second": 500.0},
        {"model": "qwen3-8b", "devices": 2, "survive": "instance"},
    ],
    ids=str,
)
def test_the_limit_has_the_same_name_without_a_sentence(asked: dict[str, Any]) -> None:
    """Sweeps and comparisons leave the sentence out, which takes searches of its own; what binds stays."""
    question = small_question(**asked)
    told, name = answered(question), search(question)
    assert name.best is None and name.explanation == ""
    assert name.binding_limit == told.binding_limit != ""
