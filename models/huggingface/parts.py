"""The parts of a configuration that families share: attention, experts, draft layers.

Keys that are not read do not change the cost of a step: ``rope_scaling`` and ``norm_topk_prob`` for example. MLA
configurations also state ``num_key_value_heads`` and ``head_dim``; both mean nothing there and are not read.
Defaults are taken only where the format's own configuration class
(github.com/huggingface/transformers, src/transformers/models/*/configuration_*.py) defines them.
"""

from ground.errors import BadInput
from models.huggingface.config import Config
from models.spec import MOST_EXPERTS, MOST_LAYERS

Fields = dict[str, object]

LAYERS = ("num_hidden_layers", "n_layers")
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "num_routed_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token")

LEADING_DENSE = "podplan carries experts in every layer after leading dense ones"


def mla(config: Config) -> Fields:
    """Latent attention; ``q_lora_rank`` must be stated, null where queries are not compressed."""
    return {
        "kind": "mla",
        "heads": config.integer("num_attention_heads"),
        "q_lora_rank": config.integer_or_null("q_lora_rank"),
        "kv_lora_rank": config.integer("kv_lora_rank"),
        "qk_nope_head_dim": config.integer("qk_nope_head_dim"),
        "qk_rope_head_dim": config.integer("qk_rope_head_dim"),
        "v_head_dim": config.integer("v_head_dim"),
    }


def gqa(config: Config, *, head_dim: int, kv_heads: int | None = None, qk_norm: bool = False) -> Fields:
    """Grouped-query attention, over a sliding window in some or all layers where the configuration has one on."""
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads") if kv_heads is None else kv_heads
    if heads % kv_heads:
        config.refuse("num_attention_heads", f"must be a multiple of the {kv_heads} num_key_value_heads")
    bias = config.flag("attention_bias", False)  # the classes' default
    return {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "qk_norm": qk_norm,
        "bias": bias,
        "window": window_of(config),
    }


def divided_head_dim(config: Config) -> int:
    """Return ``head_dim``; absent or null it is hidden_size / num_attention_heads, as these classes define."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if config.get("head_dim") is None and hidden % heads:
        config.refuse("hidden_size", f"does not divide over {heads} num_attention_heads; state head_dim")
    return config.integer_or(hidden // heads, "head_dim")


def window_of(config: Config) -> Fields | None:
    """Return the sliding window of some layers, None where every layer sees the whole context.

    ``layer_types`` says which layers slide; without it all of them do where a window is on. A window that the context
    never fills is none. Qwen switches its window on with ``use_sliding_window`` and starts it at ``max_window_layers``.
    """
    layers = config.integer(*LAYERS, most=MOST_LAYERS)
    sliding = sliding_layers(config, layers)
    window = config.get("sliding_window")
    if "use_sliding_window" in config.values:
        if not config.flag("use_sliding_window", False):
            if sliding:
                config.refuse("layer_types", "names sliding_attention, which use_sliding_window false contradicts")
            return None
        config.refuse("use_sliding_window", "must be false: podplan does not carry a window that starts at a layer")
    if window is None:
        if sliding:
            config.refuse("layer_types", "names sliding_attention, so sliding_window must be stated")
        return None
    tokens = config.integer("sliding_window")
    if sliding == 0 or tokens >= config.integer("max_position_embeddings"):
        return None
    return {"kind": "sliding", "tokens": tokens, "layers": layers if sliding is None else sliding}


def sliding_layers(config: Config, layers: int) -> int | None:
    """Return how many of ``layer_types`` slide, None where it is not given; other kinds of layers are refused."""
    types = config.get("layer_types")
    if types is None:
        return None
    known = ("full_attention", "sliding_attention", "linear_attention")
    if not isinstance(types, list) or len(types) != layers or any(kind not in known for kind in types):
        config.refuse("layer_types", f"must name one of {', '.join(known)} for each of the {layers} layers")
    return types.count("sliding_attention")


def dense_model(config: Config, attention: Fields) -> Fields:
    """Dense feed-forwards in all layers, and no draft layer."""
    return leading_dense(config, attention, None, config.integer("num_hidden_layers", most=MOST_LAYERS))


def moe_everywhere(config: Config, attention: Fields, moe: Fields) -> Fields:
    """Experts in every layer, and no draft layer."""
    return leading_dense(config, attention, moe, 0)


def leading_dense(config: Config, attention: Fields, moe: Fields | None, dense_layers: int, drafts: int = 0) -> Fields:
    """Dense layers that lead, those with experts after them, and draft layers."""
    return {
        "attention": attention,
        "dense_layers": dense_layers,
        "dense_intermediate_size": config.integer("intermediate_size") if dense_layers else None,
        "moe": moe,
        "mtp_layers": drafts,
    }


def shared_experts(count: int, width: int) -> Fields:
    """Shared experts of one width each."""
    return {"shared_experts": count, "shared_intermediate_size": count * width}


def deepseek_model(config: Config, attention: Fields, drafts: int) -> Fields:
    """Dense layers that lead and, after them, routed experts in groups beside shared ones."""
    config.require("moe_layer_freq", (1,), f"must be 1: {LEADING_DENSE}")
    layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
    dense_layers = config.integer("first_k_dense_replace", least=0, most=layers - 1)
    shared = config.integer_or_null("n_shared_experts", least=0, most=MOST_EXPERTS) or 0
    beside = shared_experts(shared, config.integer("moe_intermediate_size"))
    moe = routed_experts(config) | beside | expert_groups(config)
    return leading_dense(config, attention, moe, dense_layers, drafts)


def expert_groups(config: Config) -> Fields:
    """Groups of experts that a token's choice is limited to; null or a greedy choice means one group."""
    if config.get("topk_method") == "greedy" or config.find("n_group")[1] is None:
        return {"groups": 1, "groups_per_token": 1}
    groups = config.integer("n_group", most=MOST_EXPERTS)
    if config.integer(*EXPERTS, most=MOST_EXPERTS) % groups:
        config.refuse("n_group", "must divide the number of experts")
    return {"groups": groups, "groups_per_token": config.integer("topk_group", most=groups)}


def routed_experts(config: Config, width: str = "moe_intermediate_size") -> Fields:
    """Routed experts alone; ``width`` is the key that holds the width of one."""
    experts = config.integer(*EXPERTS, most=MOST_EXPERTS)
    per_token = config.integer(*EXPERTS_PER_TOKEN, most=MOST_EXPERTS)
    if per_token > experts:
        config.refuse(config.find(*EXPERTS_PER_TOKEN)[0], f"must be at most the {experts} experts of a layer")
    return {"experts": experts, "experts_per_token": per_token, "intermediate_size": config.integer(width)}


def leading_layers(config: Config) -> int:
    """Return how many layers ``mlp_only_layers`` lists, which must be the first ones; absent means none."""
    key = "mlp_only_layers"
    listed = config.get(key) or []
    layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
    if not isinstance(listed, list) or listed != list(range(len(listed))) or len(listed) >= layers:
        config.refuse(key, f"must list the first layers in order, as [0, 1, 2], or none: {LEADING_DENSE}")
    return len(listed)


def draft_layers(config: Config) -> int:
    """Return the draft (MTP) layers that the checkpoint ships; a checkpoint without any must say 0."""
    if "num_nextn_predict_layers" not in config.values:
        raise BadInput(
            f"{config.where}: the key num_nextn_predict_layers is missing; write 0 if there is no draft layer"
        )
    return config.integer("num_nextn_predict_layers", least=0, most=MOST_LAYERS)
