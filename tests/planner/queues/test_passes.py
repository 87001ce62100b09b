"""Passes of prompts of varying length: against sums and packings that can be done by hand or drawn."""

from dataclasses import replace

import numpy as np
import pytest

from planner.balance.imbalance import parse_balance
from planner.costs.latency import balanced_cost
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.queues.machine import Machine
from planner.queues.passes import full_passes_per_second, varied_service
from planner.queues.prompts import Prompts, length_kinds, prompts_of
from planner.search.search import search
from planner.workload import Lengths, Trace, Traffic, Workload, kinds_of_rows
from tests.instances import instance
from tests.questions import small_question


def _machine(ranks: int = 1, budget: float = 8192.0) -> Machine:
    degrees = {"attention_dp": ranks, "moe_ep": ranks} if ranks > 1 else {}
    deployment = instance("qwen3-30b-a3b", "h800", "prefill", "bf16", **degrees)
    return Machine(balanced_cost(deployment, parse_balance("perfect")), ranks, budget, 1)


def _alone(machine: Machine, tokens: float, done: float = 0.0, last: bool = True) -> float:
    load = StepLoad(
        prefill_tokens=tokens,
        prefill_context_tokens=done,
        prefill_pairs=tokens * done + tokens * (tokens + 1) / 2,
        finishing_prompts=float(last),
        mean_tokens=tokens / machine.ranks,
    )
    return float(evaluate(machine.cost, load, 1).seconds)


@pytest.mark.parametrize("squared_cv", [0.25, 1.0])
@pytest.mark.parametrize("shape", ["lognormal", "gamma"])
def test_kinds_keep_the_moments(squared_cv: float, shape: str) -> None:
    """The mean exactly, the squared CV but for what lies between levels in the tail."""
    tokens, weights = length_kinds(Lengths(mean=1000, squared_cv=squared_cv, shape=shape))  # type: ignore[arg-type]
    assert weights.sum() == pytest.approx(1)
    assert tokens @ weights == pytest.approx(1000)
    assert tokens**2 @ weights / 1000**2 - 1 == pytest.approx(squared_cv, rel=0.12)


def test_reuse_is_of_some_prompts_not_of_all() -> None:
    """A mean reuse of 0.4 is many prompts without any and some with nearly all."""
    kinds = prompts_of(Workload(input_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=10), prefix_reuse=0.4))
    assert kinds.reused @ kinds.weights == pytest.approx(400)
    assert set(np.round(kinds.reused / kinds.tokens, 3)) == {0.0, 0.95}


def test_kinds_of_a_trace_keep_its_sums() -> None:
    """Grouping by what is left to compute loses no tokens, reused or not."""
    rng = np.random.default_rng(1)
    tokens = np.rint(rng.lognormal(7, 1, 5000)) + 1
    reused = np.floor(tokens * rng.choice([0.0, 0.9], 5000))
    total, kept, weights = (np.array(column) for column in zip(*kinds_of_rows(tokens, reused), strict=True))
    assert weights.sum() == pytest.approx(1)
    assert total @ weights == pytest.approx(tokens.mean())
    assert kept @ weights == pytest.approx(reused.mean())
    trace = Trace(arrival_seconds=np.arange(5000.0), input_tokens=tokens, output_tokens=tokens, reused_tokens=reused)
    assert Traffic.from_trace(trace).workload.prompts is not None


def test_two_kinds_on_one_group_are_two_durations() -> None:
    """A pass with one prompt lasts as long as that prompt: the mean over kinds, the longest for the longest."""
    machine = _machine()
    prompts = Prompts(np.array([500.0, 4000.0]), np.zeros(2), np.array([0.75, 0.25]))
    service = varied_service(machine, prompts)
    short, long = _alone(machine, 500), _alone(machine, 4000)
    rows, weights = service.durations(np.array([1.0]), 8)
    assert rows.min() == pytest.approx(short, rel=0.02)
    assert rows.max() == pytest.approx(long, rel=0.02)
    assert float(rows[0] @ weights) == pytest.approx(0.75 * short + 0.25 * long, rel=0.15)


