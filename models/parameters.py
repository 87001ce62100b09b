"""The number of parameters of a model, from its dimensions.

Besides, the patches and prompt tokens of pictures in the vision encoder of a multimodal model.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from models.spec import GQA, MLA, GatedDeltaNet, ModelSpec, VisionTower

Encoding = Literal["fused", "apart", "alone"]
"""Of an instance: it encodes pictures within its steps with prompts, leaves that to encode instances, or is one."""


class ParameterCount(NamedTuple):
    """Parameters (elements, not bytes) of a model and of its parts.

    ``total`` and ``active`` are of the main model: norms, biases and draft layers are left out, as
    model cards do. ``active`` is what one token is multiplied with: the LM head counts, the input
    embedding (a look-up) does not. Each is one ``table``; tied, they are the same one, once in ``total``.
    """

    total: int
    active: int
    table: int
    routed_expert: int
    mtp_layer: int


def count_parameters(spec: ModelSpec) -> ParameterCount:
    """Return the parameters of ``spec``, whole numbers.

    total = tables + layers·attention + dense_layers·dense + moe_layers·(gate + shared + E·expert) and
    active = head + the same with k (experts per token) for E (experts). Source: DeepSeek-V3
    (arXiv 2412.19437) section 2.1 for the layers; README_WEIGHTS.md of
    huggingface.co/deepseek-ai/DeepSeek-V3-Base for what is counted.
    """
    hidden, moe = spec.hidden_size, spec.moe
    table = spec.vocab_size * hidden
    tables = (1 if spec.tied_embeddings else 2) * table + spec.vocab_size * spec.beside_vocabulary
    attention = attention_parameters(spec.attention, hidden)
    linear = linear_attention_parameters(spec.linear_attention, hidden) if spec.linear_attention else 0
    dense = feed_forward_parameters(hidden, spec.dense_intermediate_size or 0)
    expert = feed_forward_parameters(hidden, moe.intermediate_size if moe else 0)
    shared = feed_forward_parameters(hidden, moe.shared_intermediate_size if moe else 0)
    gate = hidden * moe.experts if moe else 0
    without_indexer = spec.layers - round(spec.index_share * spec.layers) if spec.index_share else 0
    mixers = spec.kv_layers * attention + (spec.layers - spec.kv_layers) * linear
    mixers -= without_indexer * indexer_parameters(spec.attention, hidden)
    mixers += compressor_parameters(spec)
    every_token = mixers + spec.dense_layers * dense + spec.moe_layers * (gate + shared)
    experts, experts_per_token = (moe.experts, moe.experts_per_token) if moe else (0, 0)
    ffn_of_last_layer = gate + shared + experts * expert if moe else dense
    return ParameterCount(
        total=tables + every_token + spec.moe_layers * experts * expert,
        active=table + every_token + spec.moe_layers * experts_per_token * expert,
        table=table,
        routed_expert=expert,
        mtp_layer=attention + ffn_of_last_layer + 2 * hidden * hidden if spec.mtp_layers else 0,
    )


def attention_parameters(attention: MLA | GQA, hidden_size: int) -> int:
    """Return the parameters of one layer's attention projections.

    MLA: q_a h·r_q, q_b r_q·n·(d_nope + d_rope) (one matrix h·n·(d_nope + d_rope) where queries are not
    compressed), kv_a h·(r_kv + d_rope), kv_b r_kv·n·(d_nope + d_v), o n·d_v·h; DeepSeek-V2
    (arXiv 2405.04434) section 2.1 and appendix C. An indexer adds r_q·n_i·d_i, h·d_i and h·n_i (DeepSeek-V3.2
    report, section 2.1); blocks as keys have one key projection and an output of two matrices. GQA: q h·n·d, o h·n·d_v,
    k and v h·n_kv·d and h·n_kv·d_v; an output gate as much as q;
    Ainslie et al. (arXiv 2305.13245) section 2.2.
    """
    if isinstance(attention, GQA):
        cached = attention.kv_heads * (attention.head_dim + attention.value_dim)
        value = attention.heads * attention.value_dim
        gate = value if attention.output_gate else 0
        return hidden_size * (attention.heads * attention.head_dim + gate + cached + value)
    if (blocks := attention.compression) is not None:
        rank, key = attention.q_lora_rank or 0, attention.kv_elements_per_token
        output = blocks.output_rank * (attention.heads * attention.v_head_dim + blocks.output_groups * hidden_size)
        query = rank * (hidden_size + attention.heads * key)
        return query + hidden_size * key + output + indexer_parameters(attention, hidden_size)
    query_width = attention.heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim)
    if attention.q_lora_rank is None:
        query = hidden_size * query_width
    else:
        query = attention.q_lora_rank * (hidden_size + query_width)
    down = hidden_size * (attention.kv_lora_rank + attention.qk_rope_head_dim)
    up = attention.kv_lora_rank * attention.heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    index = indexer_parameters(attention, hidden_size)
    return query + down + up + attention.heads * attention.v_head_dim * hidden_size + index


def indexer_parameters(attention: MLA | GQA, hidden_size: int) -> int:
    """Return the parameters of the indexer of one layer that has one, 0 without sparse attention."""
    if isinstance(attention, GQA) or attention.indexer is None:
        return 0
    heads, key = attention.indexer.heads, attention.indexer.head_dim
    made = 4 * key if attention.compression else key  # a compressor of its own: keys and gates, overlapping blocks
    return (attention.q_lora_rank or hidden_size) * heads * key + hidden_size * (made + heads)


def compressor_parameters(spec: ModelSpec) -> int:
    """Return what makes keys of blocks in all layers: keys and gates, h·2·d each, twice where blocks overlap."""
    attention = spec.attention
    if isinstance(attention, GQA) or attention.compression is None or attention.indexer is None:
        return 0
    fine, coarse = attention.indexer.layers or 0, attention.compression.coarse_layers
    return spec.hidden_size * attention.kv_elements_per_token * (4 * fine + 2 * coarse)


def linear_attention_parameters(linear: GatedDeltaNet, hidden_size: int) -> int:
    """Return the parameters of one gated delta-net layer: projections and convolution.

    q, k, v and the output gate, two numbers per value head, the output: h·(2·k + 3·v + 2·n_v), and the taps of the
    convolution over 2·k + v channels; Yang et al. (arXiv 2412.06464) section 3.4 as Qwen3-Next builds it.
    """
    projected = 2 * linear.key_width + 3 * linear.value_width + 2 * linear.value_heads
    return hidden_size * projected + linear.conv_kernel * (2 * linear.key_width + linear.value_width)


def feed_forward_parameters(hidden_size: int, intermediate_size: int) -> int:
    """Return 3·h·i, the gate, up and down matrices of SwiGLU (Shazeer, arXiv 2002.05202, section 2)."""
    return 3 * hidden_size * intermediate_size


@dataclass(frozen=True, slots=True)
class Shown:
    """The pictures of one request as they are sent: ``count`` of so many pixels; a video has several ``frames``."""

    count: int
    width: int
    height: int
    frames: int = 1


class Pictures(NamedTuple):
    """The pictures of one request: ``segments`` equal sets of patches that attend to each other."""

    tower: VisionTower
    shown: Shown
    segments: int
    segment_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens that they add to the prompt."""
        return self.segments * self.segment_tokens

    @property
    def patches(self) -> int:
        """Patches that the encoder takes."""
        return self.tokens * self.tower.merge**2

    @property
    def keys_per_patch(self) -> float:
        """Keys that a patch attends to, in the mean over layers: those of its segment, or of its window."""
        own, tower = self.segment_tokens * self.tower.merge**2, self.tower
        if not tower.window_patches:
            return float(own)
        full = tower.full_layers / tower.layers
        return full * own + (1 - full) * min(tower.window_patches, own)


