"""Rows side by side as arrays: nothing is lost, and each costs what it costs alone."""

from dataclasses import replace

import numpy as np
import pytest

from ground.errors import BadInput
from planner.balance.imbalance import expected_maximum_normal
from planner.costs.latency import balanced_cost
from planner.costs.memory import memory
from planner.instances.decode_candidates import iteration
from planner.instances.space import check_layouts, groups, possible, role_rows, row_deployment, structure
from planner.workload import running_kv_tokens
from tests.questions import small_question


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_groups_hold_every_row_once(model: str, role) -> None:
    """Grouped by structure, rows are those of the role, each possible and no larger than the pool."""
    question = small_question(model=model, hardware="cm384", devices=32)
    rows = role_rows(question, role)

    grouped = groups(question, role, rows, 0)

    assert sorted(map(repr, rows)) == sorted(repr(row) for group in grouped for row in group.rows)
    assert len({repr(row) for row in rows}) == len(rows)
    for group in grouped:
        assert len({structure(row) for row in group.rows}) == 1
        assert group.sizes.tolist() == [row.strategy.devices for row in group.rows]
    for row in rows:
        assert possible(question, row.strategy, row.dedicated, row.redundant)
        assert row.strategy.devices <= 32


@pytest.mark.parametrize(
    ("model", "hardware", "drafts"),
    [("qwen3-30b-a3b", "h100", 0), ("deepseek-v2-lite", "cm384", 0), ("deepseek-r1", "h200", 1)],
)
def test_a_row_costs_the_same_alone_as_among_others(model: str, hardware: str, drafts: int) -> None:
    """Iteration seconds and memory from arrays equal those of the row in plain numbers."""
    question = small_question(model=model, hardware=hardware, devices=16, squared_cv=0.4)
    kv = running_kv_tokens(question.workload)
    for group in groups(question, "decode", role_rows(question, "decode"), drafts):
        together = group.deployment
        spread = expected_maximum_normal(together.strategy.attention_dp)
        seconds = iteration(balanced_cost(together, question.balance), spread, 24.0, kv, 2)
        used = memory(together, kv_tokens=50_000.0, sequences=24.0, tokens=24.0).used
        for number in range(0, len(group.rows), 7):
            alone = row_deployment(together, group.rows[number])
            ranks = expected_maximum_normal(alone.strategy.attention_dp)
            expected = iteration(balanced_cost(alone, question.balance), ranks, 24.0, kv, 2)
            assert np.broadcast_to(seconds, len(group.rows))[number] == pytest.approx(expected, rel=1e-9)
            weight = memory(alone, kv_tokens=50_000.0, sequences=24.0, tokens=24.0).used
            assert np.broadcast_to(used, len(group.rows))[number] == pytest.approx(weight, rel=1e-12)


def test_a_redundancy_that_divides_nowhere_is_refused_with_one_that_does() -> None:
    """Of the advised numbers, at least the first fits some strategy of both roles."""
    question = replace(small_question(devices=8), redundant=9_999)
    with pytest.raises(BadInput, match="--redundant-experts"):
        check_layouts(question)

    with pytest.raises(BadInput) as refused:
        check_layouts(replace(question, redundant=129))
    advised = str(refused.value).split("for example ")[1].split(" or ")
    check_layouts(replace(question, redundant=int(advised[0])))
