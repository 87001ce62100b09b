"""One adapter per Hugging Face ``model_type``: the keys it reads and what of them podplan cannot carry.

A key that an adapter does not read has no part in the cost of a step: ``rope_scaling`` and
``norm_topk_prob`` for example. MLA configurations also state ``num_key_value_heads`` and ``head_dim``;
both mean nothing there and are not read. Defaults are taken only where the format's own configuration class
(github.com/huggingface/transformers, src/transformers/models/*/configuration_*.py) defines them.
"""

from collections.abc import Callable
from typing import Literal

from models.huggingface.config import Config
from models.spec import MOST_EXPERTS, MOST_LAYERS, ModelSpec
from podplan.errors import BadInput
from podplan.validation import validate

Fields = dict[str, object]

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token")
DTYPE = ("torch_dtype", "dtype")

FULL_ATTENTION = "podplan costs attention over the whole context, not over a window"
LEADING_DENSE = "podplan carries experts in every layer after leading dense ones"
DSA = "its sparse attention (DSA) keeps an index key beside the latent cache, which podplan does not cost"
LINEAR = "three of four layers use linear attention, which keeps a state per sequence and no KV cache"


def model_from_config(config: Config, name: str) -> ModelSpec:
    """Return the spec of the model that ``config`` describes, called ``name``.

    Raises BadInput naming the file and the key for an unknown model_type, a missing or impossible value, and
    for a structure that the cost model does not carry.
    """
    model_type = str(config.find("model_type")[1])
    if model_type in NOT_CARRIED:
        config.refuse("model_type", f"not supported: {NOT_CARRIED[model_type]}")
    if model_type not in ADAPTERS:
        config.refuse("model_type", f"unknown; accepted are {', '.join(sorted(ADAPTERS))}")
    fields: Fields = {
        "schema_version": 1,
        "name": name,
        "title": name,
        "architecture": model_type,
        "source": config.where,
        "layers": config.integer("num_hidden_layers", most=MOST_LAYERS),
        "hidden_size": config.integer("hidden_size"),
        "vocab_size": config.integer("vocab_size"),
        # False is the default of every configuration class below.
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "max_position": config.integer("max_position_embeddings"),
        "native_dtype": native_dtype(config),
    }
    return validate(ModelSpec, fields | ADAPTERS[model_type](config), config.where)


def deepseek_v2(config: Config) -> Fields:
    """DeepSeek-V2 and V2-Lite: latent attention, leading dense layers, shared experts, no draft layer."""
    return {"attention": mla(config), "mtp_layers": 0, **deepseek_experts(config)}


def deepseek_v3(config: Config) -> Fields:
    """DeepSeek-V3, R1, V3.1 and Kimi-K2: as V2 with draft layers, whose number must be stated."""
    for key in ("index_topk", "index_n_heads", "index_head_dim"):
        config.require(key, (None,), DSA)
    return {"attention": mla(config), "mtp_layers": draft_layers(config), **deepseek_experts(config)}


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


def llama(config: Config) -> Fields:
    """Llama 2 to 3.3; without ``num_key_value_heads`` every head has its own (the class's default)."""
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer_or(heads, "num_key_value_heads")
    return dense_model(config, gqa(config, head_dim=divided_head_dim(config), kv_heads=kv_heads))


def mistral(config: Config) -> Fields:
    """Mistral without a sliding window; an absent key means a window of 4096 tokens, so it must be stated."""
    config.find("sliding_window")
    return dense_model(config, gqa(config, head_dim=divided_head_dim(config)))


def mixtral(config: Config) -> Fields:
    """Mixtral: experts in every layer, their width in ``intermediate_size``."""
    return {
        "attention": gqa(config, head_dim=divided_head_dim(config)),
        "dense_layers": 0,
        "dense_intermediate_size": None,
        "moe": routed_experts(config, width="intermediate_size"),
        "mtp_layers": 0,
    }


def glm4_moe(config: Config) -> Fields:
    """GLM-4.5 to 4.7: grouped-query attention before experts laid out as DeepSeek-V3's."""
    qk_norm = config.flag("use_qk_norm", False)
    return {
        "attention": gqa(config, head_dim=config.integer("head_dim"), qk_norm=qk_norm),
        "mtp_layers": draft_layers(config),
        **deepseek_experts(config),
    }


