"""An instance driven by its caller's clock, by hand: 5 ms a step, 20 us a prompt token, 0.1 ms a running request."""

import numpy as np
import pytest

from planner.serving.aggregated_run import DrivenInstance
from planner.serving.rules import Estimate, SchedulingRule
from tests.planner.serving.test_aggregated import pool_of

PROMPT, ALONE = 5e-3 + 100 * 20e-6, 5.1e-3
NEED = SchedulingRule(admission="need", block_tokens=16, kept_blocks=1)


def _driven(ranks: int = 1, slots: int = 4, rule: SchedulingRule = SchedulingRule()) -> DrivenInstance:  # noqa: B008
    return DrivenInstance(pool_of(rule, ranks, 1000, slots, 10_000))


def test_a_lone_request_from_event_to_event() -> None:
    """A step of its prompt, then four iterations that are taken together, with its whole answer set aside."""
    driven = _driven()
    assert (driven.due_seconds, driven.steps, driven.iterations) == (np.inf, 0, 1)
    record = driven.add(0.0, (100, 0, 5), 4, 105)
    assert driven.proceed(0.0, schedule=True) == []
    assert driven.due_seconds == pytest.approx(PROMPT) and driven.step == pytest.approx((0, PROMPT, 0, 100, 1))
    assert [each.tolist() for each in driven.held_tokens()] == [[105], [1]]
    assert driven.seconds_of(record) == (0, -1, -1) and driven.answered(record) == 0
    assert driven.proceed(driven.due_seconds, schedule=True) == [record]
    last = PROMPT + 4 * ALONE
    assert driven.step == pytest.approx((PROMPT, last, 1, 0, 4)) and driven.iterations == 4 and driven.steps == 5
    assert driven.kv_tokens().tolist() == [100]
    assert driven.busy_seconds(0.01) == pytest.approx(0.01) and driven.busy_seconds(1.0) == pytest.approx(last)
    assert driven.proceed(driven.due_seconds, schedule=True) == [record]
    assert driven.seconds_of(record) == pytest.approx((0, PROMPT, last)) and driven.due_seconds == np.inf
    assert [each.tolist() for each in driven.held_tokens()] == [[0], [0]] and driven.release(record) == 0


def test_single_iterations_are_not_taken_together() -> None:
    """Where the caller asks for one by one."""
    driven = _driven()
    driven.add(0.0, (100, 0, 5), 4, 105)
    driven.proceed(0.0, schedule=True)
    driven.proceed(driven.due_seconds, schedule=True, single=True)
    assert (driven.iterations, driven.step.iterations) == (1, 1)


def test_iterations_are_cut_short_and_put_off() -> None:
    """The one that runs goes on, or begins anew once the instance is there again; what remains follows it."""
    driven = _driven()
    record = driven.add(0.0, (100, 0, 5), 4, 105)
    driven.proceed(0.0, schedule=True)
    driven.proceed(driven.due_seconds, schedule=True)
    assert driven.end_early(PROMPT + 1e-3) == pytest.approx((PROMPT, PROMPT + ALONE))
    assert driven.answered(record) == 1 and driven.steps == 2
    driven.halt(0.01, 1.0)
    assert driven.step.end_seconds == pytest.approx(1.0 + ALONE)
    assert driven.proceed(0.02, schedule=False) == [] and driven.due_seconds == pytest.approx(1.0 + ALONE)
    driven.proceed(driven.due_seconds, schedule=True)
    assert driven.step == pytest.approx((1.0 + ALONE, 1.0 + 4 * ALONE, 1, 0, 3)) and driven.kv_tokens().tolist() == [
        101
    ]
    assert driven.take_out(record) and driven.ranks["running"].tolist() == [0]
    assert [each.tolist() for each in driven.held_tokens()] == [[0], [0]]
    assert driven.add(2.0, (10, 0, 5), 4, 15) == record and not driven.take_out(record)


