"""Lengths, KV of running requests, and moments of a trace."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from planner.workload import (
    Lengths,
    TraceRows,
    Traffic,
    Workload,
    reserved_kv_tokens,
    running_kv_tokens,
    total_kv_tokens,
)


def _workload(squared_cv: float = 0.0, covariance: float = 0.0) -> Workload:
    return Workload(
        input_tokens=Lengths(mean=4096, squared_cv=squared_cv),
        output_tokens=Lengths(mean=1024, squared_cv=squared_cv),
        length_covariance=covariance,
    )


def test_fixed_lengths_hold_half_their_answer():
    """L_in + L_out/2 = 4608 tokens, variance of a uniform phase 1024^2/12."""
    load = running_kv_tokens(_workload())
    assert load.mean_tokens == pytest.approx(4608)
    assert load.variance_squared_tokens == pytest.approx(1024**2 / 12)


def test_exponential_answers_hold_their_whole_mean():
    """E[L^2]/(2 E[L]) = E[L] for exponential lengths: the inspection paradox; the phase is exponential again."""
    load = running_kv_tokens(_workload(squared_cv=1.0))
    assert load.mean_tokens == pytest.approx(4096 + 1024)
    assert load.variance_squared_tokens == pytest.approx(1024**2)


def test_running_kv_of_correlated_lengths_against_samples():
    """Gamma answers, prompts linear in them with noise: sample requests by length and a uniform phase."""
    rng = np.random.default_rng(5)
    answers = 1 + rng.gamma(2.0, 300.0, 400_000)
    prompts = 500 + 1.5 * answers + rng.uniform(-400, 400, answers.size)
    traffic = Traffic.from_trace(
        TraceRows(arrival_seconds=np.arange(answers.size), input_tokens=prompts, output_tokens=answers)
    )
    chosen = rng.choice(answers.size, 400_000, p=answers / answers.sum())
    answered = rng.random(chosen.size) * answers[chosen]
    load = running_kv_tokens(traffic.workload)
    assert load.mean_tokens == pytest.approx((prompts[chosen] + answered).mean(), rel=0.01)
    assert load.variance_squared_tokens == pytest.approx(answered.var(), rel=0.02)


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 5), st.floats(0, 3))
def test_total_kv_grows_with_requests_and_caution(squared_cv: float, deviations: float):
    """More requests or more standard deviations never need less memory."""
    workload = _workload(squared_cv)
    load = running_kv_tokens(workload)
    one = total_kv_tokens(load, 8, deviations)
    assert total_kv_tokens(load, 9, deviations) >= one
    assert total_kv_tokens(load, 8, deviations + 1) >= one


def test_reservation_holds_the_whole_answer():
    """Admission reserves prompt and answer: fixed lengths exactly, varying ones by the requests that run."""
    fixed = Workload(input_tokens=Lengths(mean=4096), output_tokens=Lengths(mean=1024))
    varying = Workload(input_tokens=Lengths(mean=4096), output_tokens=Lengths(mean=1024, squared_cv=1.0))

    assert (reserved_kv_tokens(fixed).mean_tokens, reserved_kv_tokens(fixed).variance_squared_tokens) == (5120, 0)
    assert reserved_kv_tokens(varying).mean_tokens == 4096 + 2 * 1024
    assert reserved_kv_tokens(varying).mean_tokens > running_kv_tokens(varying).mean_tokens


def test_trace_moments():
    """Four requests, one second apart: rate 1, no variance in the gaps, half of the prompt tokens reused."""
    traffic = Traffic.from_trace(
        TraceRows(
            arrival_seconds=[0, 1, 2, 3],
            input_tokens=[10, 30, 10, 30],
            output_tokens=[5, 5, 5, 5],
            reused_tokens=[10, 0, 0, 30],
        )
    )
    assert traffic.rate_per_second == pytest.approx(1)
    assert traffic.workload.arrival_squared_cv == 0
    assert traffic.workload.input_tokens == Lengths(mean=20, squared_cv=0.25)
    assert traffic.workload.output_tokens.squared_cv == 0
    assert traffic.workload.prefix_reuse == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("arrivals", "prompts", "word"),
    [
        ([0.0], [1], "at least 2"),
        ([0, 0], [1, 1], "span"),
        ([1, 0], [1, 1], "not fall"),
        ([0, 1], [1], "every request"),
        ([0, 1], [0, 1], "at least 1 token"),
    ],
)
def test_trace_that_cannot_be(arrivals, prompts, word):
    """One sentence says what a trace must be."""
    with pytest.raises(BadInput, match=word):
        Traffic.from_trace(TraceRows(arrival_seconds=arrivals, input_tokens=prompts, output_tokens=prompts))


def test_workload_that_cannot_be():
    """Lengths must be positive, reuse below one, covariance within what the variances allow."""
    with pytest.raises(BadInput, match="positive"):
        Lengths(mean=0)
    with pytest.raises(BadInput, match="--prefix-reuse"):
        Workload(input_tokens=Lengths(mean=1), output_tokens=Lengths(mean=1), prefix_reuse=1)
    with pytest.raises(BadInput, match="covariance"):
        _workload(covariance=1.0)
