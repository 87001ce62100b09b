"""The manifest's model with small widths and a few of its layers, but all its experts and the structure whole."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.spec import GQA, MLA, ModelSpec, MoE
from planner.manifest.schema import Pool

HIDDEN, VOCABULARY, DENSE_WIDTH, EXPERT_WIDTH, HEADS = 64, 128, 32, 8, 4


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
    return SmallModel(
        source=model,
        spec=small,
        layers=kept_layers(model, pools),
        draft_layer=model.layers if model.mtp_layers else None,
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


def kept_layers(model: ModelSpec, pools: Sequence[Pool]) -> tuple[int, ...]:
    """Return the numbers of the layers to run: both kinds, both ends, and something of every pipeline stage."""
    kept = {0, model.layers - 1, next(iter(model.moe_layer_numbers), model.layers - 1)}
    if model.moe is None:
        kept.add(model.layers // 2)
    for pool in pools:
        for first, end in stage_bounds(pool):
            if not any(first <= layer < end for layer in kept):
                kept.add(first)
    return tuple(sorted(kept))


def stage_bounds(pool: Pool) -> list[tuple[int, int]]:
    """Return (first, end) of the layers of every pipeline stage."""
    bounds, first = [], 0
    for count in pool.layers_per_stage:
        bounds.append((first, first + count))
        first += count
    return bounds
