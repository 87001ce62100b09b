"""Families with latent attention (MLA), dense or sparse: DeepSeek, Kimi, GLM-5, LongCat-Flash, openPangu Ultra."""

import math

from models.huggingface.config import Config
from models.huggingface.parts import (
    LAYERS,
    Fields,
    deepseek_model,
    draft_layers,
    leading_dense,
    mla,
    routed_experts,
    shared_experts,
)
from models.spec import MOST_EXPERTS, MOST_LAYERS


def deepseek_v2(config: Config) -> Fields:
    """DeepSeek-V2 and V2-Lite: latent attention, leading dense layers, shared experts, no draft layer."""
    return deepseek_model(config, mla(config), 0)


def deepseek_v3(config: Config) -> Fields:
    """DeepSeek-V3, R1, V3.1 and Kimi-K2: as V2 with draft layers, whose number must be stated."""
    for key in ("index_topk", "index_n_heads", "index_head_dim"):
        config.require(key, (None,), "this model_type attends to all keys; sparse attention is deepseek_v32's")
    return deepseek_model(config, mla(config), draft_layers(config))


def deepseek_v32(config: Config) -> Fields:
    """DeepSeek-V3.2 and GLM-5: as V3, with an indexer that picks the keys of each query (DSA).

    GLM-5.2's layers share one: the first of every ``index_topk_freq`` picks for the others.
    """
    indexer: Fields = {
        "heads": config.integer("index_n_heads"),
        "head_dim": config.integer("index_head_dim"),
        "top_k": config.integer("index_topk"),
    }
    layers, every = config.integer(*LAYERS, most=MOST_LAYERS), config.integer_or(1, "index_topk_freq")
    config.require("index_topk_pattern", (None,), "only an indexer in every n-th layer (index_topk_freq) is carried")
    if every > 1:
        indexer["layers"] = math.ceil(layers / every)
    return deepseek_model(config, mla(config) | {"indexer": indexer}, draft_layers(config))


def deepseek_v4(config: Config) -> Fields:
    """DeepSeek-V4: keys of blocks (CSA picks among fine ones, HCA sees all coarse ones), hyper-connections.

    ``compress_ratios`` states every layer's, draft layers after the others; 0: the window alone. The gate of the
    first layers, whose experts are chosen by hash, is counted with the others'.
    """
    layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
    stated = config.find("compress_ratios")[1]
    ratios = stated if isinstance(stated, list) else []
    if len(ratios) < layers or any(type(ratio) is not int or ratio not in (0, 4, 128) for ratio in ratios):
        config.refuse("compress_ratios", f"must state 0, 4 or 128 for each of the {layers} layers")
    head, rotary = config.integer("head_dim"), config.integer("qk_rope_head_dim")
    config.require("num_key_value_heads", (1,), "must be 1: one head of keys serves all queries")
    attention: Fields = {
        "kind": "mla",
        "heads": config.integer("num_attention_heads"),
        "q_lora_rank": config.integer("q_lora_rank"),
        "kv_lora_rank": head - rotary,
        "qk_nope_head_dim": head - rotary,
        "qk_rope_head_dim": rotary,
        "v_head_dim": head,
        "indexer": {
            "heads": config.integer("index_n_heads"),
            "head_dim": config.integer("index_head_dim"),
            "top_k": config.integer("index_topk"),
            "layers": ratios[:layers].count(4),
        },
        "compression": {
            "window": config.integer("sliding_window"),
            "fine_tokens": 4,
            "coarse_tokens": 128,
            "coarse_layers": ratios[:layers].count(128),
            "output_groups": config.integer("o_groups"),
            "output_rank": config.integer("o_lora_rank"),
        },
    }
    shared = shared_experts(config.integer("n_shared_experts"), config.integer("moe_intermediate_size"))
    return {
        **leading_dense(config, attention, routed_experts(config) | shared, 0, draft_layers(config)),
        "hyper_connections": config.integer_or(1, "hc_mult"),
    } | ({"native_dtype": "mxfp4", "beside_experts": "fp8"} if config.get("expert_dtype") == "fp4" else {})


def longcat_flash(config: Config) -> Fields:
    """LongCat-Flash: two attentions and dense feed-forwards a layer, experts beside the second (shortcut-connected).

    A layer is two here, of which the second has experts, with its dense feed-forward as their shared expert. Of the
    ``moe_topk`` that a token takes, some are among ``zero_expert_num`` that do nothing: the mean of the others counts.
    The one draft layer is dense and stands in no configuration (vLLM's longcat_flash_mtp.py). The Lite models draft
    nothing and have tables of token sequences, ``ngram_vocab_size_ratio`` times the vocabulary's (arXiv 2601.21204).
    """
    layers = config.integer("num_layers", most=MOST_LAYERS // 2)
    experts, idle = config.integer("n_routed_experts"), config.integer_or(0, "zero_expert_num", least=0)
    width, ratio = config.integer("ffn_hidden_size"), config.integer_or(0, "ngram_vocab_size_ratio", least=0)
    drafts = config.integer_or(0 if ratio else 1, "num_nextn_predict_layers", least=0)
    return {
        "attention": mla(config),
        "layers": 2 * layers,
        "dense_layers": layers,
        "interleaved": True,
        "dense_intermediate_size": width,
        "moe": {
            "experts": experts,
            "experts_per_token": max(1, round(config.integer("moe_topk") * experts / (experts + idle))),
            "intermediate_size": config.integer("expert_ffn_hidden_size"),
            "shared_experts": 1,
            "shared_intermediate_size": width,
        },
        "mtp_layers": drafts,
        "dense_drafts": drafts > 0,
        "beside_vocabulary": ratio * config.integer("hidden_size"),
    }


def pangu_ultra_moe(config: Config) -> Fields:
    """openPangu Ultra MoE: DeepSeek-V3's structure under keys of its own; the router knows no groups."""
    layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
    dense_layers = config.integer("num_dense_layers", least=0, most=layers - 1)
    shared = config.integer("num_shared_experts", least=0, most=MOST_EXPERTS)
    attention: Fields = {
        "kind": "mla",
        "heads": config.integer("num_attention_heads"),
        "q_lora_rank": config.integer_or_null("attention_q_lora_dim"),
        "kv_lora_rank": config.integer("attention_kv_lora_dim"),
        "qk_nope_head_dim": config.integer("attention_qk_dim"),
        "qk_rope_head_dim": config.integer("attention_qk_rope_dim"),
        "v_head_dim": config.integer("attention_v_dim"),
    }
    moe = routed_experts(config) | shared_experts(shared, config.integer("moe_intermediate_size"))
    return leading_dense(
        config, attention, moe, dense_layers, config.integer("num_mtp_layers", least=0, most=MOST_LAYERS)
    )
