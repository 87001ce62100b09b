"""The table of operators: exposed seconds add up to the step, whatever overlaps."""

from dataclasses import replace

import pytest

from planner.balance.imbalance import parse_balance
from planner.costs.breakdown import Operator
from planner.costs.latency import balanced_cost, causal_pairs, decode_load
from planner.costs.operators import build_step_cost
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from tests.instances import broken_down, cloudmatrix_decode, even_cost, instance, with_bandwidth

HOPPER = instance("deepseek-r1", "h800", "decode", "fp8", attention_dp=32, moe_ep=32, drafts=1)


def exposed(rows: tuple[Operator, ...]) -> float:
    """Sum of what nothing hides."""
    return sum(row.exposed_seconds for row in rows)


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("pp", [1, 4])
def test_pass_is_the_sum_of_exposed_operators(pp: int, microbatches: int):
    """Prefill, eager: the bubble, the hops and launch gaps are rows of their own."""
    deployment = instance("deepseek-r1", "h800", "prefill", "fp8", attention_dp=8, moe_ep=8, pp=pp)
    cost = balanced_cost(deployment, parse_balance("measured"))
    load = StepLoad(
        prefill_tokens=512.0, prefill_pairs=causal_pairs(512.0, 0.0), finishing_prompts=1.0, mean_tokens=512.0
    )
    rows = {row.name: row for row in broken_down(cost, load, microbatches)}
    total = float(evaluate(cost, load, microbatches).seconds)
    assert exposed(tuple(rows.values())) == pytest.approx(total, rel=1e-9)
    assert ("pipeline_bubble" in rows) == (pp > 1)
    if pp > 1:
        # Before the last part goes through all stages, three go through the fullest, which has 16 of 61 layers.
        hop = rows["pipeline_hop"].exposed_seconds / 4
        head = float(evaluate(cost, load, microbatches).head_seconds)
        layers = total - sum(rows[name].exposed_seconds for name in ("host", "pipeline_hop", "pipeline_bubble")) - head
        slowest = max(layers * 16 / 61, layers * 15 / 61 + head) + hop
        assert rows["pipeline_bubble"].exposed_seconds == pytest.approx(3 * slowest)


def test_memory_wait_is_its_own_row():
    """Where two streams ask for more than the bandwidth, the excess over the longer stream is called by its name."""
    base = cloudmatrix_decode()
    slow = replace(base, hardware=with_bandwidth(base.hardware, 0.02))
    cost, load = even_cost(slow), decode_load(slow, 4.0, 100.0)
    rows = broken_down(cost, load, 2)
    assert {row.name: row.bound for row in rows}.get("memory_wait") == "memory"
    assert exposed(rows) == pytest.approx(float(evaluate(cost, load, 2).seconds), rel=1e-9)


def test_stragglers_wait_in_a_row_of_their_own():
    """Operators stand at the even load; what the busiest rank adds is one row, zero with perfect balance."""
    deployment = HOPPER
    load = decode_load(deployment, 64.0, 4096.0)
    even = {row.name: row for row in broken_down(even_cost(deployment), load, 1)}
    skewed = {row.name: row for row in broken_down(balanced_cost(deployment, parse_balance("1.5")), load, 1)}
    assert even["straggler_wait"].seconds == 0.0
    assert skewed["straggler_wait"].seconds > 0.0
    assert skewed["routed_gate_up"].seconds == even["routed_gate_up"].seconds


def test_counts_and_bounds():
    """61 layers of attention, 58 of experts; decode attention of one long request is bound by memory."""
    deployment = instance("deepseek-r1", "h800", "decode", "fp8", attention_dp=32, moe_ep=32)
    rows = {row.name: row for row in broken_down(build_step_cost(deployment), decode_load(deployment, 1.0, 100.0), 1)}
    assert (rows["attention"].count, rows["dispatch"].count, rows["dense_down"].count) == (61, 58, 3)
    assert rows["o_proj"].bound == "memory"
    assert rows["dispatch"].bound == "network"
    assert rows["gate_topk"].bound == "overhead"