def test_a_prompt_beyond_the_budget_takes_all_its_passes() -> None:
    """20,000 tokens on one group of 8,192 a pass: three passes, the later ones attend to the earlier tokens."""
    machine = _machine()
    service = varied_service(machine, Prompts(np.array([20_000.0]), np.zeros(1), np.ones(1)))
    expected = _alone(machine, 8192, last=False) + _alone(machine, 8192, 8192, last=False)
    expected += _alone(machine, 20_000 - 16_384, 16_384)
    assert service.seconds[0] == pytest.approx(expected, rel=1e-6)
    assert service.units_per_prompt == 1


def test_on_several_groups_parts_are_units_of_their_own() -> None:
    """The same prompt on four groups: three units, and two passes after its first."""
    service = varied_service(_machine(ranks=4), Prompts(np.array([20_000.0]), np.zeros(1), np.ones(1)))
    assert service.units_per_prompt == pytest.approx(3)
    (own,) = service.own
    assert len(own.later_seconds) == 2
    assert own.least_seconds == pytest.approx(_alone(_machine(ranks=4), 8192, last=False), rel=1e-6)
    assert service.most >= 4


def test_reused_tokens_cost_no_computing() -> None:
    """A prompt that is reused but for 400 tokens is quicker than a whole one, and slower than 400 tokens alone."""
    machine = _machine()
    whole = varied_service(machine, Prompts(np.array([8000.0]), np.zeros(1), np.ones(1))).seconds[0]
    reused = varied_service(machine, Prompts(np.array([8000.0]), np.array([7600.0]), np.ones(1))).seconds[0]
    assert _alone(machine, 400) < reused < 0.5 * whole


def test_passes_of_many_prompts_add_their_variances() -> None:
    """Sums of drawn prompts within a pass: mean within 5 %, deviation within 25 %."""
    machine = _machine(budget=65_536.0)
    lengths = Lengths(mean=1000, squared_cv=0.5)
    service = varied_service(machine, prompts_of(Workload(input_tokens=lengths, output_tokens=Lengths(mean=1))))
    tokens, weights = length_kinds(lengths)
    drawn = np.random.default_rng(2).choice(tokens, (400, 6), p=weights)
    load = StepLoad(
        prefill_tokens=drawn.sum(axis=1),
        prefill_pairs=(drawn * (drawn + 1) / 2).sum(axis=1),
        finishing_prompts=6.0,
        mean_tokens=drawn.sum(axis=1),
    )
    seconds = np.asarray(evaluate(machine.cost, load, 1).seconds)
    at = np.array([6.0])
    assert float(service.mean(at)[0]) == pytest.approx(seconds.mean(), rel=0.05)
    assert float(np.sqrt(service.variance(at)[0])) == pytest.approx(seconds.std(), rel=0.25)


def test_a_trace_whose_lengths_covary_is_planned_for() -> None:
    """Kinds of prompts and a covariance, as a trace has both, reach a plan."""
    rng = np.random.default_rng(3)
    tokens = np.rint(rng.lognormal(6, 0.8, 2000)) + 1
    answers = np.rint(400 / np.sqrt(tokens)) + 2
    rows = Trace(arrival_seconds=np.cumsum(rng.exponential(0.2, 2000)), input_tokens=tokens, output_tokens=answers)
    workload = Traffic.from_trace(rows).workload
    assert workload.length_covariance < 0
    question = replace(small_question(model="qwen3-8b", devices=2), workload=workload)
    assert search(question).best is not None


@pytest.mark.parametrize(("ranks", "budget"), [(1, 4096.0), (4, 4096.0), (4, 16384.0)])
def test_full_passes_alone_carry_what_the_service_says(ranks: int, budget: float) -> None:
    """One group, few prompts a pass, and passes that are dealt prompt by prompt."""
    tokens, weights = length_kinds(Lengths(mean=1500.0, squared_cv=1.0))
    prompts, machine = Prompts(tokens, np.zeros_like(tokens), weights), _machine(ranks, budget)
    alone = full_passes_per_second(machine, prompts)
    assert alone == pytest.approx(varied_service(machine, prompts).saturation_per_second, rel=1e-3)
