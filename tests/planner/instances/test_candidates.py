"""Batches and budgets of candidates: what memory holds, how long they take, and what they carry."""

import numpy as np
import pytest

from planner.closed_forms.fullest import FullestRank
from planner.costs.latency import balanced_cost
from planner.instances.candidates import Count, busiest_prompts, decode_memory_used, iteration
from planner.instances.space import Group, groups, role_rows, row_deployment
from planner.manifest.drafts import tokens_per_iteration
from planner.offers.decode_kinds import DecodeKind
from planner.offers.decode_offers import decode_offers
from planner.plans.pools import decode_prediction, prefill_prediction
from planner.question import Question
from planner.workload import Lengths, reserved_kv_tokens, running_kv_tokens
from tests.instances import decode_all, prefill_found
from tests.questions import small_question

LIMIT = 0.03
CASES = [
    ("qwen3-8b", "h100", 4, 0, 0.0),
    ("qwen3-30b-a3b", "h100", 8, 0, 0.5),
    ("deepseek-v2-lite", "cm384", 16, 0, 0.3),
    ("deepseek-r1", "h200", 16, 1, 0.0),
]


def brute_force_batch(question: Question, group: Group, number: int, microbatches: int, drafts: int) -> int:
    """Return the largest of all integer batches of one row, costed in numbers of its own; 0 where none fits."""
    deployment = row_deployment(group.deployment, group.rows[number])
    batches = np.arange(float(microbatches * deployment.strategy.pp), 4097.0)
    cost = balanced_cost(deployment, question.balance)
    fullest = FullestRank.of(question.workload, deployment.strategy.attention_dp)
    reserved = reserved_kv_tokens(question.workload)
    quick = iteration(cost, fullest, batches, microbatches) <= LIMIT * tokens_per_iteration(drafts, 0.7)
    room = decode_memory_used(deployment, batches, reserved) <= deployment.hardware.device.memory_bytes.value
    return int(batches[quick & room].max(initial=0.0))


@pytest.mark.parametrize(("model", "hardware", "devices", "drafts", "squared_cv"), CASES)
def test_batches_are_the_largest_of_all_integers(model, hardware, devices, drafts, squared_cv):
    """For every row that is offered, false position finds what trying 1, 2, ... 4096 finds."""
    question = small_question(
        model=model, hardware=hardware, devices=devices, squared_cv=squared_cv, tpot_seconds=LIMIT, drafts=(drafts,)
    )
    rows = role_rows(question, "decode")
    offers = decode_offers(question, rows, Count(), 0.0)
    kinds = (offers.build(number) for number in range(0, len(offers), max(1, len(offers) // 12)))
    found = {kind.row: kind.full.candidate for kind in kinds if isinstance(kind, DecodeKind)}
    assert found
    for group in groups(question, "decode", rows, drafts):
        for number, row in enumerate(group.rows):
            if row in found:
                most = {parts: brute_force_batch(question, group, number, parts, drafts) for parts in (1, 2)}
                most = most if question.model.moe is not None else {1: most[1]}
                assert found[row].batch == max(most.values()) == most[found[row].microbatches]


@pytest.mark.parametrize("model", ["qwen3-8b", "deepseek-v2-lite"])
def test_the_array_search_times_a_batch_as_the_prediction_does(model: str) -> None:
    """The iteration of each size's best equals ``predict`` at the KV of its busiest rank."""
    question = small_question(model=model, microbatches=(1,), tpot_seconds=LIMIT)
    kv = running_kv_tokens(question.workload)
    for candidate in decode_all(question):
        alike = decode_prediction(question, candidate)
        fullest = FullestRank.of(question.workload, candidate.row.strategy.attention_dp)
        spread = fullest.kv_tokens(candidate.batch) / (candidate.batch * kv.mean_tokens) - 1
        # the prediction gives every rank the mean KV, the search the busiest one its expected excess
        assert alike.iteration_seconds <= candidate.iteration_seconds * (1 + 1e-9)
        assert candidate.iteration_seconds <= alike.iteration_seconds * (1 + spread) * (1 + 1e-9)
        if candidate.row.strategy.attention_dp == 1:
            assert candidate.iteration_seconds == pytest.approx(alike.iteration_seconds, rel=1e-9)


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
