"""The Qwen families: dense, with experts, and hybrids with linear attention."""

from models.huggingface.config import Config
from models.huggingface.parts import (
    LEADING_DENSE,
    Fields,
    dense_model,
    divided_head_dim,
    gqa,
    leading_dense,
    leading_layers,
    moe_everywhere,
    routed_experts,
    shared_experts,
)
from models.spec import MOST_LAYERS


def qwen3_moe(config: Config) -> Fields:
    """Qwen3 with experts in every layer, except leading ones listed in ``mlp_only_layers``."""
    config.require("decoder_sparse_step", (1,), f"must be 1: {LEADING_DENSE}")
    config.require("shared_expert_intermediate_size", (0, None), "must be 0: this model_type has no shared experts")
    attention = gqa(config, head_dim=config.integer("head_dim"), qk_norm=True)
    return leading_dense(config, attention, routed_experts(config), leading_layers(config))


def qwen3(config: Config) -> Fields:
    """Qwen3 without experts: normed queries and keys, head size stated apart from the hidden size."""
    return dense_model(config, gqa(config, head_dim=config.integer("head_dim"), qk_norm=True))


def qwen2(config: Config) -> Fields:
    """Qwen2 and Qwen2.5: q, k and v always have a bias, the format has no key for it."""
    return dense_model(config, gqa(config, head_dim=divided_head_dim(config)) | {"bias": True})


def qwen3_next(config: Config) -> Fields:
    """Qwen3-Next: three of four layers are gated delta-nets, the others have gated attention; one shared expert.

    The configuration does not state a draft layer, so none is carried.
    """
    return hybrid(config) | {"mtp_layers": 0}


def qwen3_5_moe(config: Config) -> Fields:
    """Qwen3.5: as Qwen3-Next, with its draft layers stated."""
    drafts = config.integer("mtp_num_hidden_layers", least=0, most=MOST_LAYERS)
    return hybrid(config) | {"mtp_layers": drafts}


def hybrid(config: Config) -> Fields:
    """Gated attention in every ``full_attention_interval``-th layer, gated delta-nets in the others."""
    config.require("decoder_sparse_step", (1,), f"must be 1: {LEADING_DENSE}")
    config.require("mlp_only_layers", ([], None), "must be empty: this adapter carries experts in every layer")
    gated = config.flag("attn_output_gate", True)  # Qwen3-Next's class has no key for it: always
    attention = gqa(config, head_dim=config.integer("head_dim"), qk_norm=True) | {"output_gate": gated}
    shared = config.integer("shared_expert_intermediate_size", least=0)
    experts = routed_experts(config) | shared_experts(int(shared > 0), shared)
    return moe_everywhere(config, attention, experts) | {"linear_attention": delta_net(config)}


def delta_net(config: Config) -> Fields:
    """The layers without a KV cache; their state is FP32 unless the configuration says otherwise."""
    layers, interval = config.integer("num_hidden_layers", most=MOST_LAYERS), config.integer("full_attention_interval")
    if layers % interval:
        config.refuse("full_attention_interval", f"must divide the {layers} layers")
    state = config.get("mamba_ssm_dtype", "float32")
    if state not in ("float32", "bfloat16"):
        config.refuse("mamba_ssm_dtype", "must be float32 or bfloat16")
    return {
        "layers": layers - layers // interval,
        "key_heads": config.integer("linear_num_key_heads"),
        "value_heads": config.integer("linear_num_value_heads"),
        "key_head_dim": config.integer("linear_key_head_dim"),
        "value_head_dim": config.integer("linear_value_head_dim"),
        "conv_kernel": config.integer("linear_conv_kernel_dim"),
        "state_element_bytes": 4 if state == "float32" else 2,
    }
