"""Prefill instances: passes take what the prediction says, and the fullest group what is sampled."""

import numpy as np
import pytest

from planner.balance.imbalance import expected_maximum_normal
from planner.instances.prefill_candidates import busiest_prompts
from planner.plans.pools import prefill_prediction
from planner.workload import Lengths
from tests.instances import prefill_found
from tests.questions import small_question


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_the_array_search_times_a_pass_as_the_prediction_does(model: str) -> None:
    """With prompts of one length every DP group holds alike, and ``predict`` says the same seconds."""
    question = small_question(model=model, lengths=(1024.0, 128.0))
    found = prefill_found(question)
    assert found
    for candidate in found:
        predicted = prefill_prediction(question, candidate)
        assert predicted.ttft_seconds == pytest.approx(candidate.pass_seconds, rel=1e-9)


def test_the_fullest_group_by_sampling() -> None:
    """prompts + z·CV·sqrt(prompts) against sums of gamma lengths, within 3 % of the pass."""
    workload = small_question(squared_cv=0.5).workload
    rng = np.random.default_rng(7)
    for prompts, ranks in ((4, 8), (16, 16)):
        tokens = rng.gamma(1 / 0.5, 0.5, size=(4000, ranks, prompts)).sum(axis=2).max(axis=1).mean()
        assert busiest_prompts(workload, float(prompts), ranks) == pytest.approx(tokens, rel=0.06)


def test_fixed_lengths_fill_every_group_alike() -> None:
    """Without variation the fullest group holds what each holds."""
    workload = small_question().workload

    assert workload.input_tokens == Lengths(mean=1024.0)
    assert busiest_prompts(workload, 4.0, 64) == 4.0
    assert expected_maximum_normal(1) == 0.0