ADAPTERS: dict[str, Callable[[Config], Fields]] = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "glm4_moe": glm4_moe,
    "kimi_k2": deepseek_v3,
    "llama": llama,
    "mistral": mistral,
    "mixtral": mixtral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
}

NOT_CARRIED = {
    "deepseek_v32": DSA,
    "deepseek_v4": "its compressed sparse attention and its residual streams are not among podplan's operators",
    "glm_moe_dsa": DSA,
    "gpt_oss": "every other layer attends to a sliding window, and podplan costs full attention only",
    "kimi_k25": "it wraps a language model and a vision tower, and its experts are stored in int4",
    "llama4": "three of four layers attend to chunks, and podplan costs full attention only",
    "qwen3_next": LINEAR,
    "qwen3_5_moe": LINEAR,
}


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
    """Grouped-query attention over the whole context: sliding windows that are on are refused."""
    refuse_sliding_window(config)
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
    }


def divided_head_dim(config: Config) -> int:
    """Return ``head_dim``; absent or null it is hidden_size / num_attention_heads, as these classes define."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if config.get("head_dim") is None and hidden % heads:
        config.refuse("hidden_size", f"does not divide over {heads} num_attention_heads; state head_dim")
    return config.integer_or(hidden // heads, "head_dim")


def refuse_sliding_window(config: Config) -> None:
    """Refuse layers that see less than the whole context; a window that the context never fills is none."""
    layer_types = config.get("layer_types")
    if layer_types is not None and layer_types != ["full_attention"] * config.integer("num_hidden_layers"):
        config.refuse("layer_types", f"must be full_attention for every layer: {FULL_ATTENTION}")
    if "use_sliding_window" in config.values:  # Qwen: the window counts only where this is on
        config.require("use_sliding_window", (False, None), f"must be false: {FULL_ATTENTION}")
        return
    window = config.get("sliding_window")
    if window is not None and config.integer("sliding_window") < config.integer("max_position_embeddings"):
        config.refuse("sliding_window", f"must be null: {FULL_ATTENTION}")


def dense_model(config: Config, attention: Fields) -> Fields:
    """Dense feed-forwards in all layers, and no draft layer."""
    return {
        "attention": attention,
        "dense_layers": config.integer("num_hidden_layers", most=MOST_LAYERS),
        "dense_intermediate_size": config.integer("intermediate_size"),
        "moe": None,
        "mtp_layers": 0,
    }


def deepseek_experts(config: Config) -> Fields:
    """Dense layers that lead and, after them, routed experts in groups beside shared ones."""
    config.require("moe_layer_freq", (1,), f"must be 1: {LEADING_DENSE}")
    layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
    dense_layers = config.integer("first_k_dense_replace", least=0, most=layers - 1)
    shared = config.integer_or_null("n_shared_experts", least=0, most=MOST_EXPERTS) or 0
    shared_width = shared * config.integer("moe_intermediate_size")
    shared_experts = {"shared_experts": shared, "shared_intermediate_size": shared_width}
    return {
        "dense_layers": dense_layers,
        "dense_intermediate_size": config.integer("intermediate_size") if dense_layers else None,
        "moe": routed_experts(config) | shared_experts | expert_groups(config),
    }


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


def leading_layers(config: Config, key: str) -> int:
    """Return how many layers ``key`` lists, which must be the first ones; absent means none (the class's default)."""
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


def native_dtype(config: Config) -> Literal["bf16", "fp8"]:
    """Return the type in which the checkpoint stores its weights: of ``quantization_config``, else ``torch_dtype``.

    float16 is told apart from bfloat16 nowhere in the costs: both are two bytes and run at one rate.
    """
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        if method != "fp8":
            config.refuse(
                "quantization_config",
                "its quant_method must be fp8; for another type leave the key out and name the type with --weights",
            )
        return "fp8"
    key, dtype = config.find(*DTYPE)
    if dtype not in ("bfloat16", "float16"):
        config.refuse(key, "must be bfloat16 or float16")
    return "bf16"
