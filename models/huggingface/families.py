"""Which adapter reads which Hugging Face ``model_type``, and what all of them have in common."""

from collections.abc import Callable

from ground.validation import validate
from models.huggingface.config import Config
from models.huggingface.grouped import (
    GEMMA3_DEFAULTS,
    dbrx,
    ernie4_5_moe,
    gemma3,
    glm4_moe,
    gpt_oss,
    hunyuan,
    hy_v3,
    llama,
    llama4,
    minimax_m2,
    mistral,
    mixtral,
    olmoe,
    pangu_pro_moe,
    qwen2,
    qwen3,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
)
from models.huggingface.latent import (
    deepseek_v2,
    deepseek_v3,
    deepseek_v4,
    deepseek_v32,
    longcat_flash,
    pangu_ultra_moe,
)
from models.huggingface.parts import LAYERS, Fields
from models.huggingface.quantisation import native_dtype
from models.huggingface.vision import vision_tower
from models.spec import MOST_LAYERS, ModelSpec

WRAPPED = {
    "gemma3": "gemma3_text",
    "kimi_k25": "kimi_k2",
    "llama4": "llama4_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}
"""The language model stands in text_config, the encoder of pictures beside it."""

DEFAULTS: dict[str, Fields] = {"gemma3_text": GEMMA3_DEFAULTS}

ADAPTERS: dict[str, Callable[[Config], Fields]] = {
    "PanguProMoE": pangu_pro_moe,
    "dbrx": dbrx,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "deepseek_v4": deepseek_v4,
    "ernie4_5_moe": ernie4_5_moe,
    "gemma3_text": gemma3,
    "glm4_moe": glm4_moe,
    "glm_moe_dsa": deepseek_v32,
    "gpt_oss": gpt_oss,
    "hunyuan": hunyuan,
    "hunyuan_v1_moe": hunyuan,
    "hy_v3": hy_v3,
    "kimi_k2": deepseek_v3,
    "llama": llama,
    "longcat_flash": longcat_flash,
    "longcat_flash_ngram": longcat_flash,
    "llama4_text": llama4,
    "minimax_m2": minimax_m2,
    "mistral": mistral,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "pangu_ultra_moe": pangu_ultra_moe,
    "qwen2": qwen2,
    "qwen2_5_vl_text": qwen2,
    "qwen3": qwen3,
    "qwen3_5_moe_text": qwen3_5_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "qwen3_vl_moe_text": qwen3_moe,
    "qwen3_vl_text": qwen3,
}


def model_from_config(config: Config, name: str, vision: Fields | None = None) -> ModelSpec:
    """Return the spec of the model that ``config`` describes, called ``name``, with the ``vision`` tower beside it.

    Raises BadInput naming the file and the key for an unknown model_type, a missing or impossible value, and
    for a structure that the cost model does not carry.
    """
    model_type = str(config.find("model_type")[1])
    if model_type in WRAPPED:
        return model_from_config(unwrapped(config), name, vision_tower(config, model_type))
    if model_type not in ADAPTERS:
        config.refuse("model_type", f"unknown; accepted are {', '.join(sorted([*ADAPTERS, *WRAPPED]))}")
    own = ADAPTERS[model_type](config)
    fields: Fields = {
        "schema_version": 1,
        "name": name,
        "title": name,
        "architecture": model_type,
        "source": config.where,
        "layers": own["layers"] if "layers" in own else config.integer(*LAYERS, most=MOST_LAYERS),
        "hidden_size": config.integer("hidden_size", "d_model"),
        "vocab_size": config.integer("vocab_size"),
        # False is the default of every configuration class below.
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "max_position": config.integer("max_position_embeddings", "max_seq_len"),
        "native_dtype": native_dtype(config),
        "vision": vision,
    }
    return validate(ModelSpec, fields | own, config.where)


def unwrapped(config: Config) -> Config:
    """Return the language model of a multimodal configuration; what only the outside states holds for it too.

    Qwen2.5-VL's first configurations have no text_config: its keys stand beside the vision_config.
    """
    flat = config.get("text_config") is None and "hidden_size" in config.values
    inner = (
        Config({**config.values, "model_type": "qwen2_5_vl_text"}, config.where)
        if flat
        else config.section("text_config")
    )
    outside = {
        key: config.values[key]
        for key in ("tie_word_embeddings", "quantization_config", "torch_dtype", "dtype")
        if key in config.values
    }
    expected = WRAPPED[str(config.values["model_type"])]
    inner = Config({"model_type": expected, **DEFAULTS.get(expected, {}), **outside, **inner.values}, inner.where)
    inner.require("model_type", (expected,), f"must be {expected}, which podplan carries inside this type")
    return inner
