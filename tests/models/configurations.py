"""Hugging Face configurations of a few public models, as their reports give the dimensions."""

Keys = dict[str, object]

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def deepseek_v3() -> Keys:
    """Return DeepSeek-V3's dimensions (arXiv 2412.19437 section 4.2) under Hugging Face's keys."""
    return {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 163840,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": FP8,
    }


def kimi_k2() -> Keys:
    """Return Kimi-K2's dimensions (arXiv 2507.20534 table 2): DeepSeek-V3's with more experts and fewer heads."""
    return deepseek_v3() | {
        "model_type": "kimi_k2",
        "first_k_dense_replace": 1,
        "n_routed_experts": 384,
        "n_group": 1,
        "topk_group": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
        "num_nextn_predict_layers": 0,
        "max_position_embeddings": 131072,
    }


def kimi_k25() -> Keys:
    """Return Kimi-K2.5's dimensions: Kimi-K2's language model with experts in four bits, inside a wrapper."""
    weights = {"type": "int", "num_bits": 4, "group_size": 32, "strategy": "group"}
    groups = {"group_0": {"weights": weights, "targets": ["Linear"], "input_activations": None}}
    quantised = {"quant_method": "compressed-tensors", "config_groups": groups}
    text = kimi_k2() | {"max_position_embeddings": 262144, "quantization_config": quantised}
    vision = {
        "vt_num_hidden_layers": 27,
        "vt_num_attention_heads": 16,
        "vt_hidden_size": 1152,
        "vt_intermediate_size": 4304,
        "patch_size": 14,
        "merge_kernel_size": [2, 2],
    }
    return {"model_type": "kimi_k25", "text_config": text, "vision_config": vision, "dtype": "bfloat16"}


def deepseek_v2_lite() -> Keys:
    """Return DeepSeek-V2-Lite's dimensions (arXiv 2405.04434 appendix B): queries not compressed, no groups."""
    keys = deepseek_v3() | {
        "model_type": "deepseek_v2",
        "num_hidden_layers": 27,
        "first_k_dense_replace": 1,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "num_attention_heads": 16,
        "q_lora_rank": None,
        "vocab_size": 102400,
    }
    return without(keys, "num_nextn_predict_layers", "quantization_config")


def dense(model_type: str, **keys: object) -> Keys:
    """Return the keys that dense models share, with those of one of them."""
    shared = {
        "model_type": model_type,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "num_key_value_heads": 8,
    }
    return shared | keys


def qwen3_32b() -> Keys:
    """Return Qwen3-32B's dimensions (huggingface.co/Qwen/Qwen3-32B; layers and heads in arXiv 2505.09388 table 1)."""
    return dense(
        "qwen3",
        num_hidden_layers=64,
        hidden_size=5120,
        intermediate_size=25600,
        num_attention_heads=64,
        head_dim=128,
        vocab_size=151936,
        max_position_embeddings=40960,
        use_sliding_window=False,
        sliding_window=None,
    )


def qwen3_235b() -> Keys:
    """Return Qwen3-235B-A22B's dimensions (layers and heads in arXiv 2505.09388 table 2); no layer is dense."""
    return qwen3_32b() | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 94,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def qwen2_7b() -> Keys:
    """Return Qwen2-7B's dimensions (arXiv 2407.10671 table 1): a window of the whole context, and switched off."""
    return dense(
        "qwen2",
        num_hidden_layers=28,
        hidden_size=3584,
        intermediate_size=18944,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        max_position_embeddings=131072,
        use_sliding_window=False,
        sliding_window=131072,
    )


def llama_8b() -> Keys:
    """Return Llama-3.1-8B's dimensions (arXiv 2407.21783 table 3)."""
    return dense(
        "llama",
        num_hidden_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        vocab_size=128256,
        max_position_embeddings=131072,
    )


def mixtral_8x7b() -> Keys:
    """Return Mixtral-8x7B's dimensions (arXiv 2401.04088 table 1)."""
    return llama_8b() | {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "sliding_window": None,
    }


def glm_4_6() -> Keys:
    """Return GLM-4.6's dimensions (arXiv 2508.06471 table 1): grouped-query attention and DeepSeek-like experts."""
    mla_only = (
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "quantization_config",
    )
    return without(deepseek_v3(), *mla_only) | {
        "model_type": "glm4_moe",
        "num_hidden_layers": 92,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "n_group": 1,
        "topk_group": 1,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": True,
        "use_qk_norm": True,
        "vocab_size": 151552,
        "max_position_embeddings": 202752,
    }


