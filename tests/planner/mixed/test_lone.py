"""Bounds by single prompts on the rates of aggregated instances."""

from dataclasses import replace

import numpy as np
import pytest

from planner.instances.decode_candidates import Count
from planner.instances.space import groups, role_rows, row_deployment
from planner.mixed.candidates import BUDGETS
from planner.mixed.kinds import MixedKind, group_screen, step_limit
from planner.mixed.lone import Lone, with_budgets
from planner.mixed.offers import holding
from planner.question import Question
from tests.questions import small_question


def asked(squared_cv: float, **fields: float) -> Question:
    """Return a question on 8 GPUs."""
    limits = {"ttft_seconds": 2.0, "tpot_seconds": 0.05} | fields
    return small_question(
        "qwen3-30b-a3b", "h100", 8, lengths=(4096.0, 512.0), squared_cv=squared_cv, shape="aggregated", **limits
    )


def lone_of(question: Question) -> tuple[list[MixedKind], Lone]:
    """Return some kinds of instances and their bounds at every budget."""
    rows = [row for row in role_rows(question, "mixed") if row.strategy.devices in (2, 8)]
    group = max(groups(question, "mixed", rows, 0), key=lambda each: len(each.rows))
    held, room = holding(question, group)
    places = np.linspace(0, room.size - 1, 3).astype(np.int64)
    held, room = held.select(places), room[places]
    limit = np.full(room.shape, float(np.max(step_limit(question, held.deployment))))
    screen = group_screen(question, held, BUDGETS[-1], Count())
    kinds = [MixedKind(question, row, row_deployment(held.deployment, row), Count()) for row in held.rows]
    return kinds, with_budgets(question, screen, BUDGETS, limit, room)


@pytest.mark.parametrize("squared_cv", [0.0, 1.0])
def test_no_queue_passes_the_bound_of_its_budget(squared_cv: float) -> None:
    """Of one instance, and of one of many whose arrivals are more even."""
    question = asked(squared_cv)
    kinds, lone = lone_of(question)
    bound = lone.bound(np.full(lone.most_running.size, 1000.0)).reshape(len(BUDGETS), -1)

    for place, kind in enumerate(kinds):
        for server in kind.servers[1::3]:
            most = bound[BUDGETS.index(server.candidate.batched_tokens), place]
            beyond = max(1.001 * most, server.queue.most_per_second / 1000)
            for instances in (1, 8):
                assert not server.pool_carries(instances, instances * beyond)


def test_a_bound_is_where_the_least_steps_reach_the_limit() -> None:
    """What may be carried ends there, and a longer limit lets more through."""
    _, lone = lone_of(asked(1.0))
    most = np.full(lone.most_running.size, 1000.0)
    bound = lone.bound(most)
    found = bound[bound > 0]

    assert found.size and (found < 1000.0).all()
    assert lone.may_carry(bound / 1.05 * 0.98)[bound > 0].all() and not lone.may_carry(bound).any()
    assert (replace(lone, limit_seconds=2 * lone.limit_seconds).bound(most) >= bound).all()


def test_long_prompts_that_are_late_alone_leave_nothing() -> None:
    """A hundred steps of 256 tokens take longer than half a second, whatever the rate."""
    _, lone = lone_of(asked(1.0, ttft_seconds=0.3))
    bound = lone.bound(np.full(lone.most_running.size, 1000.0)).reshape(len(BUDGETS), -1)

    assert (bound[0] == 0).all() and (bound[-1] > 0).any()


def test_budgets_stand_side_by_side_as_each_alone() -> None:
    """All budgets of all rows at once are those of each row by itself."""
    _, lone = lone_of(asked(1.0))
    most = np.full(lone.most_running.size, 50.0)
    each = [lone.of(np.array([place])).bound(most[:1])[0] for place in range(0, most.size, 5)]

    assert lone.bound(most)[::5] == pytest.approx(each)
