"""What any plan must keep: budgets, limits, monotone answers, and agreement of sizing with planning."""

from dataclasses import replace
from functools import lru_cache

import pytest

from hardware.loader import load_hardware
from models.loader import load_model
from planner.question import Machines, Question
from planner.search.answer import Answer
from planner.search.search import search
from planner.workload import Lengths, Workload


@lru_cache
def question(nodes: int, model: str = "qwen3-30b-a3b", hardware: str = "h100") -> Question:
    """A small question: both roles share the nodes."""
    spec = load_hardware(hardware)
    machines = Machines(
        hardware=spec, devices=nodes * int(spec.devices_per_node.value), weights="bf16", budget=hardware
    )
    return Question(
        model=load_model(model),
        prefill=machines,
        decode=machines,
        workload=Workload(input_tokens=Lengths(mean=2048), output_tokens=Lengths(mean=256)),
        ttft_seconds=1.0,
        tpot_seconds=0.04,
    )


@lru_cache
def answered(nodes: int) -> Answer:
    """The plan of the small question."""
    return search(question(nodes))


def test_plans_keep_budget_and_limits():
    """Every plan of the front stays within the devices and both limits at the percentile."""
    answer = answered(2)
    assert answer.best is not None
    for plan in (answer.best, *answer.pareto):
        assert plan.devices <= 16
        assert plan.ttft.at(99) <= 1.0 * 1.001
        assert plan.tpot.at(99) <= 0.04 * 1.001
        assert plan.prefill.memory.fits and plan.decode.memory.fits


def test_more_chips_never_serve_less():
    """Two, three and four nodes: the rate does not fall."""
    rates = [answered(nodes).best.requests_per_second for nodes in (2, 3, 4)]  # type: ignore[union-attr]
    assert rates == sorted(rates)


def test_sizing_and_planning_agree():
    """A plan sized for a rate serves it when asked for the most on just those devices."""
    asked = replace(question(4), rate_per_second=20.0, objective="chips")
    sized = search(asked).best
    assert sized is not None
    pool = replace(question(4).prefill, devices=sized.devices)
    most = search(replace(question(4), prefill=pool, decode=pool)).best
    assert most is not None
    assert most.requests_per_second >= 20.0 * 0.999


@pytest.mark.parametrize(("ttft", "tpot", "binding"), [(1e-6, 0.04, "ttft"), (1.0, 1e-6, "tpot")])
def test_nearest_limit_is_feasible(ttft: float, tpot: float, binding: str):
    """An impossible limit is named, and nothing is planned."""
    answer = search(replace(question(1), ttft_seconds=ttft, tpot_seconds=tpot))
    assert (answer.best, answer.binding_limit) == (None, binding)
    assert "nearest change" in answer.explanation


def test_the_same_question_has_the_same_answer():
    """Two runs choose the same pools and the same rate."""
    one, other = answered(2).best, search(question(2)).best
    assert one is not None and other is not None
    assert one.prefill.candidate.row == other.prefill.candidate.row
    assert one.decode.candidate.row == other.decode.candidate.row
    assert (one.prefill.instances, one.requests_per_second) == (other.prefill.instances, other.requests_per_second)
