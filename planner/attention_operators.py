"""Attention as terms: MLA absorbed and unabsorbed, staged SP-TP-SP, GQA.

Shapes: n heads per device, d dimensions of a head; terms are per device of a DP group of
``attention_tp`` devices. KV is read once per request and iteration ("kv") however many tokens MTP
verifies; later chunks and reused prefixes are read again ("context").
"""

import numpy as np

from hardware.spec import CollectiveOp
from models.spec import GQA, MLA
from planner.collectives import collective
from planner.deployment import Deployment, several
from planner.manifest.terms import ComputeTerm, Form, Number, Term
from planner.roofline import ELEMENT_BYTES, TOKENS, Roofline, combine, scale


def attention_terms(deployment: Deployment) -> list[Term]:
    """Norm, projections, attention proper, output projection and its all-reduce."""
    attention = deployment.model.attention
    terms = mla_terms(deployment, attention) if isinstance(attention, MLA) else gqa_terms(deployment, attention)
    strategy, hidden = deployment.strategy, deployment.model.hidden_size
    if several(strategy.attention_tp) and not strategy.staged:
        terms.append(
            collective(
                deployment.hardware,
                "all_reduce",
                strategy.attention_tp,
                scale(TOKENS, hidden * 2.0),
                name="attention_all_reduce",
                stage="attention",
                in_graph=deployment.in_graph,
            )
        )
    return terms


def mla_terms(deployment: Deployment, mla: MLA) -> list[Term]:
    """MLA: absorbed for running requests, unabsorbed for prompts; in staged SP-TP-SP form if asked.

    W_q_a and W_kv_a are replicated over TP and so is the latent cache; W_kv_b stays in BF16 under
    INT8 (xDeepServe section 4.7).
    """
    roofline, strategy, model = Roofline(deployment.hardware), deployment.strategy, deployment.model
    hidden, dtype = float(model.hidden_size), deployment.weights
    heads = mla.heads / strategy.attention_tp
    query, latent = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.kv_elements_per_token
    own = scale(TOKENS, 1.0 / strategy.attention_tp) if strategy.staged else TOKENS
    down = latent + (mla.q_lora_rank or 0)
    cached = scale(TOKENS, latent * ELEMENT_BYTES[deployment.kv_dtype])
    terms: list[Term] = [
        roofline.vector("attention_norm", "attention", scale(own, hidden * (3 * 2.0 + 1.0))),
        *roofline.quantise("attention_quantise", "attention", scale(own, hidden), dtype),
        roofline.matmul("q_kv_down", "attention", own, down, hidden, dtype),
        roofline.vector("latent_norm_rope", "attention", combine(TOKENS, (down + heads * query) * 4.0, cached, 1.0)),
        *roofline.quantise("latent_quantise", "attention", scale(TOKENS, float(mla.q_lora_rank or hidden)), dtype),
        roofline.matmul("q_up", "attention", TOKENS, heads * query, float(mla.q_lora_rank or hidden), dtype),
    ]
    if strategy.staged:
        terms += staged_exchanges(deployment, mla)
    if deployment.phase == "decode":
        terms = fused_prologue(deployment, [*terms, k_absorb(deployment, mla, heads)])
    if deployment.phase == "mixed":
        terms.append(k_absorb(deployment, mla, heads))
    if deployment.phase != "prefill":
        terms += absorbed_terms(deployment, mla, heads)
    if deployment.phase != "decode":
        terms += unabsorbed_terms(deployment, mla, heads)
    terms += roofline.quantise("output_quantise", "attention", scale(TOKENS, heads * mla.v_head_dim), dtype)
    if strategy.staged:
        output = roofline.matmul("o_proj", "attention", own, hidden, float(mla.heads * mla.v_head_dim), dtype)
    else:
        output = roofline.matmul("o_proj", "attention", TOKENS, hidden, heads * mla.v_head_dim, dtype)
    return [*terms, output]


def absorbed_terms(deployment: Deployment, mla: MLA, heads: Number) -> list[Term]:
    """Running requests attend in latent space: 2·heads·(2·kv_lora + rope) FLOP per pair of query and key."""
    roofline = Roofline(deployment.hardware)
    queries = 1.0 + deployment.drafts
    rows = {"decode": heads}
    latent = float(mla.kv_lora_rank)
    per_pair = 2.0 * heads * (mla.kv_elements_per_token + latent)
    read = {
        "kv": mla.kv_elements_per_token * ELEMENT_BYTES[deployment.kv_dtype],
        "decode": heads * (mla.kv_elements_per_token + latent) * 2.0,
    }
    return [
        roofline.attention(
            "attention", deployment.hardware.kernels.mla_decode, {"kv": queries}, per_pair, {"decode": 1.0}, read
        ),
        batched_matmul(roofline, "v_absorb", rows, float(mla.v_head_dim), latent, heads),
    ]


def k_absorb(deployment: Deployment, mla: MLA, heads: Number) -> ComputeTerm:
    """W_uk moved to the query side: nope -> kv_lora per head."""
    rows = {"decode": heads}
    return batched_matmul(
        Roofline(deployment.hardware), "k_absorb", rows, float(mla.kv_lora_rank), float(mla.qk_nope_head_dim), heads
    )


def fused_prologue(deployment: Deployment, terms: list[Term]) -> list[Term]:
    """One start-up for the whole chain where the library fuses it (CloudMatrix384 section 4.2.2, MLAProlog)."""
    floor = deployment.hardware.kernels.mla_prologue_floor_seconds
    if floor is None:
        return terms
    chain = [term for term in terms if isinstance(term, ComputeTerm)]
    return [started(chain[0], floor.value, 1), *(started(term, 0.0, 0) for term in chain[1:])]


