"""The table of operators: exposed seconds add up to the step, whatever overlaps."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.balance.imbalance import parse_balance
from planner.costs.breakdown import Operator
from planner.costs.latency import balanced_cost, causal_pairs, decode_load
from planner.costs.operators import build_step_cost
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from tests.instances import broken_down, cloudmatrix_decode, even_cost, instance, with_bandwidth

INSTANCES = {
    "split cores, dedicated shared": cloudmatrix_decode(),
    "split cores, shared everywhere": cloudmatrix_decode(shared_ranks=0, redundant=64),
    "compute beside communication": instance(
        "deepseek-r1", "h800", "decode", "fp8", attention_dp=32, moe_ep=32, drafts=1
    ),
    "hybrid experts": instance(
        "qwen3-235b-a22b", "910b", "decode", "bf16", attention_tp=8, attention_dp=2, moe_tp=8, moe_ep=2
    ),
    "experts apart, attention binds": instance(
        "deepseek-r1",
        "cm384",
        "decode",
        "int8",
        redundant=256,
        shared_ranks=32,
        drafts=1,
        attention_dp=160,
        moe_ep=288,
        domains=3,
    ),
    "experts apart, experts bind": instance(
        "deepseek-r1", "cm384", "decode", "int8", attention_dp=32, moe_ep=16, domains=8
    ),
    "experts apart, one domain": instance(
        "deepseek-r1", "cm384", "decode", "int8", attention_dp=32, moe_ep=32, domains=1
    ),
    "dense with PP": instance("qwen3-32b", "h200", "decode", "bf16", attention_tp=2, moe_tp=2, pp=2),
}


def exposed(rows: tuple[Operator, ...]) -> float:
    """Sum of what nothing hides."""
    return sum(row.exposed_seconds for row in rows)


@pytest.mark.parametrize("name", INSTANCES)
@settings(max_examples=10, deadline=None)
@given(batch=st.floats(2, 200), kv=st.floats(1, 50_000), microbatches=st.sampled_from([1, 2]))
def test_iteration_is_the_sum_of_exposed_operators(name: str, batch: float, kv: float, microbatches: int):
    """Decode: exposed seconds of all rows sum to the iteration, with measured imbalance."""
    deployment = INSTANCES[name]
    cost = balanced_cost(deployment, parse_balance("measured"))
    load = decode_load(deployment, batch, kv)
    rows = broken_down(cost, load, microbatches)
    assert exposed(rows) == pytest.approx(float(evaluate(cost, load, microbatches).seconds), rel=1e-9)
    assert all(row.seconds >= 0 and row.flops >= 0 for row in rows if row.name not in ("straggler_wait", "host"))


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
    deployment = INSTANCES["compute beside communication"]
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
