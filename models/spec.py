"""The dimensions of a model that determine its cost; no weights."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ground.records import Limits, Name, Sourced, Stated, described

# Upper limits catch a slipped digit and a number in the wrong field; no model comes near them.
LARGEST_DIMENSION = 100_000_000
MOST_LAYERS = 10_000
MOST_EXPERTS = 100_000

Dimension = Annotated[int, Limits(gt=0, le=LARGEST_DIMENSION, strict=True)]
Width = Annotated[int, Limits(ge=0, le=LARGEST_DIMENSION, strict=True)]
Layers = Annotated[int, Limits(gt=0, le=MOST_LAYERS, strict=True)]
SomeLayers = Annotated[int, Limits(ge=0, le=MOST_LAYERS, strict=True)]  # layers of one kind, of which there may be none
Experts = Annotated[int, Limits(gt=0, le=MOST_EXPERTS, strict=True)]
Few = Annotated[int, Limits(gt=0, le=10_000, strict=True)]  # heads, or pixels along something small


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Stated):
    """Layers that attend to recent tokens only, beside layers that attend to all.

    ``sliding``: the last ``tokens`` tokens. ``chunked``: those since the last multiple of ``tokens``, which is costed
    as the sliding window of that size, an upper bound of at most twice the keys.
    """

    kind: Literal["sliding", "chunked"]
    tokens: Dimension
    layers: Layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer(Stated):
    """DeepSeek sparse attention: a light scorer picks the keys of each query (DeepSeek-V3.2 report, section 2.1)."""

    heads: Dimension
    head_dim: Dimension = described("elements of the index key that is cached per token and layer")
    top_k: Dimension = described("keys that attention proper reads per query")
    layers: Layers | None = described(
        "layers that score keys; the others take the choice of the last that did. None: every layer scores",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression(Stated):
    """Keys that are blocks of tokens (DeepSeek-V4: CSA and HCA), one head of keys that are their own values.

    Every layer sees the last ``window`` tokens. The indexer's layers pick among blocks of ``fine_tokens`` as well (each
    made from two blocks' tokens), ``coarse_layers`` see all blocks of ``coarse_tokens``. Outputs are projected in
    ``output_groups`` of heads to ``output_rank`` elements each, then together.
    """

    window: Dimension
    fine_tokens: Dimension
    coarse_tokens: Dimension
    coarse_layers: SomeLayers
    output_groups: Dimension
    output_rank: Dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet(Stated):
    """Linear attention with a recurrent state (Gated DeltaNet, arXiv 2412.06464), in ``layers`` of the layers."""

    layers: Layers
    key_heads: Dimension
    value_heads: Dimension
    key_head_dim: Dimension
    value_head_dim: Dimension
    conv_kernel: Dimension = described("taps of the short convolution over queries, keys and values")
    state_element_bytes: Literal[2, 4] = described("the recurrent state is kept in FP32 or BF16", default=4)

    @property
    def key_width(self) -> int:
        """Elements of all keys of a token; queries have as many."""
        return self.key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Elements of all values of a token."""
        return self.value_heads * self.value_head_dim

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of one request's recurrent state in one layer: a matrix per value head."""
        return self.value_heads * self.key_head_dim * self.value_head_dim * self.state_element_bytes

    @property
    def convolution_bytes(self) -> int:
        """Bytes of one request's last inputs of the convolution in one layer, BF16."""
        return (self.conv_kernel - 1) * (2 * self.key_width + self.value_width) * 2

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ValueError(f"{self.value_heads} value_heads must be a multiple of {self.key_heads} key_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class MLA(Stated):
    """Multi-head latent attention (DeepSeek-V2 section 2.1), sparse where it has an indexer."""

    kind: Literal["mla"] = "mla"
    heads: Dimension
    q_lora_rank: Dimension | None = described("None: queries are not compressed", default=None)
    kv_lora_rank: Dimension
    qk_nope_head_dim: Dimension
    qk_rope_head_dim: Dimension
    v_head_dim: Dimension
    indexer: Indexer | None = None
    compression: Compression | None = described("keys are blocks of tokens, and no latent is expanded", default=None)

    @property
    def value_width(self) -> int:
        """Elements of a key that serve as its value: the latent, or all of it where keys are blocks."""
        return self.v_head_dim if self.compression else self.kv_lora_rank

    def __post_init__(self) -> None:
        if self.compression and (self.indexer is None or self.indexer.layers is None or self.q_lora_rank is None):
            raise ValueError("compression needs an indexer, its number of layers and a q_lora_rank")
        if self.compression and self.heads % self.compression.output_groups:
            raise ValueError(f"{self.heads} heads must be a multiple of the output_groups")

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of one key: one latent and one rotary key, whatever the heads; cached per token and layer, or block.

        The index keys of sparse attention come on top (``costs.cache``): they have a type of their own.
        """
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class GQA(Stated):
    """Grouped-query attention; multi-head and multi-query are its ends."""

    kind: Literal["gqa"] = "gqa"
    heads: Dimension
    kv_heads: Dimension
    head_dim: Dimension
    qk_norm: bool = False
    bias: bool = described("q, k and v projections have a bias", default=False)
    v_head_dim: Dimension | None = described("None: as wide as queries and keys", default=None)
    output_gate: bool = described("the query projection also makes a gate of the output", default=False)
    sinks: bool = described("a learned logit per head joins the softmax; it costs nothing", default=False)
    sink_tokens: Width = described("keys and values that are parameters, seen by every query", default=0)
    window: Window | None = None

    @property
    def value_dim(self) -> int:
        """Width of one head's values."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements per token and layer."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads must be a multiple of {self.kv_heads} kv_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE(Stated):
    """Routed and shared experts of one layer."""

    experts: Experts = described("routed experts per layer")
    experts_per_token: Experts
    intermediate_size: Dimension = described("width of one routed expert")
    shared_experts: Annotated[int, Limits(ge=0, le=MOST_EXPERTS, strict=True)] = 0
    shared_intermediate_size: Width = described("width of all shared experts together", default=0)
    groups: Experts = 1
    groups_per_token: Experts = 1

    def __post_init__(self) -> None:
        if self.experts % self.groups:
            raise ValueError(f"{self.experts} experts must be a multiple of {self.groups} groups")
        if self.groups_per_token > self.groups:
            raise ValueError(f"a token cannot reach {self.groups_per_token} of {self.groups} groups of experts")
        reachable = self.experts // self.groups * self.groups_per_token
        if self.experts_per_token > reachable:
            raise ValueError(f"a token cannot take {self.experts_per_token} of the {reachable} experts it may reach")
        if (self.shared_experts == 0) != (self.shared_intermediate_size == 0):
            raise ValueError("shared_experts and shared_intermediate_size must both be zero or both be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower(Stated):
    """A vision transformer (ViT) and the projector behind it. Patches attend to each other within a picture.

    ``native``: a picture keeps its size, down to whole tokens. ``fixed``: every picture becomes a square of
    ``image_size`` pixels. ``tiles``: it is cut into such squares, and where there are several a small copy of the
    whole joins them.
    """

    layers: Layers
    hidden_size: Dimension
    heads: Few
    intermediate_size: Dimension
    gated: bool = described("three products in the feed-forward instead of two", default=False)
    patch_size: Few = described("pixels along a patch")
    merge: Few = described("patches along what becomes one token of the prompt")
    frames_per_patch: Few = described("frames of a video that one patch covers", default=1)
    window_patches: Annotated[int, Limits(ge=0, le=100_000, strict=True)] = described(
        "patches of a window, in which all but ``full_layers`` layers attend; 0: every layer sees the picture",
        default=0,
    )
    full_layers: SomeLayers = 0
    resolution: Literal["native", "fixed", "tiles"]
    image_size: Few | None = described("pixels along a fixed picture or a tile", default=None)
    most: Dimension | None = described(
        "tokens of a native picture, or tiles of one, beyond which it is shrunk", default=None
    )

    @property
    def token_pixels(self) -> int:
        """Pixels along what becomes one token."""
        return self.patch_size * self.merge

    @property
    def parameters(self) -> int:
        """Weights of the layers: four projections of attention, and two or three products."""
        products = 3 if self.gated else 2
        return self.layers * (4 * self.hidden_size**2 + products * self.hidden_size * self.intermediate_size)

    def __post_init__(self) -> None:
        if self.hidden_size % self.heads:
            raise ValueError(f"a hidden_size of {self.hidden_size} must be a multiple of {self.heads} heads")
        if (self.resolution == "native") != (self.image_size is None):
            raise ValueError("image_size is that of resolution fixed or tiles; state it there and nowhere else")
        if self.full_layers > self.layers:
            raise ValueError(f"full_layers must be at most the {self.layers} layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Stated):
    """A model of the catalogue or of a Hugging Face ``config.json``."""

    schema_version: Literal[1]
    name: Name
    title: str
    aliases: list[str] = field(default_factory=list)
    architecture: str = described("Hugging Face model_type")
    source: str
    layers: Layers
    dense_layers: SomeLayers = described("leading layers with a dense feed-forward; all of them without MoE")
    interleaved: bool = described("dense layers are spread evenly instead of leading", default=False)
    hidden_size: Dimension
    vocab_size: Dimension
    tied_embeddings: bool
    attention: MLA | GQA = field(metadata={"discriminator": "kind"})
    linear_attention: GatedDeltaNet | None = described(
        "layers with a recurrent state in place of ``attention``, spread evenly", default=None
    )
    dense_intermediate_size: Dimension | None
    moe: MoE | None
    hyper_connections: Annotated[int, Limits(gt=0, le=64, strict=True)] = described(
        "residual streams that are mixed before and after attention and experts (arXiv 2409.19606); 1: a plain one",
        default=1,
    )
    beside_experts: Literal["bf16", "fp8"] = described("other weights where the experts have four bits", default="bf16")
    mtp_layers: SomeLayers = described("draft layers that the checkpoint ships")
    dense_drafts: bool = described("draft layers have a dense feed-forward, whatever the others have", default=False)
    beside_vocabulary: Width = described("elements a token's row of tables of token sequences have in all", default=0)
    vision: VisionTower | None = described("encoder of pictures, whose tokens join the prompt", default=None)
    max_position: Dimension
    native_dtype: Literal["bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
    published_parameters: Sourced | None = None
    published_active_parameters: Sourced | None = None

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers

    @property
    def moe_layer_numbers(self) -> list[int]:
        """Numbers, from 0, of the layers with routed experts; interleaved, one ends each equal stretch of layers."""
        if not self.interleaved:
            return list(range(self.dense_layers, self.layers))
        return [layer for layer in range(self.layers) if (layer + 1) * self.moe_layers % self.layers < self.moe_layers]

    @property
    def kv_layers(self) -> int:
        """Layers with a KV cache."""
        return self.layers - (self.linear_attention.layers if self.linear_attention else 0)

    @property
    def windowed_layers(self) -> int:
        """Layers that keep recent tokens only."""
        window = self.attention.window if isinstance(self.attention, GQA) else None
        return window.layers if window else 0

    def scaled_columns(self, weights: str) -> int:
        """Return the width of an expert whose weights are those that ship in FP8, a scale per block; 0 of others."""
        return self.moe.intermediate_size if self.moe and weights == self.native_dtype == "fp8" else 0

    @property
    def index_share(self) -> float:
        """Share of the layers that score keys with an indexer of their own; 0 without one."""
        indexer = self.attention.indexer if isinstance(self.attention, MLA) else None
        if indexer is None:
            return 0.0
        return 1.0 if indexer.layers is None else indexer.layers / self.layers

    @property
    def keys_per_token(self) -> float:
        """Keys that a layer caches per token, in the mean: less than one where keys are blocks."""
        blocks = self.attention.compression if isinstance(self.attention, MLA) else None
        if blocks is None:
            return 1.0
        return self.index_share / blocks.fine_tokens + blocks.coarse_layers / self.layers / blocks.coarse_tokens

    @property
    def reach_tokens(self) -> int:
        """Most keys that a query of a windowed or sparse layer attends to; 0 where there is no such layer."""
        if isinstance(self.attention, GQA):
            return self.attention.window.tokens if self.attention.window else 0
        blocks = self.attention.compression.fine_tokens if self.attention.compression else 1
        return self.attention.indexer.top_k * blocks if self.attention.indexer else 0

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements of one token over all layers, inside their windows."""
        return round(self.kv_layers * self.keys_per_token * self.attention.kv_elements_per_token)

    def __post_init__(self) -> None:
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers is {self.dense_layers} of only {self.layers} layers")
        if self.moe is None and self.dense_layers != self.layers:
            raise ValueError(f"without moe all {self.layers} layers are dense, so dense_layers must be {self.layers}")
        if self.moe is not None and self.dense_layers == self.layers:
            raise ValueError(f"all {self.layers} layers are dense, so moe must be null")
        if self.kv_layers < 1:
            raise ValueError(f"linear_attention.layers must leave one of the {self.layers} layers to attention")
        if self.windowed_layers > self.kv_layers:
            raise ValueError(f"attention.window.layers must be at most the {self.kv_layers} layers with attention")
        if self.index_share > 1.0:
            raise ValueError(f"attention.indexer.layers must be at most the {self.layers} layers")
        if self.dense_layers and self.dense_intermediate_size is None:
            raise ValueError(f"{self.dense_layers} dense layers need a dense_intermediate_size")
