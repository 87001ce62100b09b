"""The table of operators against parameter counts: FLOP, shapes over TP, EP and SP, exchange payloads."""

from dataclasses import replace

import pytest

from models.loader import load_model, model_names
from models.parameters import count_parameters
from models.spec import GQA, MLA
from planner.costs.breakdown import Operator
from planner.costs.deployment import Deployment
from planner.costs.latency import causal_pairs, decode_load
from planner.costs.memory import weight_bytes
from planner.costs.operators import build_step_cost
from planner.manifest.terms import StepLoad, form, variables
from tests.instances import broken_down, cloudmatrix_decode, even_cost, instance

KEYS = 4096


def decode_flops(deployment: Deployment) -> float:
    """FLOP per device of one request's token at ``KEYS`` cached ones."""
    return sum(row.flops for row in decode_rows(deployment))


def decode_rows(deployment: Deployment) -> tuple[Operator, ...]:
    """Return the operators of a decode step of one request."""
    return broken_down(even_cost(deployment), decode_load(deployment, 1.0, float(KEYS)), 1)


def prompt(tokens: float, cached: float = 0.0) -> StepLoad:
    """Return the load of one whole prompt, or of its end after ``cached`` reused tokens."""
    return StepLoad(
        prefill_tokens=tokens,
        prefill_context_tokens=cached,
        prefill_pairs=causal_pairs(tokens, cached),
        finishing_prompts=1.0,
        mean_tokens=tokens,
    )


@pytest.mark.parametrize("model", model_names())
def test_a_token_passes_every_active_parameter_once(model: str):
    """Without keys: 2 FLOP and 2 B of each, held by one device, and little besides; prompts pass the head once."""
    decode, prefill, tokens = (*(instance(model, "h200", phase, "bf16") for phase in ("decode", "prefill")), 1000.0)
    spec, count = decode.model, count_parameters(decode.model)
    compressed = isinstance(spec.attention, MLA) and spec.attention.compression is not None
    state = spec.linear_attention is not None or compressed or model == "openpangu-r-72b"  # further FLOP and bytes
    rows = broken_down(even_cost(decode), decode_load(decode, 1.0, 0.0), 1)
    prompts = broken_down(even_cost(prefill), prompt(tokens)._replace(prefill_pairs=0.0), 1)

    assert sum(row.flops for row in rows) == pytest.approx(2 * count.active, rel=0.03 if state else 1e-9)
    assert 1 < sum(row.bytes for row in rows) / (2 * count.active) < (1.03 if state else 1.005)
    passed = 2 * tokens * (count.active - count.table) + 2 * count.table
    assert sum(row.flops for row in prompts) == pytest.approx(passed, rel=0.04 if state else 1e-9)
    assert weight_bytes(decode) == weight_bytes(prefill) == 2 * count.total


@pytest.mark.parametrize(
    ("model", "weights", "layers", "decode_pair", "prompt_pair"),
    [
        ("deepseek-r1", "fp8", 61, 2 * 128 * (512 + 64 + 512), 2 * 128 * (192 + 128)),
        ("qwen3-235b-a22b", "bf16", 94, 4 * 64 * 128, 4 * 64 * 128),
        ("qwen3-32b", "bf16", 64, 4 * 64 * 128, 4 * 64 * 128),
    ],
)
def test_flops_are_twice_the_active_parameters(model, weights, layers, decode_pair, prompt_pair):
    """Beside attention, by pair and layer: MLA is absorbed in decode and not for prompts, which pass the head once."""
    decode, prefill = (instance(model, "h200", phase, weights) for phase in ("decode", "prefill"))
    count, tokens = count_parameters(decode.model), 1000
    assert decode_flops(decode) == pytest.approx(2 * count.active + KEYS * layers * decode_pair, rel=1e-9)
    rows = broken_down(even_cost(prefill), prompt(1000.0), 1)
    expected = 2 * tokens * (count.active - count.table) + 2 * count.table
    expected += tokens * (tokens + 1) // 2 * layers * prompt_pair
    assert sum(row.flops for row in rows) == pytest.approx(expected, rel=1e-9)


def test_tensor_parallel_gqa_splits_every_operation():
    """Qwen3-32B on TP8: eight devices together do what one does, KV heads included."""
    one, eight = (instance("qwen3-32b", "h200", "decode", "bf16", attention_tp=n, moe_tp=n) for n in (1, 8))
    assert 8 * decode_flops(eight) == pytest.approx(decode_flops(one), rel=1e-9)


def test_tensor_parallel_gqa_repeats_kv_heads_beyond_their_number():
    """Qwen3-32B has 8 KV heads: on TP16 each is projected twice, 2·64·5120·2·8·128 FLOP more."""
    one, wide = (instance("qwen3-32b", "h200", "decode", "bf16", attention_tp=n, moe_tp=n) for n in (1, 16))
    extra = 2 * 64 * 5120 * 2 * 8 * 128
    assert 16 * decode_flops(wide) - decode_flops(one) == pytest.approx(extra, rel=1e-6)