def started(term: ComputeTerm, floor_seconds: float, launches: int) -> ComputeTerm:
    """Return the term with another start-up."""
    return ComputeTerm(
        name=term.name,
        stage=term.stage,
        flops=term.flops,
        idle_flops=term.idle_flops,
        flops_per_second=term.flops_per_second,
        bytes=term.bytes,
        bytes_per_second=term.bytes_per_second,
        floor_seconds=floor_seconds,
        serial=term.serial,
        launches=launches,
        residual=term.residual,
    )


def batched_matmul(
    roofline: Roofline, name: str, rows: Form, columns: float, depth: float, batch: Number
) -> ComputeTerm:
    """One BF16 product per head: ``rows`` counts all heads, the weight is ``batch`` matrices."""
    return roofline.matmul(name, "attention", rows, columns, depth, "bf16", groups={"one": batch})


def unabsorbed_terms(deployment: Deployment, mla: MLA, heads: Number) -> list[Term]:
    """Prompts attend per head: 2·heads·(nope + rope + v) FLOP per pair; keys and values are expanded.

    Later chunks, and a reused prefix, expand and read the cached latents again ("context").
    """
    roofline = Roofline(deployment.hardware)
    key, value = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim
    all_keys = {"chunk": 1.0, "context": 1.0}
    expand = heads * (mla.qk_nope_head_dim + value)
    dtype = "bf16" if deployment.weights == "int8" else deployment.weights
    latent_read = {"context": mla.kv_elements_per_token * ELEMENT_BYTES[deployment.kv_dtype]}
    read = combine(all_keys, heads * (key + value) * 2.0, {"chunk": 1.0}, heads * (key + value) * 2.0)
    # The rotary key, one per token, is copied behind every head's expanded key.
    joined = scale(all_keys, heads * (mla.qk_nope_head_dim + key) * 2.0)
    return [
        roofline.matmul("kv_up", "attention", all_keys, expand, float(mla.kv_lora_rank), dtype),
        roofline.vector("key_join", "attention", joined),
        roofline.attention(
            "prefill_attention",
            deployment.hardware.kernels.prefill_attention,
            {"pairs": 1.0},
            2.0 * heads * (key + value),
            {"chunk": 1.0},
            combine(read, 1.0, latent_read, 1.0),
        ),
    ]


def staged_exchanges(deployment: Deployment, mla: MLA) -> list[Term]:
    """SP-TP-SP: all-gather of the latents after stage 1, all-to-all of the heads after stage 2.

    CloudMatrix384 section 4.3.1.
    """
    degree = deployment.strategy.attention_tp
    latents = (mla.kv_elements_per_token + (mla.q_lora_rank or deployment.model.hidden_size)) * 2.0
    heads = mla.heads * mla.v_head_dim * 2.0 / degree
    exchanges: tuple[tuple[CollectiveOp, Number, str], ...] = (
        ("all_gather", latents, "latent_all_gather"),
        ("all_to_all", heads, "heads_all_to_all"),
    )
    hardware, graph = deployment.hardware, deployment.in_graph
    return [
        collective(hardware, op, degree, scale(TOKENS, size), name=name, stage="attention", in_graph=graph)
        for op, size, name in exchanges
    ]


def gqa_terms(deployment: Deployment, gqa: GQA) -> list[Term]:
    """Grouped-query attention: KV heads are split over TP and replicated beyond their number."""
    roofline, model, tp = Roofline(deployment.hardware), deployment.model, deployment.strategy.attention_tp
    hidden, dtype, kernels = float(model.hidden_size), deployment.weights, deployment.hardware.kernels
    heads, kv_heads = gqa.heads / tp, np.maximum(gqa.kv_heads / tp, 1.0)
    width = (heads + 2 * kv_heads) * gqa.head_dim
    cached = 2 * kv_heads * gqa.head_dim * ELEMENT_BYTES[deployment.kv_dtype]
    per_pair = 4.0 * heads * gqa.head_dim
    queries = 2.0 * heads * gqa.head_dim * 2.0
    terms: list[Term] = [
        roofline.vector("attention_norm", "attention", scale(TOKENS, hidden * (3 * 2.0 + 1.0))),
        *roofline.quantise("attention_quantise", "attention", scale(TOKENS, hidden), dtype),
        roofline.matmul("qkv_proj", "attention", TOKENS, width, hidden, dtype),
        roofline.vector("rope_cache", "attention", scale(TOKENS, width * 4.0 + cached), kernels=1 + int(gqa.qk_norm)),
    ]
    if deployment.phase != "prefill":
        pairs = {"kv": 1.0 + deployment.drafts}
        read = {"kv": cached, "decode": queries}
        terms.append(roofline.attention("attention", kernels.gqa_decode, pairs, per_pair, {"decode": 1.0}, read))
    if deployment.phase != "decode":
        read = {"context": cached, "chunk": cached + queries}
        terms.append(
            roofline.attention(
                "prefill_attention", kernels.prefill_attention, {"pairs": 1.0}, per_pair, {"chunk": 1.0}, read
            )
        )
    terms += roofline.quantise("output_quantise", "attention", scale(TOKENS, heads * gqa.head_dim), dtype)
    return [*terms, roofline.matmul("o_proj", "attention", TOKENS, hidden, heads * gqa.head_dim, dtype)]
