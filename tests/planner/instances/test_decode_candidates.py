"""Decode instances: the batch found is the largest that keeps limit and memory, tried integer by integer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.balance.imbalance import expected_maximum_normal
from planner.costs.latency import balanced_cost, tokens_per_iteration
from planner.instances.decode_candidates import (
    Count,
    best_batches,
    decode_candidates,
    decode_memory_used,
    iteration,
    rows_with_room,
)
from planner.instances.space import Group, groups, role_rows, row_deployment
from planner.plans.pools import decode_prediction
from planner.question import Question
from planner.workload import reserved_kv_tokens, running_kv_tokens
from tests.questions import small_question

LIMIT = 0.03


def brute_force_batch(question: Question, group: Group, number: int, microbatches: int, drafts: int) -> int:
    """Return the largest of all integer batches of one row, costed in numbers of its own; 0 where none fits."""
    deployment = row_deployment(group.deployment, group.rows[number])
    batches = np.arange(float(microbatches * deployment.strategy.pp), 4097.0)
    cost, ranks = balanced_cost(deployment, question.balance), expected_maximum_normal(deployment.strategy.attention_dp)
    kv, reserved = running_kv_tokens(question.workload), reserved_kv_tokens(question.workload)
    quick = iteration(cost, ranks, batches, kv, microbatches) <= LIMIT * tokens_per_iteration(drafts, 0.7)
    room = decode_memory_used(deployment, batches, reserved) <= deployment.hardware.device.memory_bytes.value
    return int(batches[quick & room].max(initial=0.0))


CASES = [
    ("qwen3-8b", "h100", 4, 1, 0, 0.0),
    ("qwen3-30b-a3b", "h100", 8, 2, 0, 0.5),
    ("qwen3-30b-a3b", "cm384", 16, 1, 0, 0.0),
    ("deepseek-v2-lite", "cm384", 16, 2, 0, 0.3),
    ("deepseek-r1", "h200", 16, 1, 1, 0.0),
]


@pytest.mark.parametrize(("model", "hardware", "devices", "microbatches", "drafts", "squared_cv"), CASES)
def test_batches_are_the_largest_of_all_integers(
    model: str, hardware: str, devices: int, microbatches: int, drafts: int, squared_cv: float
) -> None:
    """For every row alone, false position finds what trying 1, 2, ... 4096 finds."""
    question = small_question(model=model, hardware=hardware, devices=devices, squared_cv=squared_cv)
    for group in groups(question, "decode", role_rows(question, "decode"), drafts):
        for number in range(0, len(group.rows), max(1, len(group.rows) // 12)):
            alone = group.select(np.array([number]))
            found = decode_candidates(question, alone, microbatches, Count(), LIMIT, {})
            expected = brute_force_batch(question, group, number, microbatches, drafts)
            assert [candidate.batch for candidate in found] == ([expected] if expected else [])


@pytest.mark.parametrize("squared_cv", [0.0, 1.0])
def test_no_smaller_batch_carries_more(squared_cv: float) -> None:
    """Time per request falls with the batch, which is why the largest suffices."""
    question = small_question(squared_cv=squared_cv)
    for group in groups(question, "decode", role_rows(question, "decode"), 0):
        cost = balanced_cost(group.deployment, question.balance)
        ranks = expected_maximum_normal(group.deployment.strategy.attention_dp)
        kv = running_kv_tokens(question.workload)
        each = [
            np.broadcast_to(iteration(cost, ranks, float(batch), kv, 1) / batch, len(group.rows))
            for batch in (*range(1, 40), *range(40, 2000, 49))
        ]
        assert (np.diff(np.array(each), axis=0) <= 1e-12).all()


@settings(max_examples=12, deadline=None)
@given(data=st.data(), microbatches=st.sampled_from([1, 2]))
def test_what_is_known_never_hides_a_better_row(data: st.DataObject, microbatches: int) -> None:
    """Where the floor lies under a size's best, the pruned search returns just that best."""
    question = small_question(squared_cv=0.5)
    for group in groups(question, "decode", role_rows(question, "decode"), 0):
        free = decode_candidates(question, group, microbatches, Count(), LIMIT, {})
        factors = data.draw(st.lists(st.floats(0.3, 1.3), min_size=len(free), max_size=len(free)))
        floor = {each.devices: factor * each.requests_per_second for each, factor in zip(free, factors, strict=True)}
        pruned = {c.devices: c for c in decode_candidates(question, group, microbatches, Count(), LIMIT, floor)}
        for candidate, factor in zip(free, factors, strict=True):
            if factor < 1 - 1e-9:
                assert pruned[candidate.devices] == candidate


@pytest.mark.parametrize("model", ["qwen3-8b", "deepseek-v2-lite"])
def test_the_array_search_times_a_batch_as_the_prediction_does(model: str) -> None:
    """The iteration of each size's best equals ``predict`` at the KV of its busiest rank."""
    question = small_question(model=model)
    kv = running_kv_tokens(question.workload)
    for group in groups(question, "decode", role_rows(question, "decode"), 0):
        for candidate in decode_candidates(question, group, 1, Count(), LIMIT, {}):
            alike = decode_prediction(question, candidate)
            ranks = expected_maximum_normal(candidate.row.strategy.attention_dp)
            spread = ranks * (candidate.batch * kv.variance_squared_tokens) ** 0.5 / (candidate.batch * kv.mean_tokens)
            # the prediction gives every rank the mean KV, the search the busiest one its expected excess
            assert alike.iteration_seconds <= candidate.iteration_seconds * (1 + 1e-9)
            assert candidate.iteration_seconds <= alike.iteration_seconds * (1 + spread) * (1 + 1e-9)
            if candidate.row.strategy.attention_dp == 1:
                assert candidate.iteration_seconds == pytest.approx(alike.iteration_seconds, rel=1e-9)


def test_each_leader_carries_most_of_its_size() -> None:
    """Rows costed one by one have the same best per size."""
    question = small_question(model="deepseek-v2-lite", devices=8)
    for group in groups(question, "decode", role_rows(question, "decode"), 0):
        best: dict[int, float] = {}
        for number in range(len(group.rows)):
            alone, room = rows_with_room(group.select(np.array([number])), 1, reserved_kv_tokens(question.workload))
            if alone.rows:
                for one in best_batches(question, alone, room, 1, Count(), LIMIT):
                    best[one.devices] = max(best.get(one.devices, 0.0), one.requests_per_second)
        found = decode_candidates(question, group, 1, Count(), LIMIT, {})
        assert {c.devices: pytest.approx(c.requests_per_second, rel=1e-9) for c in found} == best
