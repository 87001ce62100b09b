"""The Qwen families."""

from models.huggingface.config import Config
from models.huggingface.parts import (
    LEADING_DENSE,
    Fields,
    dense_model,
    divided_head_dim,
    gqa,
    leading_layers,
    routed_experts,
)


def qwen3_moe(config: Config) -> Fields:
    """Qwen3 with experts in every layer, except leading ones listed in ``mlp_only_layers``."""
    config.require("decoder_sparse_step", (1,), f"must be 1: {LEADING_DENSE}")
    config.require("shared_expert_intermediate_size", (0, None), "must be 0: this model_type has no shared experts")
    dense_layers = leading_layers(config, "mlp_only_layers")
    return {
        "attention": gqa(config, head_dim=config.integer("head_dim"), qk_norm=True),
        "dense_layers": dense_layers,
        "dense_intermediate_size": config.integer("intermediate_size") if dense_layers else None,
        "moe": routed_experts(config),
        "mtp_layers": 0,
    }


def qwen3(config: Config) -> Fields:
    """Qwen3 without experts: normed queries and keys, head size stated apart from the hidden size."""
    return dense_model(config, gqa(config, head_dim=config.integer("head_dim"), qk_norm=True))


def qwen2(config: Config) -> Fields:
    """Qwen2 and Qwen2.5: q, k and v always have a bias, the format has no key for it."""
    return dense_model(config, gqa(config, head_dim=divided_head_dim(config)) | {"bias": True})
