"""Rows side by side as arrays: nothing is lost, and each costs what it costs alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ground.errors import BadInput
from planner.closed_forms.fullest import FullestRank
from planner.costs.latency import balanced_cost
from planner.instances.candidates import decode_memory_used, iteration
from planner.instances.space import built, check_layouts, groups, possible, role_rows, row_deployment, structure
from planner.manifest.stacks import stacked
from planner.manifest.stepcost import evaluate, launches
from planner.manifest.terms import Number, StepCost, StepLoad
from planner.question import PrefixPool, Question
from planner.workload import reserved_kv_tokens
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
    ("model", "hardware", "devices", "drafts"),
    [
        ("qwen3-30b-a3b", "h100", 16, 0),
        ("deepseek-v2-lite", "cm384", 16, 0),
        ("deepseek-r1", "h200", 16, 1),
        ("longcat-flash", "cm384", 16, 2),
        ("qwen3-32b", "h200", 16, 3),
        ("llama-4-scout", "h200", 16, 0),
        ("deepseek-r1", "cm384", 160, 0),  # with attention and experts apart
    ],
)
def test_a_row_costs_the_same_alone_as_among_others(model: str, hardware: str, devices: int, drafts: int) -> None:
    """Iteration seconds and memory from arrays equal those of the row in plain numbers."""
    question = small_question(model=model, hardware=hardware, devices=devices, squared_cv=0.4)
    held = reserved_kv_tokens(question.workload)
    for group in groups(question, "decode", role_rows(question, "decode"), drafts):
        together = group.deployment
        fullest = FullestRank.of(question.workload, together.strategy.attention_groups)
        seconds = iteration(balanced_cost(together, question.balance), fullest, 24.0, 2)
        used = decode_memory_used(together, 24.0, held)
        for number in range(0, len(group.rows), 7):
            alone = row_deployment(together, group.rows[number])
            fullest = FullestRank.of(question.workload, alone.strategy.attention_groups)
            expected = iteration(balanced_cost(alone, question.balance), fullest, 24.0, 2)
            assert np.broadcast_to(seconds, len(group.rows))[number] == pytest.approx(expected, rel=1e-9)
            weight = float(decode_memory_used(alone, 24.0, held))
            assert np.broadcast_to(used, len(group.rows))[number] == pytest.approx(weight, rel=1e-12)


@pytest.mark.parametrize("role", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-r1"])
def test_the_host_launches_a_row_alone_as_long_as_among_others(model: str, role: Any) -> None:
    """A collective over one device is none, also where others of the group have it; a captured graph launches none."""

    def launched(cost: StepCost) -> tuple[Number, Number]:
        return launches(cost, 1) * cost.launch_seconds, cost.prompt_seconds

    question = small_question(model=model, hardware="cm384", devices=16)
    for group in groups(question, role, role_rows(question, role), 0):
        together = launched(balanced_cost(group.deployment, question.balance))
        for row in group.rows:
            alone = launched(balanced_cost(row_deployment(group.deployment, row), question.balance))
            assert alone == pytest.approx(together), row


def test_a_redundancy_that_divides_nowhere_is_refused_with_one_that_does() -> None:
    """Of the advised numbers, at least the first fits some strategy of both roles."""
    question = replace(small_question(devices=8), redundant=9_999)
    with pytest.raises(BadInput, match="--redundant-experts"):
        check_layouts(question)

    with pytest.raises(BadInput) as refused:
        check_layouts(replace(question, redundant=129))
    advised = str(refused.value).split("for example ")[1].split(" or ")
    check_layouts(replace(question, redundant=int(advised[0])))


def own_question(**fields: Any) -> Question:
    """Return a small question of one model and machine."""
    return replace(small_question("deepseek-v2-lite", "cm384", 16, drafts=(0, 1)), **fields)


@pytest.mark.parametrize(
    "fields", [{"kv_dtype": "int8"}, {"drafts": (0,)}, {"redundant": 0}, {"engine": "vllm@0.33.0"}], ids=str
)
def test_what_terms_depend_on_is_built_anew(fields: dict[str, Any]):
    """Formats, drafts, layouts, engines."""
    one, other = own_question(), own_question(**fields)

    assert built(one, "decode", role_rows(one, "decode")) is not built(other, "decode", role_rows(other, "decode"))


def test_a_pool_of_prefixes_is_built_for():
    """Prefill that reads prefixes over a plane takes longer for a cached token than with them in its memory."""
    pool = PrefixPool(plane="vpc", capacity_bytes=8e12)
    one, other = own_question(), own_question(prefix_pool=pool)

    first, second = (built(each, "prefill", role_rows(each, "prefill"))[0].cost for each in (one, other))
    assert np.all(first.loading_seconds == 0) and np.all(second.loading_seconds > 0)


@pytest.mark.parametrize("role", ["prefill", "decode", "mixed"])
def test_what_is_shared_is_what_each_question_would_build(role: Any):
    """The same seconds, of all rows and of some."""
    question = own_question()
    load = StepLoad(decode_sequences=4.0, decode_kv_tokens=900.0, mean_tokens=4.0)
    for each in built(question, role, role_rows(question, role)):
        cost = stacked(balanced_cost(each.group.deployment, question.balance))
        size = len(each.group.rows)
        expected = np.broadcast_to(np.asarray(evaluate(cost, load).seconds), size)
        some = each.select(np.arange(0, size, 3))
        assert np.broadcast_to(np.asarray(evaluate(each.cost, load).seconds), size) == pytest.approx(expected)
        found = np.broadcast_to(np.asarray(evaluate(some.cost, load).seconds), len(some.group.rows))
        assert found == pytest.approx(expected[::3])
        assert some.group.rows == each.group.rows[::3]
