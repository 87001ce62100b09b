"""The unsharded model: whole sequences at once, no cache, no absorption, every expert in one place.

It shares weights, gate and arithmetic with the ranks, and nothing of how they cut, cache, move or batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ground.arrays import Floats, Ints
from models.spec import MLA
from runtime.execute.kernels import Routes, linear, rms_norm, rotate, route, silu, softmax
from runtime.execute.small import Weights


@dataclass(frozen=True, slots=True)
class Forward:
    """What the model says of one sequence of L tokens.

    ``logits`` [L, V]: row i is about token i + 1. ``drafts`` [L - 1, V]: row i, from the state of token i and token
    i + 1, is about token i + 2; None without MTP. ``gate_margin`` [L] is the closest choice of experts on the way.
    """

    logits: Floats
    drafts: Floats | None
    gate_margin: Floats


def forward(weights: Weights, sequences: Sequence[Sequence[int]]) -> list[Forward]:
    """Run ``sequences`` through the whole model."""
    small = weights.small
    lengths = [len(sequence) for sequence in sequences]
    tokens = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
    positions = np.concatenate([np.arange(length) for length in lengths])
    margin = np.full(len(tokens), np.inf)
    x = weights.whole("model.embed_tokens.weight")[tokens]
    for layer in small.layers:
        x = _layer(weights, layer, x, positions, lengths, margin)
    logits = rms_norm(x, weights.whole("model.norm.weight")) @ weights.whole("lm_head.weight").T
    drafts = None
    if small.draft_layer is not None:
        # Logits of the draft module; the last row of each sequence has no next token and means nothing
        at = f"model.layers.{small.draft_layer}"
        following = weights.whole("model.embed_tokens.weight")[np.roll(tokens, -1)]
        joined = draft_input(weights, at, following, x)
        out = _layer(
            weights, small.draft_layer, joined @ weights.whole(f"{at}.eh_proj.weight").T, positions, lengths, None
        )
        drafts = rms_norm(out, weights.whole(f"{at}.shared_head.norm.weight")) @ weights.whole("lm_head.weight").T
    ends = np.cumsum([0, *lengths])
    return [Forward(logits[a:b], None if drafts is None else drafts[a : b - 1], margin[a:b]) for a, b in pairwise(ends)]


def draft_input(weights: Weights, at: str, embedded: Floats, state: Floats) -> Floats:
    """Next token's embedding beside the main model's state, each normed, [T, 2h] (DeepSeek-V3 Eq. (21))."""
    return np.concatenate(
        [rms_norm(embedded, weights.whole(f"{at}.enorm.weight")), rms_norm(state, weights.whole(f"{at}.hnorm.weight"))],
        axis=1,
    )


def _layer(
    weights: Weights, layer: int, x: Floats, positions: Ints, lengths: Sequence[int], margin: Floats | None
) -> Floats:
    at = f"model.layers.{layer}"
    normed = rms_norm(x, weights.whole(f"{at}.input_layernorm.weight"))
    attend = _latent if isinstance(weights.small.spec.attention, MLA) else _grouped
    x = x + attend(weights, f"{at}.self_attn", normed, positions, lengths)
    normed = rms_norm(x, weights.whole(f"{at}.post_attention_layernorm.weight"))
    if weights.small.is_dense(layer):
        return x + swiglu(weights, f"{at}.mlp", normed)
    routes = gate(weights, layer, normed)
    if margin is not None:
        np.minimum(margin, routes.margin, out=margin)
    return x + experts(weights, layer, normed, routes)


def gate(weights: Weights, layer: int, x: Floats) -> Routes:
    """Routes of normed tokens x [T, h]; the gate is on every rank whole, so ranks call this too."""
    at, small = f"model.layers.{layer}.mlp.gate", weights.small
    logits = x @ weights.whole(f"{at}.weight").T
    return route(logits, weights.whole(f"{at}.e_score_correction_bias"), small.moe, small.spec.architecture)


def experts(weights: Weights, layer: int, x: Floats, routes: Routes) -> Floats:
    """Weighted sum of the routed experts, and the shared one, [T, h]."""
    at, moe = f"model.layers.{layer}.mlp", weights.small.moe
    out = swiglu(weights, f"{at}.shared_experts", x) if moe.shared_experts else np.zeros_like(x)
    for expert in np.unique(routes.experts):
        tokens, choice = np.nonzero(routes.experts == expert)
        share = routes.weights[tokens, choice][:, None]
        out[tokens] += share * swiglu(weights, f"{at}.experts.{expert}", x[tokens])
    return out


def swiglu(weights: Weights, at: str, x: Floats) -> Floats:
    """Down · (silu(gate · x) · (up · x)) with whole matrices (arXiv 2002.05202)."""
    int8 = weights.int8
    hidden = silu(linear(x, weights.whole(f"{at}.gate_proj.weight"), int8))
    hidden = hidden * linear(x, weights.whole(f"{at}.up_proj.weight"), int8)
    return linear(hidden, weights.whole(f"{at}.down_proj.weight"), int8)


def _segments(lengths: Sequence[int]) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(np.cumsum([0, *lengths]))]


def _attend(q: Floats, k: Floats, v: Floats) -> Floats:
    """Causal softmax attention of one sequence and one head: [L, d] -> [L, dv]."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    return softmax(np.where(np.tri(len(q), dtype=bool), scores, -np.inf)) @ v


