"""Model x strategy x phase -> the table of operators, as terms of a step's load.

Shapes: h hidden, n heads per device, d dimensions of a head, k experts per token. Attention ranks
are DP groups of ``attention_tp`` devices; terms are per device, forms over the variables of
``planner.manifest.terms``. Weights are read once per microbatch ("one"), expert weights only for
experts that are hit ("hit"), KV once per request and iteration ("kv") however many tokens MTP
verifies.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from hardware.spec import CollectiveOp
from models.spec import GQA, MLA
from planner.collectives import collective, exchange_copies, exchange_fit, exchange_protocol, message_bytes
from planner.deployment import Deployment, shared_split
from planner.manifest.terms import CommunicationTerm, ComputeTerm, Form, Number, StepCost, Term
from planner.roofline import ELEMENT_BYTES, Roofline, combine, residual, scale

TOKENS: Form = {"tokens": 1.0}


def build_step_cost(deployment: Deployment) -> StepCost:
    """Return the step cost of an instance; its fields are numbers.

    Source of the operator list: DeepSeek-V3 (arXiv 2412.19437) section 2 and CloudMatrix384
    sections 4.2-4.3 for MLA and the exchange, Hugging Face's modelling code for GQA.
    """
    model, strategy, hardware = deployment.model, deployment.strategy, deployment.hardware
    terms = [*attention_terms(deployment), *dense_terms(deployment)]
    if model.moe is not None:
        terms += [*gate_terms(deployment), *expert_terms(deployment), *exchange_terms(deployment)]
    streams = hardware.streams
    rule = streams.prefill if deployment.phase == "prefill" else streams.decode
    share, dilation = streams.communication_core_share_decode, streams.communication_dilation_decode
    if deployment.phase == "prefill":
        share, dilation = streams.communication_core_share_prefill, streams.communication_dilation_prefill
    host = deployment.host_seconds
    if host is None:
        host = hardware.host.graph_launch_seconds.value if deployment.in_graph else 0.0
    return StepCost(
        terms=tuple(terms),
        head_terms=tuple(head_terms(deployment, "head")),
        draft_terms=tuple(draft_terms(deployment)) if deployment.drafts else (),
        dense_layers=model.dense_layers,
        moe_layers=model.moe_layers,
        queries_per_sequence=1 + deployment.drafts,
        attention_ranks=strategy.attention_dp,
        expert_ranks=deployment.expert_ranks if model.moe else 1,
        shared_ranks=deployment.shared_ranks,
        experts=model.moe.experts if model.moe else 0,
        experts_per_token=model.moe.experts_per_token if model.moe else 0,
        slots_per_rank=deployment.slots_per_rank,
        rule=rule,
        cores=int(streams.partitions.value) if streams.partitions else 0,
        communication_share=share.value,
        communication_dilation=dilation.value if dilation else 1.0,
        pipeline_stages=strategy.pp,
        pipeline_hop=pipeline_hop(deployment) if np.any(np.asarray(strategy.pp) > 1) else None,
        pipeline_bubble=deployment.phase == "prefill",
        host_seconds=host,
        launch_seconds=0.0 if deployment.in_graph else hardware.host.eager_launch_seconds.value,
    )


def pipeline_hop(deployment: Deployment) -> CommunicationTerm:
    """Hidden states of a microbatch from one stage to the next."""
    message = {"tokens": deployment.model.hidden_size * 2.0}
    hardware, devices, graph = deployment.hardware, deployment.strategy.devices, deployment.in_graph
    return collective(hardware, "point_to_point", devices, message, name="pipeline_hop", stage="head", in_graph=graph)


def attention_terms(deployment: Deployment) -> list[Term]:
    """Norm, projections, attention proper, output projection and its all-reduce."""
    attention = deployment.model.attention
    terms = mla_terms(deployment, attention) if isinstance(attention, MLA) else gqa_terms(deployment, attention)
    strategy, hidden = deployment.strategy, deployment.model.hidden_size
    if np.any(np.asarray(strategy.attention_tp) > 1) and not strategy.staged:
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
        roofline.matmul("q_kv_down", "attention", own, down, hidden, dtype),
        roofline.vector("latent_norm_rope", "attention", combine(TOKENS, (down + heads * query) * 4.0, cached, 1.0)),
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
    terms += output_quantise(deployment, heads * mla.v_head_dim)
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


def output_quantise(deployment: Deployment, width: Number) -> list[Term]:
    """DeepGEMM's times exclude the quantisation of activations; CANN's INT8 products include it."""
    if deployment.weights != "fp8":
        return []
    return [Roofline(deployment.hardware).vector("output_quantise", "attention", scale(TOKENS, width * 3.0))]


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
    first = replace(chain[0], floor_seconds=floor.value)
    return [first, *(replace(term, floor_seconds=0.0, launches=0) for term in chain[1:])]


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
    terms += output_quantise(deployment, heads * gqa.head_dim)
    return [*terms, roofline.matmul("o_proj", "attention", TOKENS, hidden, heads * gqa.head_dim, dtype)]


def dense_terms(deployment: Deployment) -> list[Term]:
    """SwiGLU feed-forward of the dense layers, over the attention TP group."""
    model, strategy = deployment.model, deployment.strategy
    if not model.dense_layers or not model.dense_intermediate_size:
        return []
    roofline, hidden, dtype = Roofline(deployment.hardware), float(model.hidden_size), deployment.weights
    split = 1 if strategy.staged else strategy.attention_tp
    rows = scale(TOKENS, 1.0 / strategy.attention_tp) if strategy.staged else TOKENS
    width = model.dense_intermediate_size / split
    terms: list[Term] = [
        roofline.vector("ffn_norm", "dense", scale(rows, hidden * (3 * 2.0 + 1.0))),
        roofline.matmul("dense_gate_up", "dense", rows, 2 * width, hidden, dtype),
        roofline.vector("dense_activation", "dense", scale(rows, width * (2 * 2.0 + 1.0))),
        roofline.matmul("dense_down", "dense", rows, hidden, width, dtype),
    ]
    if np.any(np.asarray(split) > 1):
        message = scale(rows, hidden * 2.0)
        terms.append(
            collective(
                deployment.hardware,
                "all_reduce",
                split,
                message,
                name="dense_all_reduce",
                stage="dense",
                in_graph=deployment.in_graph,
            )
        )
    return terms


def sharded_tokens(deployment: Deployment) -> Form:
    """Tokens whose gate and shared expert one device computes: its share of its DP group's.

    All of them where every device holds all tokens or where experts are split by TP alone.
    """
    strategy = deployment.strategy
    whole = deployment.replicated_tokens or not deployment.expert_parallel
    return {"mean": 1.0 * strategy.attention_dp if whole else 1.0 / strategy.attention_tp}


def gate_terms(deployment: Deployment) -> list[Term]:
    """Norm, router in BF16, top-k; the shared expert where every rank has a copy."""
    roofline, model, moe = Roofline(deployment.hardware), deployment.model, deployment.moe
    hidden, rows = float(model.hidden_size), sharded_tokens(deployment)
    return [
        roofline.vector("moe_norm", "gate", scale(rows, hidden * (3 * 2.0 + 1.0))),
        roofline.matmul("gate", "gate", rows, float(moe.experts), hidden, "bf16"),
        roofline.vector("gate_topk", "gate", scale(rows, moe.experts * 4.0 * 2.0)),
    ]


def expert_terms(deployment: Deployment) -> list[Term]:
    """Routed experts as grouped products over the experts that are hit, and the shared expert."""
    roofline, moe, strategy = Roofline(deployment.hardware), deployment.moe, deployment.strategy
    hidden, dtype = float(deployment.model.hidden_size), deployment.weights
    width = moe.intermediate_size / strategy.moe_tp
    rows, hit = {"routed": 1.0}, {"hit": 1.0}
    terms: list[Term] = [
        roofline.matmul("routed_gate_up", "experts", rows, 2 * width, hidden, dtype, groups=hit),
        roofline.vector("routed_activation", "experts", scale(rows, width * (2 * 2.0 + 1.0))),
        roofline.matmul("routed_down", "experts", rows, hidden, width, dtype, groups=hit),
    ]
    if deployment.phase != "decode":
        # Normal exchange kernels deliver tokens in arrival order; they are gathered by expert before and after.
        terms.append(roofline.vector("routed_permute", "experts", scale(rows, hidden * (2 * 1.0 + 2 * 2.0)), kernels=2))
    if not moe.shared_experts:
        return terms
    shared_rows = {"shared": 1.0} if deployment.dedicated else sharded_tokens(deployment)
    shared_width = moe.shared_intermediate_size / shared_split(deployment)
    # A dedicated rank runs the expert kernel with one group.
    group: Form | None = {"one": 1.0} if deployment.dedicated else None
    return [
        *terms,
        roofline.matmul("shared_gate_up", "shared", shared_rows, 2 * shared_width, hidden, dtype, groups=group),
        roofline.vector("shared_activation", "shared", scale(shared_rows, shared_width * (2 * 2.0 + 1.0))),
        roofline.matmul("shared_down", "shared", shared_rows, hidden, shared_width, dtype, groups=group),
    ]


def exchange_terms(deployment: Deployment) -> list[Term]:
    """Dispatch and combine between EP ranks; collectives inside a MoE TP group (MixServe Eq. (13)).

    Where every device holds all tokens, each picks its experts' rows without an exchange, and one
    all-reduce adds what all of them computed (MixServe section III-B3, d_DP < d_EP at d_DP = 1).
    """
    if deployment.expert_parallel and deployment.replicated_tokens:
        return replicated_exchange(deployment)
    split = bool(np.any(np.asarray(deployment.strategy.moe_tp) > 1))
    if deployment.expert_parallel:
        terms = [exchange_term(deployment, "dispatch"), exchange_term(deployment, "combine")]
        return [*terms, *hybrid_terms(deployment)] if split else terms
    return tensor_parallel_terms(deployment) if split else []


def replicated_exchange(deployment: Deployment) -> list[Term]:
    """A dispatch that moves nothing, and an all-reduce of the expert outputs as combine."""
    message = {"mean": deployment.model.hidden_size * 2.0}
    devices = deployment.strategy.moe_ep * deployment.strategy.moe_tp
    hardware, graph = deployment.hardware, deployment.in_graph
    return [
        CommunicationTerm("dispatch", "dispatch", {"one": 0.0}, ((0.0, 1.0),), launches=0),
        collective(hardware, "all_reduce", devices, message, name="combine", stage="combine", in_graph=graph),
    ]


def exchange_term(deployment: Deployment, direction: Literal["dispatch", "combine"]) -> Term:
    """Transfer of token copies: payload of the busiest rank, as the catalogue's library moves it."""
    strategy, moe = deployment.strategy, deployment.moe
    span = strategy.moe_ep * strategy.moe_tp
    mode = "low_latency" if deployment.phase == "decode" else "normal"
    fit = exchange_fit(deployment.hardware, direction, mode)
    copies = exchange_copies(fit, moe, deployment.nodes_spanned, deployment.dedicated)
    message = message_bytes(fit, deployment.model.hidden_size, deployment.weights)
    per_copy = message * copies / moe.experts_per_token * deployment.expert_ranks / strategy.moe_ep / strategy.moe_tp
    return CommunicationTerm(
        direction, direction, {"routed": per_copy}, (exchange_protocol(fit, span),), residual=residual(fit)
    )


def hybrid_terms(deployment: Deployment) -> list[Term]:
    """MoE TP inside an EP rank: all-gather what arrives, reduce-scatter partial sums before combine."""
    tp, hidden = deployment.strategy.moe_tp, deployment.model.hidden_size
    hardware, graph = deployment.hardware, deployment.in_graph
    arriving, leaving = {"routed": hidden * ELEMENT_BYTES[deployment.weights]}, {"routed": hidden * 2.0}
    return [
        collective(hardware, "all_gather", tp, arriving, name="experts_all_gather", stage="dispatch", in_graph=graph),
        experts_reduce_scatter(deployment, leaving),
    ]


def experts_reduce_scatter(deployment: Deployment, message: Form) -> Term:
    """Sum of the partial outputs of a MoE TP group, each device keeping its share."""
    hardware, tp, graph = deployment.hardware, deployment.strategy.moe_tp, deployment.in_graph
    name = "experts_reduce_scatter"
    return collective(hardware, "reduce_scatter", tp, message, name=name, stage="combine", in_graph=graph)


def tensor_parallel_terms(deployment: Deployment) -> list[Term]:
    """Experts split by TP alone: an all-reduce, or gather and scatter of all DP groups' tokens."""
    strategy, tp = deployment.strategy, deployment.strategy.moe_tp
    message = {"mean": strategy.attention_dp * deployment.model.hidden_size * 2.0}
    hardware, graph = deployment.hardware, deployment.in_graph
    if np.all(np.asarray(strategy.attention_dp) == 1):
        return [
            collective(hardware, "all_reduce", tp, message, name="experts_all_reduce", stage="combine", in_graph=graph)
        ]
    return [
        collective(hardware, "all_gather", tp, message, name="experts_all_gather", stage="dispatch", in_graph=graph),
        experts_reduce_scatter(deployment, message),
    ]


