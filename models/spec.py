"""What a model is, as far as its cost goes: dimensions, never weights."""

from typing import Literal

from pydantic import Field

from podplan.sourced import Sourced, Strict


class MLA(Strict):
    """Multi-head latent attention (DeepSeek-V2 section 2.1)."""

    kind: Literal["mla"] = "mla"
    heads: int = Field(gt=0)
    q_lora_rank: int | None = Field(default=None, description="None: queries are not compressed")
    kv_lora_rank: int = Field(gt=0)
    qk_nope_head_dim: int = Field(gt=0)
    qk_rope_head_dim: int = Field(gt=0)
    v_head_dim: int = Field(gt=0)

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements per token and layer: one latent and one rotary key, whatever the heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class GQA(Strict):
    """Grouped-query attention; multi-head and multi-query are its ends."""

    kind: Literal["gqa"] = "gqa"
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    qk_norm: bool = False
    bias: bool = Field(default=False, description="q, k and v projections have a bias")

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements per token and layer."""
        return 2 * self.kv_heads * self.head_dim


class MoE(Strict):
    """Routed and shared experts of one layer."""

    experts: int = Field(gt=0, description="routed experts per layer")
    experts_per_token: int = Field(gt=0)
    intermediate_size: int = Field(gt=0, description="width of one routed expert")
    shared_experts: int = Field(ge=0, default=0)
    shared_intermediate_size: int = Field(ge=0, default=0, description="width of all shared experts together")
    groups: int = Field(gt=0, default=1)
    groups_per_token: int = Field(gt=0, default=1)


class ModelSpec(Strict):
    """A model of the catalogue or of a Hugging Face ``config.json``."""

    schema_version: Literal[1]
    name: str
    title: str
    aliases: list[str] = []
    architecture: str = Field(description="Hugging Face model_type")
    source: str
    layers: int = Field(gt=0)
    dense_layers: int = Field(ge=0, description="leading layers with a dense feed-forward; all of them without MoE")
    hidden_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    tied_embeddings: bool
    attention: MLA | GQA = Field(discriminator="kind")
    dense_intermediate_size: int | None
    moe: MoE | None
    mtp_layers: int = Field(ge=0, description="draft layers that the checkpoint ships")
    max_position: int = Field(gt=0)
    native_dtype: Literal["bf16", "fp8", "int8"]
    published_parameters: Sourced | None = None
    published_active_parameters: Sourced | None = None

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers
