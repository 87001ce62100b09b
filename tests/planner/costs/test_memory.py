"""Bytes per device against parameter counts and published buffer sizes."""

from dataclasses import replace

import numpy as np
import pytest

from models.parameters import attention_parameters, count_parameters
from planner.costs.cache import device_cache, model_cache
from planner.costs.deployment import StrategyArray
from planner.costs.memory import (
    NORMAL_EXCHANGE_BUFFER_BYTES,
    activation_bytes,
    buffer_bytes,
    carried_requests,
    memory,
    weight_bytes,
)
from tests.instances import cloudmatrix_decode, instance

R1_EXPERT = 3 * 7168 * 2048
R1_GATE = 7168 * 256
R1_KV_UP = 512 * 128 * 256


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_dense_weights_split_over_tp(tp: int):
    """Qwen3-32B in BF16: all devices of a TP group together hold 2 B per parameter."""
    deployment = instance("qwen3-32b", "h200", "decode", "bf16", attention_tp=tp, moe_tp=tp)
    assert tp * weight_bytes(deployment) == pytest.approx(2 * count_parameters(deployment.model).total, rel=1e-9)


def test_kv_heads_repeat_beyond_their_number():
    """Qwen3-32B on TP16: its 8 KV heads stand twice, weights and cache alike."""
    deployment = instance("qwen3-32b", "h200", "decode", "bf16", attention_tp=16, moe_tp=16)
    repeated = 64 * 5120 * 2 * 8 * 128
    assert 16 * weight_bytes(deployment) == pytest.approx(2 * (count_parameters(deployment.model).total + repeated))
    assert 16 * device_cache(deployment).token_bytes == 2 * float(model_cache(deployment).token_bytes)


def test_weights_of_the_cloudmatrix_decode_die():
    """One INT8 expert per die beside whole attention, dense layers and tables: 20.10 GB by hand.

    61·(187,105,280 + 16,777,216 for W_kv_b in BF16) + 3·396,361,728 + 58·(44,040,192 + 3,670,016) + 4·129280·7168.
    """
    by_hand = 12_436_832_256 + 1_189_085_184 + 2_767_192_064 + 3_706_716_160
    assert weight_bytes(cloudmatrix_decode(drafts=0)) == pytest.approx(by_hand)


def test_draft_layer_adds_its_layer_and_projection():
    """MTP: one further MoE layer and 2·7168² (DeepSeek-V3 section 2.2); tables are shared; its KV is cached too."""
    plain, drafting = cloudmatrix_decode(drafts=0), cloudmatrix_decode(drafts=1)
    layer = 187_105_280 + R1_KV_UP + R1_EXPERT + 2 * R1_GATE
    assert weight_bytes(drafting) - weight_bytes(plain) == pytest.approx(layer + 2 * 7168**2)
    assert device_cache(drafting).token_bytes - device_cache(plain).token_bytes == 576 * 2


@pytest.mark.parametrize(("engine", "layers"), [("trtllm", 1), ("sglang", 1), (None, 0), ("reference", 0)])
def test_prefill_holds_the_layer_that_drafts_in_decode(engine: str | None, layers: int):
    """Engines load the draft layer in prefill as well, with 64 experts a device, and cache its keys; none runs it."""
    held = {"attention_dp": 4, "moe_ep": 4, "engine": engine}
    plain, beside = (
        instance("deepseek-r1", "b200", "prefill", "fp8", decode_drafts=drafts, **held) for drafts in (0, 2)
    )
    drafting = replace(plain, drafts=1)
    assert weight_bytes(drafting) > weight_bytes(plain) + 64 * R1_EXPERT
    assert weight_bytes(beside) == weight_bytes(drafting if layers else plain)
    assert device_cache(beside).token_bytes - device_cache(plain).token_bytes == layers * 576 * 2
    assert beside.queries == plain.queries == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "reference"])