def head_terms(deployment: Deployment, stage: Literal["head", "draft"]) -> list[Term]:
    """Embedding, final norm, LM head (vocabulary split over TP, BF16) and sampling from the gathered logits.

    A draft takes the largest logit, which needs no gathering.
    """
    roofline, model, tp = Roofline(deployment.hardware), deployment.model, deployment.strategy.attention_tp
    hidden, vocabulary = float(model.hidden_size), model.vocab_size / tp
    if stage == "draft":
        rows: Form = {"decode": 1.0 / (1 + deployment.drafts)}
        return [
            roofline.matmul("draft_head", "draft", rows, vocabulary, hidden, "bf16"),
            roofline.vector("draft_sampling", "draft", scale(rows, vocabulary * 4.0 * 3), kernels=3),
        ]
    rows = {"rows": 1.0}
    return [
        roofline.vector("embedding", "head", scale(TOKENS, hidden * 4.0)),
        roofline.vector("final_norm", "head", scale(rows, hidden * 4.0)),
        roofline.matmul("lm_head", "head", rows, vocabulary, hidden, "bf16"),
        *vocabulary_exchanges(deployment),
        roofline.vector("sampling", "head", scale(rows, model.vocab_size * 4.0 * 3), kernels=3),
    ]


def vocabulary_exchanges(deployment: Deployment) -> list[Term]:
    """A vocabulary split over TP sums the embeddings (Megatron-LM section 3) and gathers the logits, as vLLM does."""
    strategy, model = deployment.strategy, deployment.model
    degree, hardware, graph = strategy.attention_tp, deployment.hardware, deployment.in_graph
    if not np.any(np.asarray(degree) > 1):
        return []
    embeddings, logits = scale(TOKENS, model.hidden_size * 2.0), {"rows": model.vocab_size * 2.0}
    summed: CollectiveOp = "reduce_scatter" if strategy.staged else "all_reduce"
    return [
        collective(hardware, summed, degree, embeddings, name="embedding_sum", stage="head", in_graph=graph),
        collective(hardware, "all_gather", degree, logits, name="logits_all_gather", stage="head", in_graph=graph),
    ]


def draft_terms(deployment: Deployment) -> list[Term]:
    """Beyond its layer a draft projects [hidden; embedding] to hidden and runs the head (DeepSeek-V3 section 2.2)."""
    roofline, hidden = Roofline(deployment.hardware), float(deployment.model.hidden_size)
    projection = roofline.matmul("draft_projection", "draft", TOKENS, hidden, 2 * hidden, deployment.weights)
    return [projection, *head_terms(deployment, "draft")]
