"""Attention and experts on devices of their own (xDeepServe sections 3, 5.2 and 7.1, arXiv 2508.02520)."""

import pytest
from hypothesis import given, settings, strategies as st

from planner.balance.imbalance import parse_balance
from planner.costs.deployment import Deployment
from planner.costs.latency import balanced_cost, decode_load
from planner.costs.memory import expert_device_memory, memory
from planner.manifest.stepcost import Passage, drain_seconds, evaluate, layer_bounds, layer_seconds, passage
from planner.manifest.terms import StepLoad, timings, variables
from planner.strategy import Strategy
from tests.instances import even_cost, instance

PUBLISHED = Passage(attention=700e-6, dispatch=172e-6, experts=120e-6, combine=193e-6)
SECONDS = st.floats(1e-6, 1e-2)
SUPERPOD = Strategy(attention_dp=160, moe_ep=288, domains=3)


def superpod(**changes: object) -> Deployment:
    """Return xDeepServe's 768 dies: three domains of 160, 256 routed and 32 shared expert dies."""
    fields = {"redundant": 256, "shared_ranks": 32, "drafts": 1, "strategy": SUPERPOD} | changes
    return instance("deepseek-r1", "cm384", "decode", "int8", **fields)


def test_the_published_budget_adds_up() -> None:
    """Section 7.1: 0.7 ms x 2 microbatches x 61 layers, and 0.17 + 0.12 + 0.19 ms once at the end."""
    layer = layer_seconds(PUBLISHED, domains=3, microbatches=2)
    assert 61 * layer + drain_seconds(PUBLISHED, layer, 2) == pytest.approx(85.4e-3 + 0.485e-3)


def test_the_stages_are_near_the_published_ones() -> None:
    """Batch 96 in two microbatches, 3K cached tokens: attention 0.7 ms, A2E 172, experts 120, E2A 193 us.

    One expert per die, evenly loaded; what was measured in place includes waiting, so the exchanges are below it.
    """
    deployment = superpod(redundant=0)
    cost = even_cost(deployment)
    stages = timings(cost.terms, variables(cost, decode_load(deployment, 96.0, 3072.0), 2))
    parts = passage(cost, stages)
    hop = next(timing for term, timing in stages["gate"].terms if term.name == "a2e_hop").seconds()
    assert parts.attention == pytest.approx(PUBLISHED.attention, rel=0.1)
    assert parts.dispatch + hop == pytest.approx(PUBLISHED.dispatch, rel=0.25)
    assert parts.experts == pytest.approx(PUBLISHED.experts, rel=0.15)
    assert parts.combine == pytest.approx(PUBLISHED.combine, rel=0.25)


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.integers(1, 6), st.sampled_from([1, 2]))
def test_a_layer_is_its_largest_bound(a: float, d: float, e: float, c: float, domains: int, count: int) -> None:
    """No bound is passed, one of them is met, and neither more domains nor more work is faster."""
    parts = Passage(attention=a, dispatch=d, experts=e, combine=c)
    layer = layer_seconds(parts, domains, count)
    assert layer == max(layer_bounds(parts, domains, count))
    assert layer_seconds(parts, domains + 1, count) >= layer
    assert layer_seconds(parts._replace(experts=2 * e), domains, count) >= layer
    assert drain_seconds(parts, layer, count) >= 0


@settings(max_examples=10, deadline=None)
@given(batch=st.integers(2, 128), domains=st.integers(1, 6))
def test_domains_add_rate_until_the_experts_bind(batch: int, domains: int) -> None:
    """One domain more never lowers the instance's rate and never shortens the step."""
    seconds = []
    for count in (domains, domains + 1):
        deployment = superpod(strategy=SUPERPOD._replace(domains=count))
        load = StepLoad(decode_sequences=batch, decode_kv_tokens=batch * 3072.0, mean_tokens=2.0 * batch)
        seconds.append(float(evaluate(balanced_cost(deployment, parse_balance("measured")), load, 2).seconds))
    assert seconds[1] >= seconds[0]
    assert (domains + 1) / seconds[1] >= domains / seconds[0] * (1 - 1e-9)


def test_memory_is_of_two_kinds_of_devices() -> None:
    """Attention devices hold no routed expert and all KV, expert devices the reverse; together all weights."""
    held = memory(superpod(), kv_tokens=96 * 3072.0, sequences=96.0, tokens=192.0)
    experts = expert_device_memory(superpod(), 192.0)
    assert experts.kv_cache == 0
    # 58 MoE layers and the draft's, two slots of 3 x 7168 x 2048 INT8 weights each.
    assert experts.weights == 59 * 2 * 3 * 7168 * 2048
    colocated = superpod(strategy=Strategy(attention_dp=288, moe_ep=288))
    together = memory(colocated, kv_tokens=96 * 3072.0, sequences=96.0, tokens=192.0)
    assert held.weights + experts.weights == pytest.approx(together.weights)
