"""Bytes of one layer's attention weights on one device: the mean layer, where layers differ."""

import numpy as np

from hardware.formats import ELEMENT_BYTES
from models.parameters import compressor_parameters
from models.spec import GQA, MLA, GatedDeltaNet
from planner.costs.deployment import Deployment
from planner.manifest.terms import Number


def attention_weight_bytes(deployment: Deployment) -> Number:
    """Bytes of the attention weights of the mean layer on one device."""
    model = deployment.model
    attention, linear = model.attention, model.linear_attention
    full = mla_weight_bytes(deployment, attention) if isinstance(attention, MLA) else gqa_bytes(deployment, attention)
    if linear is None:
        return full
    return (model.kv_layers * full + linear.layers * linear_bytes(deployment, linear)) / model.layers


def mla_weight_bytes(deployment: Deployment, mla: MLA) -> Number:
    """Latent attention: down projections, latents and the indexer are whole on every TP device."""
    tp, element = deployment.strategy.attention_tp, ELEMENT_BYTES[deployment.attention_weights]
    hidden = deployment.model.hidden_size
    if (blocks := mla.compression) is not None and mla.indexer is not None:
        key, rank = mla.kv_elements_per_token, mla.q_lora_rank or 0
        whole = hidden * (key + rank) + deployment.model.index_share * rank * mla.indexer.heads * mla.indexer.head_dim
        split = rank * mla.heads * key + blocks.output_rank * (
            mla.heads * mla.v_head_dim + blocks.output_groups * hidden
        )
        scored = deployment.model.index_share * hidden * (4 * mla.indexer.head_dim + mla.indexer.heads)
        made = compressor_parameters(deployment.model) / deployment.model.layers
        return (whole + split / tp) * element + (made + scored) * 2.0
    query = mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    replicated = hidden * (mla.kv_elements_per_token + (mla.q_lora_rank or 0))
    up = (mla.q_lora_rank or hidden) * query / tp
    output = mla.heads * mla.v_head_dim * hidden / (1 if deployment.strategy.staged else tp)
    latent_up = mla.kv_lora_rank * mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim) / tp
    index = 0.0
    if mla.indexer:
        queries = mla.indexer.heads * mla.indexer.head_dim
        index = (mla.q_lora_rank or hidden) * queries * element
        index += hidden * (mla.indexer.head_dim + mla.indexer.heads) * 2.0
        index *= deployment.model.index_share
    return (replicated + up + output) * element + latent_up * latent_element_bytes(deployment, mla) + index


def latent_element_bytes(deployment: Deployment, mla: MLA) -> float:
    """Bytes of an element of W_kv_b.

    It stays in BF16 under INT8 (xDeepServe section 4.7). Absorbed decode keeps it as two BF16 factors, and so does
    sparse attention in every phase; an instance that runs both phases of an FP8 model with dense attention keeps the
    factors beside the FP8 matrix.
    """
    weights = deployment.attention_weights
    if weights == "int8" or deployment.phase == "decode" or mla.indexer:
        return 2.0
    element = ELEMENT_BYTES[weights]
    if deployment.phase == "prefill":
        return element
    return 2.0 + element if weights == "fp8" else 2.0


def gqa_bytes(deployment: Deployment, gqa: GQA) -> Number:
    """Grouped-query attention: KV heads are repeated beyond their number."""
    tp = deployment.strategy.attention_tp
    queries = gqa.heads / tp * (gqa.head_dim + (gqa.value_dim if gqa.output_gate else 0))
    cached = np.maximum(gqa.kv_heads / tp, 1.0) * (gqa.head_dim + gqa.value_dim)
    width: Number = queries + cached + gqa.heads / tp * gqa.value_dim
    return deployment.model.hidden_size * width * ELEMENT_BYTES[deployment.attention_weights]


def linear_bytes(deployment: Deployment, linear: GatedDeltaNet) -> Number:
    """Gated delta-net: input projections to q, k, v, gate and two numbers per head; output; convolution. Over TP."""
    columns = 2 * linear.key_width + 2 * linear.value_width + 2 * linear.value_heads
    products = (
        deployment.model.hidden_size * (columns + linear.value_width) * ELEMENT_BYTES[deployment.attention_weights]
    )
    convolution = (2 * linear.key_width + linear.value_width) * linear.conv_kernel * 2.0
    return (products + convolution) / deployment.strategy.attention_tp
