"""Prefill instances: every row with every budget, costed one by one, has no better answer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.balance.imbalance import expected_maximum_normal
from planner.costs.latency import balanced_cost
from planner.instances.decode_candidates import Count
from planner.instances.prefill_candidates import (
    budgets,
    busiest_prompts,
    pass_seconds,
    prefill_candidates,
    prefill_fits,
)
from planner.instances.space import groups, role_rows, row_deployment
from planner.plans.pools import prefill_prediction
from planner.question import Question
from planner.workload import Lengths
from tests.questions import small_question

LONGEST = 0.5

CASES = [
    ("qwen3-8b", "h100", 8, 1, 0.0, 1024.0),
    ("qwen3-30b-a3b", "h100", 16, 2, 0.5, 1024.0),
    ("qwen3-30b-a3b", "cm384", 16, 1, 1.0, 512.0),
    ("deepseek-v2-lite", "cm384", 16, 2, 0.0, 4096.0),
]


def brute_force(question: Question, microbatches: int, longest: float = LONGEST) -> dict[int, float]:
    """Return the most requests per second of any row and budget by instance size, costed in plain numbers."""
    best: dict[int, float] = {}
    workload = question.workload
    for group in groups(question, "prefill", role_rows(question, "prefill"), 0):
        for row in group.rows:
            deployment, ranks = row_deployment(group.deployment, row), row.strategy.attention_dp
            cost = balanced_cost(deployment, question.balance)
            for prompts, chunks in budgets(workload):
                fullest = busiest_prompts(workload, float(prompts), ranks)
                seconds = pass_seconds(cost, workload, fullest, float(prompts), chunks, microbatches)
                if seconds <= longest and prefill_fits(deployment, workload, prompts, chunks):
                    rate = prompts * ranks / float(seconds)
                    best[row.strategy.devices] = max(best.get(row.strategy.devices, 0.0), rate)
    return best


@pytest.mark.parametrize(("model", "hardware", "devices", "microbatches", "squared_cv", "prompt"), CASES)
def test_nothing_better_among_all_rows_and_budgets(
    model: str, hardware: str, devices: int, microbatches: int, squared_cv: float, prompt: float
) -> None:
    """The bounds by which rows are dropped hold: the best of each size is that of brute force."""
    question = small_question(
        model=model, hardware=hardware, devices=devices, squared_cv=squared_cv, lengths=(prompt, 128.0)
    )
    found: dict[int, float] = {}
    for group in groups(question, "prefill", role_rows(question, "prefill"), 0):
        for candidate in prefill_candidates(question, group, microbatches, Count(), LONGEST, {}):
            assert candidate.pass_seconds <= LONGEST
            found[candidate.devices] = max(found.get(candidate.devices, 0.0), candidate.requests_per_second)

    assert found == {size: pytest.approx(rate, rel=1e-9) for size, rate in brute_force(question, microbatches).items()}


@settings(max_examples=12, deadline=None)
@given(data=st.data(), longest=st.floats(0.05, 1.0))
def test_what_is_known_never_hides_a_better_row(data: st.DataObject, longest: float) -> None:
    """Where the floor lies under a size's best, the pruned search returns just that best."""
    question = small_question(squared_cv=0.5, devices=8)
    for group in groups(question, "prefill", role_rows(question, "prefill"), 0):
        free = prefill_candidates(question, group, 1, Count(), longest, {})
        factors = data.draw(st.lists(st.floats(0.3, 1.3), min_size=len(free), max_size=len(free)))
        floor = {each.devices: factor * each.requests_per_second for each, factor in zip(free, factors, strict=True)}
        pruned = {c.devices: c for c in prefill_candidates(question, group, 1, Count(), longest, floor)}
        for candidate, factor in zip(free, factors, strict=True):
            if factor < 1 - 1e-9:
                assert pruned[candidate.devices] == candidate


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_the_array_search_times_a_pass_as_the_prediction_does(model: str) -> None:
    """With prompts of one length every DP group holds alike, and ``predict`` says the same seconds."""
    question = small_question(model=model, lengths=(1024.0, 128.0))
    for group in groups(question, "prefill", role_rows(question, "prefill"), 0):
        for candidate in prefill_candidates(question, group, 1, Count(), LONGEST, {}):
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
