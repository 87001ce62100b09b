"""Weights from a seed per tensor, under the checkpoint's names, so that any rank makes its part alone."""

import hashlib
import math
from collections.abc import Iterator

import numpy as np

from models.spec import GQA, MLA
from runtime.execute.kernels import Array, rounded
from runtime.execute.small import SmallModel

INT8_PARTS = (
    *("q_a_proj", "q_b_proj", "q_proj", "k_proj", "v_proj", "kv_a_proj_with_mqa", "o_proj"),
    *("gate_proj", "up_proj", "down_proj"),
)
"""Matrices that INT8 deployments quantise; W_kv_b, gate and tables stay as they are (xDeepServe section 4.7)."""

Shape = tuple[int, ...]


def tensor_shapes(small: SmallModel) -> dict[str, Shape]:
    """Return every tensor of the model with its shape; matrices are [output features, input features]."""
    spec = small.spec
    hidden, vocabulary = spec.hidden_size, spec.vocab_size
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for layer in small.layers:
        shapes |= dict(_layer(small, layer))
    if small.draft_layer is not None:
        shapes |= dict(_layer(small, small.draft_layer)) | dict(_draft(small, small.draft_layer))
    return shapes


def _layer(small: SmallModel, layer: int) -> Iterator[tuple[str, Shape]]:
    at, hidden = f"model.layers.{layer}", small.spec.hidden_size
    yield f"{at}.input_layernorm.weight", (hidden,)
    yield f"{at}.post_attention_layernorm.weight", (hidden,)
    attention = small.spec.attention
    parts = _mla(attention, hidden) if isinstance(attention, MLA) else _gqa(attention, hidden)
    for name, shape in parts:
        yield f"{at}.self_attn.{name}", shape
    if small.is_dense(layer):
        yield from _feed_forward(f"{at}.mlp", hidden, small.spec.dense_intermediate_size or 0)
        return
    moe = small.moe
    yield f"{at}.mlp.gate.weight", (moe.experts, hidden)
    yield f"{at}.mlp.gate.e_score_correction_bias", (moe.experts,)
    if moe.shared_experts:
        yield from _feed_forward(f"{at}.mlp.shared_experts", hidden, moe.shared_intermediate_size)
    for expert in range(moe.experts):
        yield from _feed_forward(f"{at}.mlp.experts.{expert}", hidden, moe.intermediate_size)


def _feed_forward(at: str, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{at}.gate_proj.weight", (width, hidden)
    yield f"{at}.up_proj.weight", (width, hidden)
    yield f"{at}.down_proj.weight", (hidden, width)


def _mla(mla: MLA, hidden: int) -> Iterator[tuple[str, Shape]]:
    query = mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if mla.q_lora_rank is None:
        yield "q_proj.weight", (query, hidden)
    else:
        yield "q_a_proj.weight", (mla.q_lora_rank, hidden)
        yield "q_a_layernorm.weight", (mla.q_lora_rank,)
        yield "q_b_proj.weight", (query, mla.q_lora_rank)
    yield "kv_a_proj_with_mqa.weight", (mla.kv_lora_rank + mla.qk_rope_head_dim, hidden)
    yield "kv_a_layernorm.weight", (mla.kv_lora_rank,)
    yield "kv_b_proj.weight", (mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
    yield "o_proj.weight", (hidden, mla.heads * mla.v_head_dim)


def _gqa(gqa: GQA, hidden: int) -> Iterator[tuple[str, Shape]]:
    for name, heads in (("q", gqa.heads), ("k", gqa.kv_heads), ("v", gqa.kv_heads)):
        yield f"{name}_proj.weight", (heads * gqa.head_dim, hidden)
        if gqa.bias:
            yield f"{name}_proj.bias", (heads * gqa.head_dim,)
    if gqa.qk_norm:
        yield "q_norm.weight", (gqa.head_dim,)
        yield "k_norm.weight", (gqa.head_dim,)
    yield "o_proj.weight", (hidden, gqa.heads * gqa.head_dim)


def _draft(small: SmallModel, layer: int) -> Iterator[tuple[str, Shape]]:
    """The MTP module around its layer (DeepSeek-V3 section 2.2): two norms, a projection, the shared tables."""
    at, hidden, vocabulary = f"model.layers.{layer}", small.spec.hidden_size, small.spec.vocab_size
    yield f"{at}.enorm.weight", (hidden,)
    yield f"{at}.hnorm.weight", (hidden,)
    yield f"{at}.eh_proj.weight", (hidden, 2 * hidden)
    yield f"{at}.embed_tokens.weight", (vocabulary, hidden)
    yield f"{at}.shared_head.norm.weight", (hidden,)
    yield f"{at}.shared_head.head.weight", (vocabulary, hidden)


class Weights:
    """The tensors of a small model, made when they are asked for and kept: ranks of one process share them."""

    def __init__(self, small: SmallModel, seed: int = 0, int8: bool = False) -> None:
        """``int8`` rounds the matrices of ``INT8_PARTS`` to INT8 with a scale per output channel."""
        self.small, self.seed, self.int8 = small, seed, int8
        self.shapes = tensor_shapes(small)
        self._made: dict[str, Array] = {}

    def whole(self, name: str) -> Array:
        """Return a tensor; read-only, for it is shared."""
        made = self._made.get(name)
        if made is None:
            made = self._make(self._stored_as(name), self.shapes[name])
            if self.int8 and name.split(".")[-2] in INT8_PARTS and name.endswith(".weight"):
                made = rounded(made)
            made.flags.writeable = False
            self._made[name] = made
        return made

    def part(self, name: str, axis: int, start: int, stop: int) -> Array:
        """Return ``start`` to ``stop`` of a tensor along an axis."""
        tensor = self.whole(name)
        return tensor[start:stop] if axis == 0 else tensor[:, start:stop]

    def _stored_as(self, name: str) -> str:
        """Return the name that the seed is made of: the draft module shares both tables, tied tables are one."""
        if name.endswith(".shared_head.head.weight"):
            name = "lm_head.weight"
        if name.endswith("embed_tokens.weight") or (name == "lm_head.weight" and self.small.spec.tied_embeddings):
            return "model.embed_tokens.weight"
        return name

    def _make(self, name: str, shape: Shape) -> Array:
        """Draw a tensor: matrices keep the size of what they multiply, norms are near one.

        The draft projection passes the next token's embedding on beside noise, so that about every third draft is
        accepted: both ends of verification run.
        """
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
        drawn: Array = np.random.default_rng(int.from_bytes(digest, "big")).standard_normal(shape)
        if len(shape) == 1:
            return 1.0 + 0.1 * drawn if "norm" in name else 0.05 * drawn
        if name.endswith("embed_tokens.weight"):
            return drawn
        made: Array = drawn / math.sqrt(shape[1])
        if name.endswith("eh_proj.weight"):
            made = 0.3 * made
            made[:, : shape[0]] += np.eye(shape[0])
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            made = 0.5 * made
        return made