@pytest.mark.parametrize("drafts", [0, 1])
def test_deepep_carries_a_thousand_tokens_of_a_rank(engine: str, drafts: int):
    """internode_ll.cu counts up to 1,024: with a draft 512 requests; prompts, one rank and other engines are free."""
    shape = {"attention_dp": 8, "moe_ep": 8, "drafts": drafts, "engine": engine}
    bound = 1024 / (1 + drafts) if engine in ("vllm", "sglang") else np.inf
    assert carried_requests(instance("deepseek-r1", "h200", "decode", "fp8", **shape)) == bound
    mixed = instance("deepseek-r1", "h200", "mixed", "fp8", **shape)
    assert carried_requests(mixed) == (bound if engine == "sglang" else np.inf)  # vLLM gathers there
    alone = instance("deepseek-r1", "h200", "decode", "fp8", **shape | {"attention_dp": 1, "attention_tp": 8})
    assert carried_requests(alone) == np.inf


def test_expert_parallel_weights_sum_to_the_parameters():
    """DeepSeek-R1 EP32 with 32 replicas: 58·288 experts once, everything else on each of 32 devices."""
    deployment = instance("deepseek-r1", "h800", "prefill", "fp8", attention_dp=32, moe_ep=32, redundant=32)
    count = count_parameters(deployment.model)
    everywhere = count.total - 58 * 256 * count.routed_expert
    # Gate and tables are BF16.
    extra = 58 * R1_GATE + 2 * count.table
    expected = 32 * (everywhere + extra) + 58 * 288 * count.routed_expert
    assert 32 * weight_bytes(deployment) == pytest.approx(expected, rel=1e-9)


def test_tensor_parallel_mla_repeats_its_down_projections():
    """TP8 holds W_q_a, W_kv_a and the gate eight times."""
    deployment = instance("deepseek-r1", "h800", "prefill", "fp8", attention_tp=8, moe_tp=8)
    count = count_parameters(deployment.model)
    once = count.total + 58 * R1_GATE + 2 * count.table
    repeated = 7 * (61 * 7168 * 2112 + 58 * 2 * R1_GATE)
    assert 8 * weight_bytes(deployment) == pytest.approx(once + repeated, rel=1e-9)


def test_fullest_stage_carries_what_does_not_divide():
    """61 layers over 4 stages: 16 MoE layers and one table, or the dense ones where those are larger; FP8."""
    deployment = instance("deepseek-r1", "h800", "prefill", "fp8", pp=4)
    count = count_parameters(deployment.model)
    layer = attention_parameters(deployment.model.attention, 7168) + 257 * R1_EXPERT + 2 * R1_GATE
    assert weight_bytes(deployment) == pytest.approx(16 * layer + 2 * count.table)
    assert device_cache(deployment).token_bytes == 16 * 576 * 2
    wide = instance("deepseek-r1", "h800", "prefill", "fp8", pp=4, attention_dp=64, moe_ep=64)
    moe, dense = layer - 252 * R1_EXPERT, layer - 257 * R1_EXPERT - 2 * R1_GATE + 3 * 7168 * 18432
    assert weight_bytes(wide) == pytest.approx(3 * dense + 13 * moe + 2 * count.table)


def test_both_forms_of_the_latent_projection_in_an_aggregated_fp8_instance():
    """Prompts multiply W_kv_b in FP8, running requests its absorbed BF16 factors: 3 B per element in all."""
    phases = [
        weight_bytes(instance("deepseek-r1", "h200", phase, "fp8", attention_tp=8, moe_tp=8))
        for phase in ("prefill", "decode", "mixed")
    ]
    step = 61 * R1_KV_UP / 8
    assert [phases[1] - phases[0], phases[2] - phases[1]] == pytest.approx([step, step])


def test_cache_of_one_token():
    """DeepSeek-V3 (arXiv 2412.19437): 61·(512 + 64) = 35,136 elements, whole on every TP device."""
    for tp in (1, 8):
        deployment = instance("deepseek-r1", "h200", "decode", "fp8", attention_tp=tp, moe_tp=tp)
        assert device_cache(deployment).token_bytes == 2 * 35_136
    quantised = instance("deepseek-r1", "h200", "decode", "fp8", kv_dtype="fp8")
    assert device_cache(quantised).token_bytes == 35_136
    gqa = instance("qwen3-235b-a22b", "h200", "decode", "bf16", attention_tp=2, moe_tp=2)
    assert device_cache(gqa).token_bytes == 94 * 2 * 2 * 128 * 2  # two of four KV heads