def test_tensor_parallel_mla_repeats_down_projections_and_gate():
    """DeepSeek-R1 on TP8: W_q_a, W_kv_a (2112 columns) and the gate run on all eight devices."""
    one, eight = (instance("deepseek-r1", "h200", "decode", "fp8", attention_tp=n, moe_tp=n) for n in (1, 8))
    repeated = 7 * 2 * (61 * 7168 * 2112 + 58 * 7168 * 256)
    assert 8 * decode_flops(eight) - decode_flops(one) == pytest.approx(repeated, rel=1e-6)


def test_staged_attention_does_each_operation_once():
    """SP-TP-SP (CloudMatrix384 section 4.3.1) splits down projections by tokens too: 16 devices do what one does."""
    one = instance("deepseek-r1", "cm384", "prefill", "int8")
    staged = instance("deepseek-r1", "cm384", "prefill", "int8", attention_tp=16, staged=True, moe_ep=16)
    alone, shared = (
        sum(row.flops for row in broken_down(even_cost(deployment), prompt(4096.0), 1)) for deployment in (one, staged)
    )
    assert 16 * shared == pytest.approx(alone, rel=1e-9)


def test_expert_parallel_devices_do_the_tokens_of_all_ranks_once():
    """DP8 + EP8, one request per rank: every device does what one device does for one request."""
    one = instance("qwen3-235b-a22b", "h200", "decode", "bf16")
    eight = instance("qwen3-235b-a22b", "h200", "decode", "bf16", attention_dp=8, moe_ep=8)
    assert decode_flops(eight) == pytest.approx(decode_flops(one), rel=1e-9)


def test_hybrid_experts_split_tokens_and_width():
    """TP4 + DP2 with TP2 + EP4 on eight devices: routed work is an eighth of two requests', the shared one too."""
    hybrid = instance("deepseek-r1", "910b", "decode", "int8", attention_tp=4, attention_dp=2, moe_tp=2, moe_ep=4)
    flops = {row.name: row.flops for row in decode_rows(hybrid)}
    assert flops["routed_gate_up"] == pytest.approx(58 * 2 * 8 * 2 * 2 * 2048 * 7168 / 8)
    assert flops["shared_down"] == pytest.approx(58 * 2 * 2 * 2048 * 7168 / 8)


def test_exchange_payload_is_a_device_share_of_its_groups_tokens():
    """Attention TP4 sends a quarter of its group's copies per device; 96 tokens, 8 experts, 7392 B each."""
    deployment = instance("deepseek-r1", "h200", "decode", "fp8", attention_tp=4, attention_dp=8, moe_ep=32)
    cost = build_step_cost(deployment)
    values = variables(cost, decode_load(deployment, 96.0, 1.0), 1)
    dispatch = next(term for term in cost.terms if term.name == "dispatch")
    assert form(dispatch.bytes, values) == pytest.approx(96 / 4 * 8 * (7168 + 224))


def test_dedicated_shared_expert_is_one_more_copy():
    """CloudMatrix384 section 4.2.1: a die sends each of its 96 tokens to 8 routed ranks and a shared one."""
    deployment = cloudmatrix_decode()
    cost = build_step_cost(deployment)
    values = variables(cost, decode_load(deployment, 48.0, 1.0), 1)
    sent = {term.name: form(term.bytes, values) for term in cost.terms if term.name in ("dispatch", "combine")}
    assert sent == {"dispatch": pytest.approx(96 * 9 * 7680), "combine": pytest.approx(96 * 9 * 14336)}
    assert values["shared"] == pytest.approx(320 * 96 / 32)
    assert values["fair"] == pytest.approx(320 * 96 * 8 / 288)


def test_kv_is_read_once_whatever_mtp_verifies():
    """Two queries per request double attention's FLOP, and its cache is still read once (DeepSeek-V3 section 2.2)."""
    plain, drafting = (instance("deepseek-r1", "h200", "decode", "fp8", drafts=drafts) for drafts in (0, 1))
    one, two = ({row.name: row for row in decode_rows(item)}["attention"] for item in (plain, drafting))
    assert two.flops == pytest.approx(2 * one.flops)
    queries = 128 * (576 + 512) * 2
    assert one.bytes == pytest.approx(61 * (KEYS * 576 * 2 + queries))
    assert two.bytes == pytest.approx(61 * (KEYS * 576 * 2 + 2 * queries))


@pytest.mark.parametrize(("hardware", "faster"), [("h20", 1.7), ("h800", 1.0)])
def test_latents_in_fp8_are_multiplied_in_fp8_where_a_kernel_does(hardware: str, faster: float):
    """FP8 FlashMLA computes 1.7 times as fast on an H20 (FlashMLA pull request 82); elsewhere latents are widened."""
    costs = [build_step_cost(instance("deepseek-r1", hardware, "decode", "fp8", kv_dtype=kv)) for kv in ("bf16", "fp8")]
    wide, narrow = (next(term for term in cost.terms if term.name == "attention") for cost in costs)
    assert narrow.flops_per_second / wide.flops_per_second == pytest.approx(faster, rel=0.01)
    assert narrow.bytes["kv"] == pytest.approx(wide.bytes["kv"] / 2)


