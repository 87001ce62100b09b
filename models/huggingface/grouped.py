"""Families with grouped-query attention.

Llama, Gemma, gpt-oss, GLM, DBRX, ERNIE, Hunyuan, MiniMax, OLMoE, Pangu, and Qwen with its hybrids of linear attention.
"""

from models.huggingface.config import Config
from models.huggingface.parts import (
    LAYERS,
    LEADING_DENSE,
    Fields,
    deepseek_model,
    dense_model,
    divided_head_dim,
    draft_layers,
    expert_groups,
    gqa,
    leading_dense,
    leading_layers,
    moe_everywhere,
    routed_experts,
    shared_experts,
)
from models.spec import MOST_EXPERTS, MOST_LAYERS

GEMMA3_DEFAULTS: Fields = {  # what Gemma 3's configurations leave to their class
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}


def llama(config: Config) -> Fields:
    """Llama 2 to 3.3; without ``num_key_value_heads`` every head has its own (the class's default)."""
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer_or(heads, "num_key_value_heads")
    return dense_model(config, gqa(config, head_dim=divided_head_dim(config), kv_heads=kv_heads))


def mistral(config: Config) -> Fields:
    """Mistral; an absent window means one of 4096 tokens, so it must be stated."""
    config.find("sliding_window")
    return dense_model(config, gqa(config, head_dim=divided_head_dim(config)))


def mixtral(config: Config) -> Fields:
    """Mixtral: experts in every layer, their width in ``intermediate_size``."""
    attention = gqa(config, head_dim=divided_head_dim(config))
    return moe_everywhere(config, attention, routed_experts(config, width="intermediate_size"))


def glm4_moe(config: Config) -> Fields:
    """GLM-4.5 to 4.7: grouped-query attention before experts laid out as DeepSeek-V3's."""
    attention = gqa(config, head_dim=config.integer("head_dim"), qk_norm=config.flag("use_qk_norm", False))
    return deepseek_model(config, attention, draft_layers(config))


def olmoe(config: Config) -> Fields:
    """OLMoE: experts in every layer, normed queries and keys (its class always norms them)."""
    attention = gqa(config, head_dim=divided_head_dim(config), qk_norm=True)
    return moe_everywhere(config, attention, routed_experts(config, width="intermediate_size"))


def dbrx(config: Config) -> Fields:
    """DBRX: keys in the style of MPT, experts and heads in sections of their own."""
    experts, attention = config.section("ffn_config"), config.section("attn_config")
    heads, hidden = config.integer("n_heads"), config.integer("d_model")
    if hidden % heads:
        config.refuse("d_model", f"does not divide over {heads} n_heads")
    grouped: Fields = {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": attention.integer("kv_n_heads"),
        "head_dim": hidden // heads,
    }
    routed: Fields = {
        "experts": experts.integer("moe_num_experts", most=MOST_EXPERTS),
        "experts_per_token": experts.integer("moe_top_k", most=MOST_EXPERTS),
        "intermediate_size": experts.integer("ffn_hidden_size"),
    }
    return moe_everywhere(config, grouped, routed)


def ernie4_5_moe(config: Config) -> Fields:
    """ERNIE 4.5: dense layers lead up to ``moe_layer_start_index``; shared experts are as wide as routed ones."""
    config.require("moe_layer_interval", (1,), f"must be 1: {LEADING_DENSE}")
    layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
    config.require("moe_layer_end_index", (layers - 1, -1), f"must be {layers - 1}, the last layer: {LEADING_DENSE}")
    dense_layers = config.integer("moe_layer_start_index", least=0, most=layers - 1)
    width = config.integer("moe_intermediate_size")
    shared = config.integer("moe_num_shared_experts", least=0, most=MOST_EXPERTS)
    routed: Fields = {
        "experts": config.integer("moe_num_experts", most=MOST_EXPERTS),
        "experts_per_token": config.integer("moe_k", most=MOST_EXPERTS),
        "intermediate_size": width,
        **shared_experts(shared, width),
    }
    return leading_dense(config, gqa(config, head_dim=divided_head_dim(config)), routed, dense_layers)


def hunyuan(config: Config) -> Fields:
    """Hunyuan MoE: expert widths, choices and shared experts are listed per layer and must be even."""
    for key in ("use_cla", "use_mla"):
        config.require(key, (False, None), "must be false: podplan carries grouped-query attention of this family")
    config.require("moe_layer_num_skipped", (0,), "must be 0: this adapter carries experts in every layer")
    width, shared = config.even("moe_intermediate_size"), config.even("num_shared_expert", least=0)
    routed: Fields = {
        "experts": config.integer("num_experts", most=MOST_EXPERTS),
        "experts_per_token": config.even("moe_topk"),
        "intermediate_size": width,
        **shared_experts(shared, width),
    }
    head_dim = config.integer("attention_head_dim", "head_dim")
    return moe_everywhere(config, gqa(config, head_dim=head_dim, qk_norm=config.flag("use_qk_norm", False)), routed)