def _latent(weights: Weights, at: str, x: Floats, positions: Ints, lengths: Sequence[int]) -> Floats:
    """MLA head by head, as DeepSeek-V2 section 2.1 writes it."""
    mla = weights.small.spec.attention
    assert isinstance(mla, MLA), "asked for the latents of a model without"
    int8, nope = weights.int8, mla.qk_nope_head_dim
    query, name = x, "q_proj"
    if mla.q_lora_rank is not None:
        query = linear(x, weights.whole(f"{at}.q_a_proj.weight"), int8)
        query, name = rms_norm(query, weights.whole(f"{at}.q_a_layernorm.weight")), "q_b_proj"
    q = linear(query, weights.whole(f"{at}.{name}.weight"), int8).reshape(len(x), mla.heads, -1)
    compressed = linear(x, weights.whole(f"{at}.kv_a_proj_with_mqa.weight"), int8)
    latent = rms_norm(compressed[:, : mla.kv_lora_rank], weights.whole(f"{at}.kv_a_layernorm.weight"))
    key = rotate(compressed[:, mla.kv_lora_rank :], positions)
    kv = (latent @ weights.whole(f"{at}.kv_b_proj.weight").T).reshape(len(x), mla.heads, -1)
    out = np.zeros((len(x), mla.heads, mla.v_head_dim))
    for head in range(mla.heads):
        heads_q = np.concatenate([q[:, head, :nope], rotate(q[:, head, nope:], positions)], axis=1)
        heads_k = np.concatenate([kv[:, head, :nope], key], axis=1)
        for own in _segments(lengths):
            out[own, head] = _attend(heads_q[own], heads_k[own], kv[own, head, nope:])
    return linear(out.reshape(len(x), -1), weights.whole(f"{at}.o_proj.weight"), int8)


def _grouped(weights: Weights, at: str, x: Floats, positions: Ints, lengths: Sequence[int]) -> Floats:
    """GQA head by head."""
    gqa = weights.small.spec.attention
    assert not isinstance(gqa, MLA), "asked for the KV heads of a latent cache"
    int8, parts = weights.int8, {}
    for name, heads in (("q", gqa.heads), ("k", gqa.kv_heads), ("v", gqa.kv_heads)):
        out = linear(x, weights.whole(f"{at}.{name}_proj.weight"), int8)
        if gqa.bias:
            out = out + weights.whole(f"{at}.{name}_proj.bias")
        out = out.reshape(len(x), heads, gqa.head_dim)
        if gqa.qk_norm and name != "v":
            out = rms_norm(out, weights.whole(f"{at}.{name}_norm.weight"))
        parts[name] = out if name == "v" else rotate(out, positions[:, None])
    out = np.zeros_like(parts["q"])
    for head in range(gqa.heads):
        read = head * gqa.kv_heads // gqa.heads
        for own in _segments(lengths):
            out[own, head] = _attend(parts["q"][own, head], parts["k"][own, read], parts["v"][own, read])
    return linear(out.reshape(len(x), -1), weights.whole(f"{at}.o_proj.weight"), int8)