def test_latent_cache_is_read_whole_by_every_tensor_parallel_device():
    """CloudMatrix384 section 4.2.2: every rank of a TP group holds the full latent cache; GQA's is split."""
    for model, weights, share in (("deepseek-r1", "fp8", 1.0), ("qwen3-32b", "bf16", 0.25)):
        deployment = [instance(model, "h200", "decode", weights, attention_tp=n, moe_tp=n) for n in (1, 4)]
        costs = [build_step_cost(item) for item in deployment]
        read = [next(term for term in cost.terms if term.name == "attention").bytes["kv"] for cost in costs]
        assert read[1] == pytest.approx(read[0] * share)


def test_reused_prefix_is_expanded_again():
    """Half of a 4096-token prompt from cache: kv_up runs on all 4096 latents, projections on 2048 tokens."""
    deployment = instance("deepseek-r1", "h200", "prefill", "fp8")
    cost = even_cost(deployment)
    flops = {row.name: row.flops for row in broken_down(cost, prompt(2048.0, 2048.0), 1)}
    assert flops["kv_up"] == pytest.approx(61 * 2 * 4096 * 512 * 128 * 256)
    assert flops["q_kv_down"] == pytest.approx(61 * 2 * 2048 * 7168 * 2112)
    pairs = 2048 * 2048 + 2048 * 2049 / 2
    assert flops["prefill_attention"] == pytest.approx(61 * pairs * 2 * 128 * 320)


def test_vocabulary_over_tp_needs_two_collectives():
    """Logits of 64 rows are gathered over TP4: 64·151936·2 B·3/4 on the wire; without TP nothing is sent."""
    split = instance("qwen3-32b", "h200", "decode", "bf16", attention_tp=4, moe_tp=4)
    rows = {row.name: row for row in broken_down(even_cost(split), decode_load(split, 64.0, 1.0), 1)}
    assert rows["logits_all_gather"].message_bytes == pytest.approx(64 * 151936 * 2 * 3 / 4)
    whole = decode_rows(instance("qwen3-32b", "h200", "decode", "bf16"))
    assert not any(row.message_bytes for row in whole)


def test_prefill_with_drafts_fills_the_draft_layers_cache():
    """With MTP a prompt's tokens also pass the draft layer and its projection of two hidden states to one."""
    deployment = instance("deepseek-r1", "h200", "prefill", "fp8", drafts=1)
    cost = build_step_cost(deployment)
    projection = next(term for term in cost.draft_terms if term.name == "draft_projection")
    values = variables(cost, prompt(1000.0), 1)
    assert form(projection.flops, values) == pytest.approx(1000 * 2 * 7168 * 14336)


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-30b-a3b", "kimi-k2"])
def test_a_head_drafts_for_a_model_without_draft_layers(model: str):
    """EAGLE-3: a draft reads a dense layer of two inputs, the fusion of three and a head of 32,000 tokens, in BF16."""
    spec = replace(load_model(model), mtp_layers=0)
    own = replace(instance(model, "910c", "decode", "int8", drafts=3), model=spec)
    hidden, gqa, moe = spec.hidden_size, spec.attention, spec.moe
    width = 8 * moe.intermediate_size + moe.shared_intermediate_size if moe else 0
    columns = (gqa.heads + 2 * gqa.kv_heads) * gqa.head_dim if isinstance(gqa, GQA) else (56 + 2 * 8) * 128
    output = gqa.heads * gqa.head_dim if isinstance(gqa, GQA) else 56 * 128
    weights = hidden * (2 * columns + output + 3 * max(width, spec.dense_intermediate_size or 0) + 3 * hidden + 32_000)
    cost = build_step_cost(own)
    values = variables(cost, decode_load(own, 1e-9, 1.0), 1)
    assert sum(form(term.bytes, values) for term in cost.draft_terms) == pytest.approx(2 * weights, rel=1e-3)
    row = next(row for row in broken_down(cost, decode_load(own, 1.0, 1.0), 1) if row.name == "mtp_layer")
    assert row.bytes == pytest.approx(3 * 2 * weights, rel=0.01)
    assert 6 * weights / 1.6e12 < row.seconds < 2 * 6 * weights / 1.6e12


def test_the_first_draft_alone_passes_prompts():
    """A prompt goes through the head's layer once; of what is verified each later draft takes one token a request."""
    cost = build_step_cost(instance("qwen3-8b", "910c", "mixed", "bf16", drafts=3))
    term = next(term for term in cost.draft_terms if term.name == "o_proj")
    flops = [
        3 * form(term.flops, variables(cost, load, 1)) / (2 * 4096 * 4096)
        for load in (prompt(1000.0), decode_load(instance("qwen3-8b", "910c", "mixed", "bf16", drafts=3), 10.0, 100.0))
    ]
    assert flops == pytest.approx([1000, 10 * (4 + 1 + 1)])