def hy_v3(config: Config) -> Fields:
    """Tencent's Hy3: laid out as GLM-4.5 under keys of its own, without groups of experts."""
    named = {"use_qk_norm": config.get("qk_norm", True), "n_shared_experts": config.get("num_shared_experts")}
    return glm4_moe(Config({"n_group": None, **named, **config.values}, config.where))


def minimax_m2(config: Config) -> Fields:
    """MiniMax-M2: softmax attention in every layer, draft modules counted by their layers."""
    layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
    config.require("attn_type_list", ([1] * layers, None), "must be 1 for every layer: others are linear attention")
    config.require("shared_intermediate_size", (0, None), "must be 0: this model_type has no shared experts")
    attention = gqa(config, head_dim=config.integer("head_dim"), qk_norm=config.flag("use_qk_norm", False))
    drafts = 0
    if config.flag("use_mtp", False):
        drafts = config.integer("num_mtp_modules", least=0) * config.integer("mtp_transformer_layers", least=0)
    return moe_everywhere(config, attention, routed_experts(config, width="intermediate_size")) | {"mtp_layers": drafts}


def gpt_oss(config: Config) -> Fields:
    """gpt-oss: every other layer slides, a learned logit per head joins the softmax, experts in every layer."""
    attention = gqa(config, head_dim=config.integer("head_dim")) | {"sinks": True}
    return moe_everywhere(config, attention, routed_experts(config, width="intermediate_size"))


def gemma3(config: Config) -> Fields:
    """Gemma 3: of every ``sliding_window_pattern`` layers all but the last slide; queries and keys are normed."""
    layers = config.integer(*LAYERS, most=MOST_LAYERS)
    sliding = layers - layers // config.integer("sliding_window_pattern")
    attention = gqa(config, head_dim=config.integer("head_dim"), qk_norm=True)
    window = {"kind": "sliding", "tokens": config.integer("sliding_window"), "layers": sliding}
    return dense_model(config, attention | {"window": window})


def llama4(config: Config) -> Fields:
    """Llama 4: three of four layers attend to chunks, dense and MoE layers alternate by ``interleave_moe_layer_step``.

    Every fourth layer without rotary embedding sees the whole context (``no_rope_layer_interval``, 4 in the class).
    An expert of the always-on kind is as wide as a routed one.
    """
    layers, step = config.integer(*LAYERS, most=MOST_LAYERS), config.integer("interleave_moe_layer_step")
    interval = config.integer_or(4, "no_rope_layer_interval")
    if layers % step or layers % interval:
        config.refuse("num_hidden_layers", f"must be a multiple of {step} and {interval}, by which layers alternate")
    window = {
        "kind": "chunked",
        "tokens": config.integer("attention_chunk_size"),
        "layers": layers - layers // interval,
    }
    width, dense_layers = config.integer("intermediate_size"), layers - layers // step
    experts = routed_experts(config, width="intermediate_size")
    return {
        "attention": gqa(config, head_dim=config.integer("head_dim")) | {"window": window},
        "dense_layers": dense_layers,
        "interleaved": dense_layers > 0,
        "dense_intermediate_size": config.integer("intermediate_size_mlp") if dense_layers else None,
        "moe": experts | shared_experts(1, width),
        "mtp_layers": 0,
    }


def pangu_attention(config: Config) -> Fields:
    """Grouped-query attention of Pangu Pro; openPangu-R has wider keys than values and keys that are parameters."""
    if "qk_nope_dim" not in config.values:
        return gqa(config, head_dim=divided_head_dim(config))
    head_dim = config.integer("qk_nope_dim") + config.integer("qk_rope_dim")
    sinks = config.integer_or(0, "param_sink_number", least=0)
    return gqa(config, head_dim=head_dim) | {"v_head_dim": config.integer("v_channels"), "sink_tokens": sinks}


def pangu_pro_moe(config: Config) -> Fields:
    """Pangu Pro MoE: one expert of each group (arXiv 2505.21411 section 2.2), one wide shared expert."""
    dense_layers = leading_layers(config)
    shared = config.integer_or(0, "shared_expert_intermediate_size", least=0)
    routed = routed_experts(config) | shared_experts(int(shared > 0), shared)
    groups = expert_groups(config) if "n_group" in config.values else {}
    drafts = config.integer_or(0, "num_mtp_layers", least=0)
    return leading_dense(config, pangu_attention(config), routed | groups, dense_layers, drafts)


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
    return hybrid(config) | {"mtp_layers": config.integer("mtp_num_hidden_layers", least=0, most=MOST_LAYERS)}


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
