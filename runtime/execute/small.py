"""The manifest's model with small widths and a few of its layers, its experts and structure whole, and its tensors."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ground.arrays import Floats
from models.spec import GQA, MLA, ModelSpec, MoE
from planner.manifest.schema import Pool
from runtime.execute.kernels import rounded

HIDDEN, VOCABULARY, DENSE_WIDTH, EXPERT_WIDTH, HEADS = 64, 128, 32, 8, 4
INT8_PARTS = (
    *("q_a_proj", "q_b_proj", "q_proj", "k_proj", "v_proj", "kv_a_proj_with_mqa", "o_proj"),
    *("gate_proj", "up_proj", "down_proj"),
)
"""Matrices that INT8 deployments quantise; W_kv_b, gate and tables stay as they are (xDeepServe section 4.7)."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """A model of the same structure: ``spec`` with small widths, ``layers`` the checkpoint numbers of those kept.

    Experts, groups, experts per token and the number of KV heads are the model's own. ``draft_layer`` is the number
    of the MTP layer, None where the model has none.
    """

    source: ModelSpec
    spec: ModelSpec
    layers: tuple[int, ...]
    draft_layer: int | None

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has a dense feed-forward."""
        if self.source.interleaved:
            return layer < self.source.layers and layer not in self.source.moe_layer_numbers
        return layer < self.source.dense_layers

    @property
    def left_out(self) -> list[str]:
        """What of the model's structure the small one does not have: its layers attend to all keys of a prompt."""
        source, attention = self.source, self.source.attention
        parts = [f"{source.kv_layers} of {source.layers} layers attend, the others are recurrent"]
        found = parts if source.linear_attention else []
        if source.reach_tokens:
            found.append(f"some layers reach {source.reach_tokens} tokens only, more than a prompt here has")
        if isinstance(attention, MLA) and attention.compression:
            found.append("keys of blocks and hyper-connections: plain latent attention stands in")
        if isinstance(attention, GQA) and (attention.sinks or attention.sink_tokens or attention.output_gate):
            found.append("sinks and the gate of attention's output")
        return found

    @property
    def moe(self) -> MoE:
        """The experts of a MoE model."""
        assert self.spec.moe is not None, "asked for the experts of a dense model"
        return self.spec.moe


def shrink(model: ModelSpec, pools: Sequence[Pool]) -> SmallModel:
    """Return ``model`` as small as the degrees of ``pools`` allow.

    Heads, widths and vocabulary are multiples of every degree that cuts them; at least one dense and two MoE layers
    are kept where the model has them, and at least one layer of every pipeline stage.
    """
    tp = math.lcm(*(pool.degrees.attention_tp for pool in pools))
    moe_tp = math.lcm(*(pool.degrees.moe_tp for pool in pools))
    small = replace(
        model,
        hidden_size=_at_least(HIDDEN, 2 * moe_tp),
        vocab_size=_at_least(VOCABULARY, tp),
        attention=_attention(model.attention, tp),
        dense_intermediate_size=_at_least(DENSE_WIDTH, tp) if model.dense_layers else None,
        moe=_experts(model.moe, moe_tp),
    )
    # Numbers of the layers to run: both kinds, both ends, and something of every pipeline stage
    kept = {0, model.layers - 1, next(iter(model.moe_layer_numbers), model.layers - 1)}
    if model.moe is None:
        kept.add(model.layers // 2)
    for pool in pools:
        for first, end in stage_bounds(pool):
            if not any(first <= layer < end for layer in kept):
                kept.add(first)
    return SmallModel(
        source=model, spec=small, layers=tuple(sorted(kept)), draft_layer=model.layers if model.mtp_layers else None
    )


def _at_least(least: int, multiple: int) -> int:
    """Return the smallest multiple that reaches ``least``."""
    return -(-least // multiple) * multiple


def _attention(attention: MLA | GQA, tp: int) -> MLA | GQA:
    if isinstance(attention, GQA):
        heads = _at_least(max(HEADS, attention.kv_heads), math.lcm(tp, attention.kv_heads))
        return replace(attention, heads=heads, head_dim=8)
    return MLA(
        heads=_at_least(HEADS, tp),
        q_lora_rank=None if attention.q_lora_rank is None else 24,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
    )


def _experts(moe: MoE | None, moe_tp: int) -> MoE | None:
    if moe is None:
        return None
    width = _at_least(EXPERT_WIDTH, moe_tp)
    return replace(moe, intermediate_size=width, shared_intermediate_size=width * bool(moe.shared_experts))


def stage_bounds(pool: Pool) -> list[tuple[int, int]]:
    """Return (first, end) of the layers of every pipeline stage."""
    bounds, first = [], 0
    for count in pool.layers_per_stage:
        bounds.append((first, first + count))
        first += count
    return bounds


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
        self._made: dict[str, Floats] = {}

    def whole(self, name: str) -> Floats:
        """Return a tensor; read-only, for it is shared."""
        made = self._made.get(name)
        if made is None:
            made = self._make(self._stored_as(name), self.shapes[name])
            if self.int8 and name.split(".")[-2] in INT8_PARTS and name.endswith(".weight"):
                made = rounded(made)
            made.flags.writeable = False
            self._made[name] = made
        return made

    def _stored_as(self, name: str) -> str:
        """Return the name that the seed is made of: the draft module shares both tables, tied tables are one."""
        if name.endswith(".shared_head.head.weight"):
            name = "lm_head.weight"
        if name.endswith("embed_tokens.weight") or (name == "lm_head.weight" and self.small.spec.tied_embeddings):
            return "model.embed_tokens.weight"
        return name

    def _make(self, name: str, shape: Shape) -> Floats:
        """Draw a tensor: matrices keep the size of what they multiply, norms are near one.

        The draft projection passes the next token's embedding on beside noise, so that about every third draft is
        accepted: both ends of verification run.
        """
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
        drawn: Floats = np.random.default_rng(int.from_bytes(digest, "big")).standard_normal(shape)
        if len(shape) == 1:
            return 1.0 + 0.1 * drawn if "norm" in name else 0.05 * drawn
        if name.endswith("embed_tokens.weight"):
            return drawn
        made: Floats = drawn / math.sqrt(shape[1])
        if name.endswith("eh_proj.weight"):
            made = 0.3 * made
            made[:, : shape[0]] += np.eye(shape[0])
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            made = 0.5 * made
        return made