def pictures_of(tower: VisionTower, count: int, width: int, height: int, frames: int = 1) -> Pictures:
    """Return what ``count`` pictures of so many pixels, or videos of ``frames`` such frames, become.

    Native: both sides rounded to whole tokens, the picture shrunk where it has more than ``most`` tokens (as the
    processors of Qwen2.5-VL, Qwen3-VL and MoonViT do it). Tiles: as many as cover the picture, up to ``most``, and one
    of the whole where there are several (Llama 4). Raises ValueError for a side that is shorter than a token.
    """
    shown, units = Shown(count, width, height, frames), count * math.ceil(frames / tower.frames_per_patch)
    if tower.image_size is not None:
        tokens = (tower.image_size // tower.token_pixels) ** 2
        if tower.resolution == "tiles":
            tiles = min(math.ceil(width / tower.image_size) * math.ceil(height / tower.image_size), tower.most or 1)
            units *= tiles + (tiles > 1)
        return Pictures(tower=tower, shown=shown, segments=units, segment_tokens=tokens)
    shrink = min(1.0, math.sqrt((tower.most or math.inf) * tower.token_pixels**2 / (width * height)))
    sides = [round(side * shrink / tower.token_pixels) for side in (width, height)]
    if min(sides) < 1:
        raise ValueError(
            f"a picture of {width}x{height} pixels is smaller than a token of {tower.token_pixels} pixels a side; "
            "use a larger one"
        )
    return Pictures(tower=tower, shown=shown, segments=units, segment_tokens=sides[0] * sides[1])


class Seen(NamedTuple):
    """Pictures of every request, spread over the tokens of its prompt of ``prompt_tokens``, theirs included."""

    pictures: Pictures
    prompt_tokens: float
    encoding: Encoding = "fused"

    @property
    def patches_per_token(self) -> float:
        """Patches that the encoder takes for a token of the prompt."""
        return self.pictures.patches / self.prompt_tokens
