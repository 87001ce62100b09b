"""How terms compose: bounds of overlap, monotone loads, arrays, pipeline, drafts, host."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from planner.costs.deployment import Deployment
from planner.costs.latency import decode_load
from planner.costs.operators import build_step_cost
from planner.manifest.stepcost import (
    draft_seconds,
    evaluate,
    evaluate_best,
    expert_stream,
    launches,
    memory_demand,
    moe_layer,
    stage_sum,
)
from planner.manifest.terms import StepCost, StepLoad, Timings, communication_seconds, timings, variables
from tests.instances import cloudmatrix_decode, even_cost, instance, without_host

BATCH = st.floats(2, 256)
KV = st.floats(1, 65_536)


def hopper_decode() -> Deployment:
    """Return DeepSeek-R1 on EP128, where compute runs beside communication."""
    return instance("deepseek-r1", "h800", "decode", "fp8", attention_dp=128, moe_ep=128)


def hopper_prefill(**fields: int) -> Deployment:
    """Return DeepSeek-R1 prefill on EP32, launched kernel by kernel."""
    return instance("deepseek-r1", "h800", "prefill", "fp8", attention_dp=32, moe_ep=32, **fields)


def prompts(tokens: float) -> StepLoad:
    """Return one whole prompt per rank."""
    return StepLoad(prefill_tokens=tokens, prefill_pairs=tokens * tokens / 2, finishing_prompts=1.0, mean_tokens=tokens)


def halves(cost: StepCost, load: StepLoad) -> Timings:
    """Return the stages of one of two microbatches."""
    return timings(cost.terms, variables(cost, load, 2))


@settings(max_examples=25, deadline=None)
@given(batch=BATCH, kv=KV)
def test_split_streams_beat_no_resource(batch: float, kv: float):
    """Two streams on one die: at least each stream at all cores, all compute, and all memory traffic (both halves)."""
    deployment = cloudmatrix_decode(shared_ranks=0, redundant=64)
    cost = even_cost(deployment)
    stages = halves(cost, decode_load(deployment, batch, kv))
    layer, share = moe_layer(cost, stages, 2)
    compute = sum(float(own.compute) for stage in stages for _, own in stages[stage].terms if stage != "dense")
    for bound in (
        stage_sum(stages, ("attention",)),
        expert_stream(cost, stages),
        compute,
        sum(memory_demand(cost, stages)),
    ):
        assert layer >= 2 * float(bound) * (1 - 1e-9)
    assert 1 / cost.cores <= share <= 1 - 1 / cost.cores


@settings(max_examples=25, deadline=None)
@given(batch=BATCH, kv=KV)
def test_chosen_share_is_the_best(batch: float, kv: float):
    """Trying all 23 partitions of 24 cores finds nothing much faster than the bisection."""
    deployment = cloudmatrix_decode()
    cost = even_cost(deployment)
    stages = halves(cost, decode_load(deployment, batch, kv))
    own = {number / 24: stage_sum(stages, ("attention",), number / 24) for number in range(1, 24)}
    best = min(max(float(attention), float(expert_stream(cost, stages, 1 - share))) for share, attention in own.items())
    _, share = moe_layer(cost, stages, 2)
    chosen = max(float(own[float(share)]), float(expert_stream(cost, stages, 1 - share)))
    assert chosen <= best * 1.1


def test_split_of_cloudmatrix():
    """CloudMatrix384 section 4.2.3: 16 of 24 cube cores for attention at 4K and batch 96, 600 us a stream."""
    deployment = cloudmatrix_decode()
    cost = even_cost(deployment)
    layer, share = moe_layer(cost, halves(cost, decode_load(deployment, 48.0, 4096.0)), 2)
    assert float(share) * 24 == pytest.approx(16, abs=2)
    assert float(layer) / 2 == pytest.approx(600e-6, rel=0.1)


def test_contention_of_xllm_table_7():
    """xLLM Table 7, a layer of DeepSeek-R1 on Ascend: compute 13.0 -> 17.0 ms, communication 9.3 -> 12.4 ms."""
    cost = build_step_cost(instance("deepseek-r1", "cm384", "prefill", "int8", attention_dp=32, moe_ep=32))
    beside = 9.3 * cost.communication_dilation
    assert beside == pytest.approx(12.4, rel=0.01)
    assert 13.0 + cost.communication_share * beside == pytest.approx(17.0, rel=0.01)


@settings(max_examples=25, deadline=None)
@given(batch=BATCH, kv=KV, more=st.floats(1.01, 4), microbatches=st.sampled_from([1, 2]))
def test_longer_loads_take_longer(batch: float, kv: float, more: float, microbatches: int):
    """More requests or longer caches shorten no iteration; two streams: by less than their split is off the best."""
    slack = 1e-9 if microbatches == 1 else 0.01
    for deployment in (cloudmatrix_decode(), hopper_decode()):
        cost = even_cost(deployment)
        base = float(evaluate(cost, decode_load(deployment, batch, kv), microbatches).seconds)
        wider = float(evaluate(cost, decode_load(deployment, batch * more, kv), microbatches).seconds)
        longer = float(evaluate(cost, decode_load(deployment, batch, kv * more), microbatches).seconds)
        assert wider >= base * (1 - slack)
        assert longer >= base * (1 - slack)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_arrays_of_loads_are_the_loop_over_them(microbatches: int):
    """One evaluation of a grid of batches and lengths equals its cells one by one, for all three rules."""
    batch, kv = np.array([[1.0], [7.0], [300.0]]), np.array([[1.0, 4096.0, 1e5]])
    dense = instance("qwen3-32b", "h200", "decode", "bf16", attention_tp=2, moe_tp=2)
    for deployment in (cloudmatrix_decode(), hopper_decode(), dense):
        cost = build_step_cost(deployment)
        grid = np.broadcast_to(evaluate(cost, decode_load(deployment, batch, kv), microbatches).seconds, (3, 3))
        cells = [
            float(evaluate(cost, decode_load(deployment, b, k), microbatches).seconds)
            for b in batch.ravel().tolist()
            for k in kv.ravel().tolist()
        ]
        assert grid.ravel() == pytest.approx(np.array(cells), rel=1e-12)


def test_dedicated_ranks_run_the_shared_expert_beside_the_routed_ones():
    """With ranks of its own the shared expert costs nothing unless it takes longer; with a copy it is in turn."""
    deployment = cloudmatrix_decode()
    cost = even_cost(deployment)
    stages = halves(cost, decode_load(deployment, 48.0, 4096.0))
    routed, shared = (float(stage_sum(stages, (name,))) for name in ("experts", "shared"))
    others = float(stage_sum(stages, ("gate", "dispatch", "combine")))
    assert float(expert_stream(cost, stages)) == pytest.approx(others + max(routed, shared))
    assert float(expert_stream(replace(cost, shared_ranks=0), stages)) == pytest.approx(others + routed + shared)


def through_stages(parts: int, layers: float, hop: float, head: float, shares: list[float]) -> float:
    """When the last of equal parts leaves the last stage, part by part and stage by stage."""
    free = [0.0] * len(shares)
    for _ in range(parts):
        now = 0.0
        for stage, share in enumerate(shares):
            now = free[stage] = max(now, free[stage]) + layers * share + hop + (stage == len(shares) - 1) * head
    return free[-1]


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_a_pass_goes_through_the_stages_part_by_part(pp: int):
    """64 layers divide evenly: as many parts as stages, of which the last stage computes the head besides."""
    cost = without_host(even_cost(instance("qwen3-32b", "h200", "prefill", "bf16", pp=pp)))
    load = prompts(8192.0)
    alone = evaluate(replace(cost, pipeline_bubble=False, pipeline_hop=None), load, 1)
    hop = float(communication_seconds(cost.pipeline_hop, variables(cost, load, 1)))
    head = float(alone.head_seconds)
    layers = float(alone.seconds) - head
    told = through_stages(pp, layers, hop, head, [1 / pp] * pp)
    assert float(evaluate(cost, load, 1).seconds) == pytest.approx(told)
    one = float(evaluate(replace(cost, pipeline_bubble=False), load, 1).seconds)
    assert one == pytest.approx(through_stages(1, layers, hop, head, [1 / pp] * pp))


def test_stages_that_do_not_divide_the_layers_wait_for_the_fullest():
    """61 layers in four stages: the fullest has 16, the last one 15 and the head."""
    cost = without_host(even_cost(instance("deepseek-r1", "h800", "prefill", "fp8", attention_dp=8, moe_ep=8, pp=4)))
    load = prompts(2048.0)
    alone = evaluate(replace(cost, pipeline_bubble=False, pipeline_hop=None), load, 1)
    hop, head = float(communication_seconds(cost.pipeline_hop, variables(cost, load, 1))), float(alone.head_seconds)
    told = through_stages(4, float(alone.seconds) - head, hop, head, [16 / 61, 15 / 61, 15 / 61, 15 / 61])
    assert float(evaluate(cost, load, 1).seconds) == pytest.approx(told)


def test_pipelined_decode_goes_round_at_the_pace_of_the_last_stage():
    """PP2 in decode: of a batch of 64 two parts of 32 take turns on the last stage, which has half the layers."""
    split = without_host(even_cost(instance("qwen3-32b", "h200", "decode", "bf16", pp=2)))
    single = instance("qwen3-32b", "h200", "decode", "bf16")
    hop = float(communication_seconds(split.pipeline_hop, {"tokens": 32.0}))
    half = evaluate(without_host(even_cost(single)), decode_load(single, 32.0, 4096.0), 1)
    whole = float(evaluate(split, decode_load(single, 64.0, 4096.0), 1).seconds)
    assert whole == pytest.approx(float(half.seconds) + float(half.head_seconds) + 2 * hop)


def test_every_stage_has_a_host_that_launches_every_part():
    """The gap between steps is of a part on a stage: once for each of four stages."""
    cost = even_cost(instance("qwen3-32b", "h200", "decode", "bf16", pp=4))
    load = decode_load(instance("qwen3-32b", "h200", "decode", "bf16"), 64.0, 4096.0)
    more = evaluate(replace(cost, host_seconds=1e-3), load, 1).seconds - evaluate(without_host(cost), load, 1).seconds
    assert float(more) == pytest.approx(4e-3)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_every_draft_is_a_layer_and_a_head(microbatches: int):
    """Two drafts: twice one MoE layer of all microbatches, and projection, head and sampling on the whole batch."""
    deployment = cloudmatrix_decode(drafts=2)
    cost = without_host(even_cost(deployment))
    load = decode_load(deployment, 32.0, 4096.0)
    layer, _ = moe_layer(cost, timings(cost.terms, variables(cost, load, microbatches)), microbatches)
    head = stage_sum(timings(cost.draft_terms, variables(cost, load, 1)), ("draft",))
    with_drafts = float(evaluate(cost, load, microbatches).seconds)
    undrafted = float(evaluate(replace(cost, draft_terms=()), load, microbatches).seconds)
    one_layer_more = float(evaluate(replace(cost, moe_layers=59), load, microbatches).seconds)
    assert with_drafts - undrafted == pytest.approx(2 * float(head + layer))
    assert one_layer_more - with_drafts == pytest.approx(float(layer))
    stages = timings(cost.terms, variables(cost, load, microbatches))
    drafts = timings(cost.draft_terms, variables(cost, load, 1))
    assert draft_seconds(cost, stages, drafts, layer, microbatches) == pytest.approx(2 * float(layer + head))


@pytest.mark.parametrize("microbatches", [1, 2])
def test_drafts_of_a_dense_model_run_a_dense_layer(microbatches: int):
    """Without experts a draft costs attention and feed-forward of one layer, per microbatch, and its head."""
    deployment = instance("qwen3-32b", "h200", "decode", "bf16", drafts=1)
    deployment = replace(deployment, model=replace(deployment.model, mtp_layers=1))
    cost, load = even_cost(deployment), decode_load(deployment, 32.0, 4096.0)
    stages = timings(cost.terms, variables(cost, load, microbatches))
    drafts = timings(cost.draft_terms, variables(cost, load, 1))
    layer, head = stage_sum(stages, ("attention", "dense")), stage_sum(drafts, ("draft",))
    seconds = draft_seconds(cost, stages, drafts, 0.0, microbatches)
    assert seconds == pytest.approx(float(microbatches * layer + head))


def test_eager_launches_are_a_floor():
    """A tiny eager pass takes its kernels' launch time: kernels x 5 us on H800, twice for two microbatches."""
    cost = build_step_cost(hopper_prefill())
    for microbatches in (1, 2):
        floor = launches(cost, microbatches) * cost.launch_seconds
        assert cost.launch_seconds == pytest.approx(5e-6)
        assert float(evaluate(cost, prompts(2.0), microbatches).seconds) >= floor
    assert launches(cost, 2) > 1.9 * launches(cost, 1)
    slow_host = replace(cost, launch_seconds=1.0)
    assert float(evaluate(slow_host, prompts(2.0), 1).seconds) == pytest.approx(launches(cost, 1))


def test_host_time_is_added_to_a_graph():
    """A replayed graph launches nothing by itself; the step adds the host's time per iteration."""
    deployment = hopper_decode()
    cost, load = build_step_cost(deployment), decode_load(hopper_decode(), 8.0, 1000.0)
    assert cost.launch_seconds == 0.0
    bare = float(evaluate(without_host(cost), load, 1).seconds)
    assert float(evaluate(cost, load, 1).seconds) == pytest.approx(bare + 2e-4)
    stated = build_step_cost(replace(deployment, host_seconds=3e-3))
    assert float(evaluate(stated, load, 1).seconds) == pytest.approx(bare + 3e-3)


def test_best_number_of_microbatches():
    """The faster of one and two where two are allowed, possible and there are experts to overlap with."""
    deployment = hopper_decode()
    cost, load = even_cost(deployment), decode_load(deployment, 128.0, 4096.0)
    one, two = (float(evaluate(cost, load, count).seconds) for count in (1, 2))
    assert two < one
    assert evaluate_best(cost, load, 2).microbatches == 2
    assert evaluate_best(cost, load, 1).microbatches == 1
    assert evaluate_best(cost, decode_load(deployment, 1.0, 4096.0), 2).microbatches == 1
