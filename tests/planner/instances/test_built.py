"""What questions share: built once where nothing that it depends on differs, anew where something does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.costs.latency import balanced_cost
from planner.instances.built import built
from planner.instances.space import role_rows
from planner.manifest.stacks import stacked
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.question import PrefixPool, Question
from planner.workload import Lengths, Workload
from tests.questions import small_question


def own_question(**fields: Any) -> Question:
    """Return a small question of one model and machine."""
    return replace(small_question("deepseek-v2-lite", "cm384", 16, drafts=(0, 1)), **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"workload": Workload(input_tokens=Lengths(mean=77.0), output_tokens=Lengths(mean=9.0))},
        {"ttft_seconds": 0.4, "tpot_seconds": 0.02, "rate_per_second": 3.0, "objective": "chips"},
    ],
    ids=["lengths", "limits and rate"],
)
def test_traffic_and_limits_share_rows_and_costs(fields: dict[str, Any]):
    """The very same objects."""
    one, other = own_question(), own_question(**fields)

    assert role_rows(one, "decode") is role_rows(other, "decode")
    assert built(one, "decode", role_rows(one, "decode")) is built(other, "decode", role_rows(other, "decode"))


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