def test_exchange_buffers_of_cloudmatrix():
    """CloudMatrix384 Eq. (1)-(2): 320 ranks x 96 tokens: 225 MiB to dispatch and 420 MiB to combine."""
    assert buffer_bytes(cloudmatrix_decode(), 96.0) == (225 + 420) * 2**20


def test_normal_kernels_have_buffers_of_one_size():
    """Prefill moves a pass in chunks; without expert parallelism there are no buffers."""
    wide = instance("deepseek-r1", "h800", "prefill", "fp8", attention_dp=32, moe_ep=32)
    assert buffer_bytes(wide, 16384.0) == NORMAL_EXCHANGE_BUFFER_BYTES
    assert buffer_bytes(instance("deepseek-r1", "h800", "prefill", "fp8", attention_tp=8, moe_tp=8), 16384.0) == 0.0


def test_staged_devices_hold_their_share_of_the_tokens():
    """SP32 and DP32 with 8192 tokens per device: staged adds only the gathered latents, 32·8192·2112·2 B."""
    spread = instance("deepseek-r1", "cm384", "prefill", "int8", attention_dp=32, moe_ep=32)
    staged = instance("deepseek-r1", "cm384", "prefill", "int8", attention_tp=32, staged=True, moe_ep=32)
    extra = activation_bytes(staged, 32 * 8192.0) - activation_bytes(spread, 8192.0)
    assert extra == pytest.approx(32 * 8192 * 2112 * 2)


def test_logits_are_those_of_every_token_in_decode_alone():
    """Qwen3-8B: 151,936 FP32 logits a token are more than three rows of 12,288."""
    decode, prefill = (
        activation_bytes(instance("qwen3-8b", "h800", one, "bf16"), 64.0) for one in ("decode", "prefill")
    )
    assert decode - prefill == 64 * (151_936 * 4 - 3 * 12_288 * 2)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_engines_keep_what_their_rules_say(engine: str, phase: str):
    """R1 on H800 in FP8, EP 8 to 64: arrays equal the loop; SGLang keeps its 10 GiB, vLLM DeepEP's GiB at least."""
    ranks, one = np.array([8, 16, 64]), np.ones(3, dtype=int)
    array = StrategyArray(attention_tp=one, attention_dp=ranks, moe_tp=one, moe_ep=ranks, staged=False, pp=one)
    load = {"kv_tokens": 1e5, "sequences": 64.0, "tokens": 128.0}
    together = memory(instance("deepseek-r1", "h800", phase, "fp8", strategy=array, engine=engine), **load)
    for number, degree in enumerate(map(int, ranks)):
        alone = instance("deepseek-r1", "h800", phase, "fp8", attention_dp=degree, moe_ep=degree, engine=engine)
        held = memory(alone, **load)
        assert np.broadcast_to(together.buffers, 3)[number] == pytest.approx(float(held.buffers))
        parts = held.weights + held.kv_cache + held.activations + held.reserve
        assert held.used - parts == pytest.approx(float(held.buffers))
        least = {"sglang": 10 * 2**30 - held.reserve - held.activations, "vllm": 2**30, "trtllm": 2 * 2**30}[engine]
        assert held.buffers >= (0 if (engine, phase) == ("vllm", "mixed") else least)


def test_ranks_of_one_attention_group_exchange_nothing():
    """TP 8 with EP 8: all hold the same tokens, and vLLM gives nothing to DeepEP."""
    assert (
        memory(
            instance("deepseek-r1", "h800", "decode", "fp8", attention_tp=8, moe_ep=8, engine="vllm"),
            kv_tokens=1e5,
            sequences=64.0,
            tokens=128.0,
        ).buffers
        == 0.0
    )
