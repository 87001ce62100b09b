"""Which adapter reads which Hugging Face ``model_type``, and which types are refused and why."""

from collections.abc import Callable

from models.huggingface.config import Config
from models.huggingface.grouped import (
    dbrx,
    ernie4_5_moe,
    glm4_moe,
    hunyuan,
    llama,
    minimax_m2,
    mistral,
    mixtral,
    olmoe,
    pangu_pro_moe,
)
from models.huggingface.latent import DSA, deepseek_v2, deepseek_v3, pangu_ultra_moe
from models.huggingface.parts import LAYERS, Fields
from models.huggingface.quantisation import native_dtype
from models.huggingface.qwen import qwen2, qwen3, qwen3_moe
from models.spec import MOST_LAYERS, ModelSpec
from podplan.validation import validate

LINEAR = "three of four layers use linear attention, which keeps a state per sequence and no KV cache"

ADAPTERS: dict[str, Callable[[Config], Fields]] = {
    "PanguProMoE": pangu_pro_moe,
    "dbrx": dbrx,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "ernie4_5_moe": ernie4_5_moe,
    "glm4_moe": glm4_moe,
    "hunyuan": hunyuan,
    "hunyuan_v1_moe": hunyuan,
    "kimi_k2": deepseek_v3,
    "llama": llama,
    "minimax_m2": minimax_m2,
    "mistral": mistral,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "pangu_ultra_moe": pangu_ultra_moe,
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
        "layers": config.integer(*LAYERS, most=MOST_LAYERS),
        "hidden_size": config.integer("hidden_size", "d_model"),
        "vocab_size": config.integer("vocab_size"),
        # False is the default of every configuration class below.
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "max_position": config.integer("max_position_embeddings", "max_seq_len"),
        "native_dtype": native_dtype(config),
    }
    return validate(ModelSpec, fields | ADAPTERS[model_type](config), config.where)