def grouped(model_type: str, layers: int, hidden: int, heads: int, kv_heads: int, vocabulary: int) -> Keys:
    """Return what every family with grouped-query attention of 128-wide heads states."""
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def dbrx() -> Keys:
    """Return DBRX's dimensions (huggingface.co/databricks/dbrx-base) under its own keys."""
    return {
        "model_type": "dbrx",
        "n_layers": 40,
        "d_model": 6144,
        "n_heads": 48,
        "vocab_size": 100352,
        "max_seq_len": 32768,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def ernie_300b() -> Keys:
    """Return ERNIE-4.5-300B-A47B's dimensions (model card; dense layers inferred from the parameter count)."""
    return grouped("ernie4_5_moe", 54, 8192, 64, 8, 103424) | {
        "intermediate_size": 28672,
        "moe_intermediate_size": 3584,
        "moe_num_experts": 64,
        "moe_k": 8,
        "moe_num_shared_experts": 0,
        "moe_layer_start_index": 3,
        "moe_layer_end_index": 53,
        "moe_layer_interval": 1,
    }


def hunyuan_a13b() -> Keys:
    """Return Hunyuan-A13B's dimensions (huggingface.co/tencent/Hunyuan-A13B-Instruct), lists per layer included."""
    return without(grouped("hunyuan", 32, 4096, 32, 8, 128167), "head_dim") | {
        "attention_head_dim": 128,
        "intermediate_size": 3072,
        "moe_intermediate_size": [3072] * 32,
        "moe_topk": [8] * 32,
        "num_shared_expert": [1] * 32,
        "num_experts": 64,
        "moe_layer_num_skipped": 0,
        "use_cla": False,
        "use_mla": False,
        "use_qk_norm": True,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    }


def minimax_m2() -> Keys:
    """Return MiniMax-M2's dimensions (huggingface.co/MiniMaxAI/MiniMax-M2)."""
    return grouped("minimax_m2", 62, 3072, 48, 8, 200064) | {
        "attn_type_list": [1] * 62,
        "intermediate_size": 1536,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "shared_intermediate_size": 0,
        "use_qk_norm": True,
        "use_mtp": True,
        "num_mtp_modules": 3,
        "mtp_transformer_layers": 1,
        "max_position_embeddings": 196608,
        "quantization_config": FP8,
    }


def olmoe() -> Keys:
    """Return OLMoE-1B-7B's dimensions (arXiv 2409.02060)."""
    return without(grouped("olmoe", 16, 2048, 16, 16, 50304), "head_dim") | {
        "intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 4096,
    }


def pangu_pro() -> Keys:
    """Return Pangu Pro MoE's dimensions (arXiv 2505.21411): 64 experts, one of each of eight groups."""
    return grouped("PanguProMoE", 48, 5120, 40, 8, 153376) | {
        "moe_intermediate_size": 1344,
        "shared_expert_intermediate_size": 5376,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 8,
    }


def pangu_ultra() -> Keys:
    """Return Pangu Ultra MoE's dimensions (arXiv 2505.04519) under openPangu's keys."""
    return {
        "model_type": "pangu_ultra_moe",
        "num_hidden_layers": 61,
        "num_dense_layers": 3,
        "hidden_size": 7680,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 128,
        "attention_q_lora_dim": 1536,
        "attention_kv_lora_dim": 512,
        "attention_qk_dim": 128,
        "attention_qk_rope_dim": 64,
        "attention_v_dim": 128,
        "num_routed_experts": 256,
        "num_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_mtp_layers": 1,
        "vocab_size": 153600,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def deepseek_v32() -> Keys:
    """Return DeepSeek-V3.2's dimensions: V3's with an indexer of 64 heads that picks 2048 keys (its report, 2.1)."""
    indexer = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
    return deepseek_v3() | {"model_type": "deepseek_v32"} | indexer


def longcat_flash() -> Keys:
    """Return LongCat-Flash-Chat's dimensions (huggingface.co/meituan-longcat/LongCat-Flash-Chat)."""
    return {
        "model_type": "longcat_flash",
        "num_layers": 28,
        "hidden_size": 6144,
        "ffn_hidden_size": 12288,
        "expert_ffn_hidden_size": 2048,
        "n_routed_experts": 512,
        "zero_expert_num": 256,
        "moe_topk": 12,
        "num_attention_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 131072,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }


def glm_5() -> Keys:
    """Return GLM-5's dimensions (huggingface.co/zai-org/GLM-5); its head_dim means nothing under latent attention."""
    return without(deepseek_v32(), "quantization_config") | {
        "model_type": "glm_moe_dsa",
        "num_hidden_layers": 78,
        "hidden_size": 6144,
        "intermediate_size": 12288,
        "n_group": 1,
        "topk_group": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "head_dim": 64,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "index_n_heads": 32,
        "vocab_size": 154880,
        "max_position_embeddings": 202752,
    }


def gpt_oss_120b() -> Keys:
    """Return gpt-oss-120b's dimensions (arXiv 2508.10925): every other layer sees the last 128 tokens."""
    return grouped("gpt_oss", 36, 2880, 64, 8, 201088) | {
        "head_dim": 64,
        "attention_bias": True,
        "intermediate_size": 2880,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "quantization_config": {"quant_method": "mxfp4"},
    }


def llama_4_maverick() -> Keys:
    """Return Llama-4-Maverick's dimensions inside its multimodal wrapper; every second layer has experts."""
    text = without(grouped("llama4_text", 48, 5120, 40, 8, 202048), "tie_word_embeddings") | {
        "attention_chunk_size": 8192,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "max_position_embeddings": 1048576,
    }
    vision = vit(34, 1408, 5632) | {"image_size": 336, "patch_size": 14, "pixel_shuffle_ratio": 0.5}
    return {"model_type": "llama4", "text_config": text, "vision_config": vision}


def qwen3_next() -> Keys:
    """Return Qwen3-Next-80B-A3B's dimensions (huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct)."""
    return grouped("qwen3_next", 48, 2048, 16, 2, 151936) | {
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 512,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "shared_expert_intermediate_size": 512,
        "use_sliding_window": False,
        "max_position_embeddings": 262144,
    }


def qwen3_5() -> Keys:
    """Return Qwen3.5-397B-A17B's dimensions inside its wrapper: Qwen3-Next's structure with a draft layer."""
    text = without(qwen3_next(), "use_sliding_window", "decoder_sparse_step") | {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 60,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15,
        "attn_output_gate": True,
        "linear_num_value_heads": 64,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
        "mtp_num_hidden_layers": 1,
        "mamba_ssm_dtype": "float32",
        "vocab_size": 248320,
    }
    return {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": qwen_vit(), "tie_word_embeddings": False}


def vit(layers: int, hidden: int, width: int) -> Keys:
    """Return the sizes of a vision transformer of 16 heads under SigLIP's keys."""
    sizes: Keys = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": width}
    return sizes | {"num_attention_heads": 16}


def qwen_vit() -> Keys:
    """Return the encoder of Qwen3-VL and Qwen3.5."""
    return {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def qwen2_5_vl_7b() -> Keys:
    """Return Qwen2.5-VL-7B's dimensions (huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct), the text's keys outside."""
    vision = qwen_vit() | {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14}
    windows = {"window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]}
    text = grouped("qwen2_5_vl", 28, 3584, 28, 4, 152064) | {"intermediate_size": 18944}
    return without(text, "head_dim") | {"max_position_embeddings": 128000, "vision_config": vision | windows}


def qwen3_vl_8b() -> Keys:
    """Return Qwen3-VL-8B's dimensions (huggingface.co/Qwen/Qwen3-VL-8B-Instruct)."""
    text = grouped("qwen3_vl_text", 36, 4096, 32, 8, 151936) | {
        "head_dim": 128,
        "intermediate_size": 12288,
        "max_position_embeddings": 262144,
    }
    return {"model_type": "qwen3_vl", "text_config": text, "vision_config": qwen_vit()}


def gemma_3_27b() -> Keys:
    """Return Gemma-3-27B's dimensions (arXiv 2503.19786); its file leaves much to the defaults of its class."""
    text: Keys = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
    }
    vision = vit(27, 1152, 4304) | {"image_size": 896, "patch_size": 14}
    return {
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "mm_tokens_per_image": 256,
        "text_config": text,
        "vision_config": vision,
    }


def openpangu_r() -> Keys:
    """Return openPangu-R-72B's dimensions: keys of 128 + 64, values of 128, and 128 keys that are parameters."""
    return without(grouped("PanguProMoE", 50, 4608, 64, 4, 153600), "head_dim") | {
        "mlp_only_layers": [0, 1, 2, 3],
        "intermediate_size": 10240,
        "moe_intermediate_size": 1280,
        "shared_expert_intermediate_size": 2560,
        "num_experts": 80,
        "num_experts_per_tok": 8,
        "qk_nope_dim": 128,
        "qk_rope_dim": 64,
        "v_channels": 128,
        "param_sink_number": 128,
        "num_mtp_layers": 1,
    }


def without(keys: Keys, *names: str) -> Keys:
    """Return ``keys`` less some."""
    return {key: value for key, value in keys.items() if key not in names}
