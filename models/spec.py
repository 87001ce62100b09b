"""What a model is, as far as its cost goes: dimensions, never weights."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from podplan.sourced import Sourced, Strict

# Upper limits catch a slipped digit and a number in the wrong field; no model comes near them.
LARGEST_DIMENSION = 100_000_000
MOST_LAYERS = 10_000
MOST_EXPERTS = 100_000

Dimension = Annotated[int, Field(gt=0, le=LARGEST_DIMENSION, strict=True)]
Width = Annotated[int, Field(ge=0, le=LARGEST_DIMENSION, strict=True)]
Experts = Annotated[int, Field(gt=0, le=MOST_EXPERTS, strict=True)]


class MLA(Strict):
    """Multi-head latent attention (DeepSeek-V2 section 2.1)."""

    kind: Literal["mla"] = "mla"
    heads: Dimension
    q_lora_rank: Dimension | None = Field(default=None, description="None: queries are not compressed")
    kv_lora_rank: Dimension
    qk_nope_head_dim: Dimension
    qk_rope_head_dim: Dimension
    v_head_dim: Dimension

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements per token and layer: one latent and one rotary key, whatever the heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class GQA(Strict):
    """Grouped-query attention; multi-head and multi-query are its ends."""

    kind: Literal["gqa"] = "gqa"
    heads: Dimension
    kv_heads: Dimension
    head_dim: Dimension
    qk_norm: bool = False
    bias: bool = Field(default=False, description="q, k and v projections have a bias")

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements per token and layer."""
        return 2 * self.kv_heads * self.head_dim

    @model_validator(mode="after")
    def _heads_share_kv_heads(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads must be a multiple of {self.kv_heads} kv_heads")
        return self


class MoE(Strict):
    """Routed and shared experts of one layer."""

    experts: Experts = Field(description="routed experts per layer")
    experts_per_token: Experts
    intermediate_size: Dimension = Field(description="width of one routed expert")
    shared_experts: Annotated[int, Field(ge=0, le=MOST_EXPERTS, strict=True)] = 0
    shared_intermediate_size: Width = Field(default=0, description="width of all shared experts together")
    groups: Experts = 1
    groups_per_token: Experts = 1

    @model_validator(mode="after")
    def _routing_can_be(self) -> Self:
        if self.experts % self.groups:
            raise ValueError(f"{self.experts} experts must be a multiple of {self.groups} groups")
        if self.groups_per_token > self.groups:
            raise ValueError(f"a token cannot reach {self.groups_per_token} of {self.groups} groups of experts")
        reachable = self.experts // self.groups * self.groups_per_token
        if self.experts_per_token > reachable:
            raise ValueError(f"a token cannot take {self.experts_per_token} of the {reachable} experts it may reach")
        if (self.shared_experts == 0) != (self.shared_intermediate_size == 0):
            raise ValueError("shared_experts and shared_intermediate_size must both be zero or both be positive")
        return self


class ModelSpec(Strict):
    """A model of the catalogue or of a Hugging Face ``config.json``."""

    schema_version: Literal[1]
    name: str
    title: str
    aliases: list[str] = []
    architecture: str = Field(description="Hugging Face model_type")
    source: str
    layers: Annotated[int, Field(gt=0, le=MOST_LAYERS, strict=True)]
    dense_layers: Annotated[int, Field(ge=0, le=MOST_LAYERS, strict=True)] = Field(
        description="leading layers with a dense feed-forward; all of them without MoE"
    )
    hidden_size: Dimension
    vocab_size: Dimension
    tied_embeddings: bool
    attention: MLA | GQA = Field(discriminator="kind")
    dense_intermediate_size: Dimension | None
    moe: MoE | None
    mtp_layers: Annotated[int, Field(ge=0, le=MOST_LAYERS, strict=True)] = Field(
        description="draft layers that the checkpoint ships"
    )
    max_position: Dimension
    native_dtype: Literal["bf16", "fp8", "int8"]
    published_parameters: Sourced | None = None
    published_active_parameters: Sourced | None = None

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements of one token over all layers."""
        return self.layers * self.attention.kv_elements_per_token

    @model_validator(mode="after")
    def _layers_add_up(self) -> Self:
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers is {self.dense_layers} of only {self.layers} layers")
        if self.moe is None and self.dense_layers != self.layers:
            raise ValueError(f"without moe all {self.layers} layers are dense, so dense_layers must be {self.layers}")
        if self.moe is not None and self.dense_layers == self.layers:
            raise ValueError(f"all {self.layers} layers are dense, so moe must be null")
        if self.dense_layers and self.dense_intermediate_size is None:
            raise ValueError(f"{self.dense_layers} dense layers need a dense_intermediate_size")
        return self