def test_long_answers_are_expected_to_take_no_more_than_the_clip() -> None:
    """Of 200 tokens 16: then three are let in by an estimate of memory that holds two whole answers."""
    clipped = SchedulingRule(order="prompts_first", admission="estimate", estimate=Estimate(clip_tokens=16))
    held = []
    for rule in (clipped, clipped._replace(estimate=Estimate())):
        driven = DrivenInstance(pool_of(rule, 1, 1000, 4, 500))
        for _ in range(3):
            driven.add(0.0, (100, 0, 200), 199)
        driven.proceed(0.0, schedule=True)
        held.append(driven.held_tokens()[1].tolist())
    assert held == [[3], [1]]


def test_many_requests_make_room_for_their_records() -> None:
    """More than the 64 that there is room for at first, each with a record of its own that is used again."""
    driven = _driven(slots=200)
    records = [driven.add(0.0, (1, 0, 1), 0, 2) for _ in range(70)]
    assert sorted(records) == list(range(70))
    driven.proceed(0.0, schedule=True)
    assert driven.proceed(driven.due_seconds, schedule=True) == [each for p in records for each in (p, p)]
    assert driven.release(7) == 0 and driven.add(1.0, (1, 0, 1), 0, 2) == 7


@pytest.mark.parametrize(("rule", "held", "requests"), [(SchedulingRule(), 110, 1), (NEED, 112, 1)])
def test_a_prompt_that_waits_for_a_slot(rule: SchedulingRule, held: int, requests: int) -> None:
    """A rank with one slot has no room for the second; KV that is held counts in whole blocks where it is taken."""
    driven = _driven(slots=1, rule=rule)
    for _ in range(2):
        driven.add(0.0, (100, 0, 10), 9, 110)
    driven.proceed(0.0, schedule=True)
    assert [each.tolist() for each in driven.held_tokens()] == [[held], [requests]]


def _entered() -> tuple[DrivenInstance, list[int]]:
    """Three requests whose KV is there, all on the first of two ranks."""
    driven = _driven(ranks=2)
    tokens = (100, 0, 5), (200, 0, 3), (50, 0, 9)
    records = [driven.add(0.0, each, each[2] - 1) for each in tokens]
    driven.enter(0.0)
    assert driven.ranks["running"].tolist() == [3, 0] and driven.kv_tokens().tolist() == [350, 0]
    return driven, records


def test_iterations_of_requests_whose_kv_is_there() -> None:
    """One, then as many as are alike until somebody leaves; of two that are given up one had ended."""
    driven, (first, second, _) = _entered()
    assert driven.iterate(0.0, single=True) == pytest.approx((0, 5.3e-3)) and driven.finish() == []
    assert driven.kv_tokens().tolist() == [353, 0]
    assert driven.iterate(1.0, single=False) == pytest.approx((1, 1.0053)) and driven.finish() == [second]
    assert driven.seconds_of(second)[2] == pytest.approx(1.0053) and driven.kv_tokens().tolist() == [154, 0]
    assert driven.iterate(2.0, single=False) == pytest.approx((2.0052, 2.0104)) and driven.step.iterations == 2
    driven.give_up(2.006)
    assert driven.kv_tokens().tolist() == [156, 0] and driven.answered(first) == 4
    assert driven.busy_seconds(9.0) == pytest.approx(2 * 5.3e-3 + 6e-3)


def test_ranks_are_evened_out() -> None:
    """Of 350 tokens the 100 move, then the 50: then the emptier rank has most requests, and nobody moves."""
    driven, _ = _entered()
    driven.even_out(1.0)
    assert driven.ranks["running"].tolist() == [3, 0]
    driven.even_out(0.1, lambda record, rank: False)
    assert driven.ranks["running"].tolist() == [3, 0]
    driven.even_out(0.1)
    assert driven.ranks["running"].tolist() == [1, 2] and driven.kv_tokens().tolist() == [200, 150]
    assert [each.tolist() for each in driven.held_tokens()] == [[0, 0], [1, 2]]
