"""Stacked terms give the seconds of the terms one by one, whatever is on a step."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.costs.latency import balanced_cost
from planner.instances.space import groups, role_rows
from planner.manifest.stacks import ORDER, StackedTerms, one_after_the_other, stacked, taken
from planner.manifest.stepcost import evaluate, stage_sum
from planner.manifest.terms import Stage, StepLoad, timings, variables
from planner.question import Question
from tests.questions import small_question

QUESTIONS = {
    "split cores": {"model": "deepseek-v2-lite", "hardware": "cm384", "devices": 16},
    "compute beside communication": {"model": "qwen3-30b-a3b", "hardware": "h100", "devices": 16},
    "measured experts": {"model": "qwen3-30b-a3b", "hardware": "h100", "devices": 8, "engine": "vllm"},
}


def asked(name: str) -> Question:
    """Return one of the questions."""
    return small_question(**QUESTIONS[name])


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(sorted(QUESTIONS)),
    role=st.sampled_from(["prefill", "decode"]),
    microbatches=st.sampled_from([1, 2]),
    decode=st.one_of(st.just(0.0), st.floats(1, 300)),
    chunk=st.one_of(st.just(0.0), st.floats(1, 8192)),
    points=st.sampled_from([0, 3]),
)
def test_stacked_costs_are_the_costs(name, role, microbatches, decode, chunk, points):
    """Every row of both roles, alone or at several loads, with and without prompts or running requests."""
    question = asked(name)
    scale = np.linspace(0.5, 2.0, points)[:, None] if points else 1.0
    load = StepLoad(
        decode_sequences=decode * scale,
        decode_kv_tokens=decode * 1000 * scale,
        prefill_tokens=chunk * scale,
        prefill_pairs=chunk**2 / 2 * scale,
        finishing_prompts=chunk / 4096 * scale,
        mean_tokens=(decode + chunk) * scale,
    )
    for group in groups(question, role, role_rows(question, role), 0):
        cost = balanced_cost(group.deployment, question.balance)
        one_by_one, together = (evaluate(each, load, microbatches) for each in (cost, stacked(cost)))
        assert np.asarray(together.seconds) == pytest.approx(np.asarray(one_by_one.seconds), rel=1e-9)
        assert np.asarray(together.stream_share) == pytest.approx(np.asarray(one_by_one.stream_share))


def test_every_stage_has_its_place():
    """A stage that the order does not name would cost nothing."""
    assert sorted(ORDER) == sorted(get_args(Stage))


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_stages_that_run_one_after_the_other_add_up(name: str):
    """One stage for several: the same seconds on any share of the cores, the same demand."""
    question = asked(name)
    group = groups(question, "decode", role_rows(question, "decode"), 0)[0]
    cost = balanced_cost(group.deployment, question.balance)
    values = variables(cost, StepLoad(decode_sequences=9.0, decode_kv_tokens=9000.0, mean_tokens=9.0), 1)
    stages = one_after_the_other(cost)
    assert stages

    together = stacked(cost, decoding=True).terms
    assert isinstance(together, StackedTerms)
    found, apart = together.timings(values), timings(cost.terms, values)

    assert set(found) == {stages.get(stage, stage) for stage in apart}
    for stage, one in found.items():
        own: tuple[Stage, ...] = tuple(each for each in apart if stages.get(each, each) == stage)
        for cores, dilation in ((1.0, 1.0), (0.25, 1.5)):
            seconds = np.asarray(one.seconds(cores, dilation))
            assert seconds == pytest.approx(seconds * 0 + stage_sum(apart, own, cores, dilation))
        demand = np.asarray(one.demand)
        assert demand == pytest.approx(demand * 0 + sum(apart[each].demand for each in own))


@settings(max_examples=10, deadline=None)
@given(name=st.sampled_from(sorted(QUESTIONS)), microbatches=st.sampled_from([1, 2]), batch=st.floats(2, 300))
def test_costs_for_decoding_are_the_costs_of_steps_without_prompts(name: str, microbatches: int, batch: float):
    """Tokens, and rows of the head, are taken for those of running requests."""
    question = asked(name)
    load = StepLoad(decode_sequences=batch, decode_kv_tokens=batch * 1000, mean_tokens=batch * 0.9)
    for group in groups(question, "decode", role_rows(question, "decode"), 1):
        cost = balanced_cost(group.deployment, question.balance)
        one_by_one, together = (evaluate(each, load, microbatches) for each in (cost, stacked(cost, decoding=True)))
        assert np.asarray(together.seconds) == pytest.approx(np.asarray(one_by_one.seconds), rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(sorted(QUESTIONS)),
    role=st.sampled_from(["prefill", "decode", "mixed"]),
    microbatches=st.sampled_from([1, 2]),
    decode=st.one_of(st.just(0.0), st.floats(1, 300)),
    chunk=st.one_of(st.just(0.0), st.floats(1, 8192)),
    place=st.integers(0, 30),
)
def test_one_of_many_is_evaluated_alone_as_among_them(name, role, microbatches, decode, chunk, place):
    """By one product with a matrix, with prompts at all loads, at some and at none."""
    question = asked(name)
    scale = np.linspace(0.0 if decode and chunk else 0.5, 2.0, 4)[:, None]
    load = StepLoad(
        decode_sequences=decode,
        decode_kv_tokens=decode * 1000,
        prefill_tokens=chunk * scale if chunk else 0.0,
        prefill_pairs=chunk**2 / 2 * scale if chunk else 0.0,
        finishing_prompts=chunk / 4096 * scale if chunk else 0.0,
        mean_tokens=decode + chunk * scale,
    )
    for group in groups(question, role, role_rows(question, role), 0):
        row = min(place, len(group.rows) - 1)
        cost = stacked(balanced_cost(group.deployment, question.balance))
        every = np.broadcast_to(np.asarray(evaluate(cost, load, microbatches).seconds), (4, len(group.rows)))
        one = np.asarray(evaluate(taken(cost, np.array([row])), load, microbatches).seconds)
        assert np.broadcast_to(one, scale.shape) == pytest.approx(every[:, [row]], rel=1e-9)
