"""Which adapter reads which Hugging Face ``model_type``, what all of them have in common, and their ``vision_config``.

Keys of the latter and the meaning of windows are those of the families' own configuration and modelling classes
(github.com/huggingface/transformers, src/transformers/models), limits of pictures those of their processors.
"""

import math
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
from models.spec import MOST_LAYERS, ModelSpec

QWEN_MOST_TOKENS = 16384
"""Tokens of a picture at most: preprocessor_config.json of Qwen2.5-VL, max_pixels 12,845,056 of 28 x 28 pixels each."""

KIMI_MOST_PATCHES = 16384  # patches of a picture at most: preprocessor_config.json of Kimi-K2.5, in_patch_limit

LLAMA4_MOST_TILES = 16  # tiles of a picture at most: preprocessor_config.json of Llama-4-Scout, max_patches


def vision_tower(config: Config, model_type: str) -> Fields | None:
    """Return the tower of a multimodal configuration; None where it states none, or of a type without an adapter."""
    if model_type not in TOWERS or config.get("vision_config") is None:
        return None
    return TOWERS[model_type](config.section("vision_config"), config)


def _sizes(vision: Config, layers: str, heads: str, prefix: str = "") -> Fields:
    return {
        "layers": vision.integer(layers, most=MOST_LAYERS),
        "heads": vision.integer(heads, most=10_000),
        "hidden_size": vision.integer(f"{prefix}hidden_size"),
        "intermediate_size": vision.integer(f"{prefix}intermediate_size"),
        "patch_size": vision.integer("patch_size", most=10_000),
    }


def _qwen(vision: Config, _: Config) -> Fields:
    merge = vision.integer("spatial_merge_size", most=100)
    return {
        **_sizes(vision, "depth", "num_heads"),
        "merge": merge,
        "frames_per_patch": vision.integer("temporal_patch_size", most=100),
        "resolution": "native",
        "most": QWEN_MOST_TOKENS,
    }


def _qwen2_5(vision: Config, config: Config) -> Fields:
    """Gated feed-forwards, and windows of ``window_size`` pixels in all layers but ``fullatt_block_indexes``."""
    own, full = _qwen(vision, config), vision.find("fullatt_block_indexes")[1]
    if not isinstance(full, list):
        vision.refuse("fullatt_block_indexes", "must be a list of layers")
    window = vision.integer("window_size", most=10_000) // vision.integer("patch_size")
    return {**own, "gated": True, "window_patches": window**2, "full_layers": len(full)}


def _kimi(vision: Config, _: Config) -> Fields:
    """MoonViT; ``merge_kernel_size`` has a number for each side. Its pooling over frames of a video is not carried."""
    merge = vision.find("merge_kernel_size")[1]
    if not (isinstance(merge, list) and len(merge) == 2 and merge[0] == merge[1]):
        vision.refuse("merge_kernel_size", "must be two equal numbers")
    side = Config({"merge": merge[0]}, vision.where).integer("merge", most=100)
    return {
        **_sizes(vision, "vt_num_hidden_layers", "vt_num_attention_heads", "vt_"),
        "merge": side,
        "resolution": "native",
        "most": KIMI_MOST_PATCHES // side**2,
    }


def _square(vision: Config, merge: int) -> Fields:
    image = vision.integer("image_size", most=10_000)
    if image % (vision.integer("patch_size") * merge):
        vision.refuse("image_size", f"must be a multiple of {merge} patches")
    sizes = _sizes(vision, "num_hidden_layers", "num_attention_heads")
    return {**sizes, "merge": merge, "image_size": image}


def _llama4(vision: Config, _: Config) -> Fields:
    """Tiles; pixel shuffling by 0.5 makes one token of two by two patches."""
    vision.require("pixel_shuffle_ratio", (0.5,), "must be 0.5: two patches along a token")
    return {**_square(vision, 2), "resolution": "tiles", "most": LLAMA4_MOST_TILES}


def _gemma3(vision: Config, config: Config) -> Fields:
    """SigLIP on squares, pooled to ``mm_tokens_per_image`` tokens."""
    tokens = config.integer("mm_tokens_per_image")
    side = math.isqrt(tokens)
    patches = vision.integer("image_size", most=10_000) // vision.integer("patch_size")
    if side**2 != tokens or patches % side:
        config.refuse("mm_tokens_per_image", f"must be the square of a divisor of {patches} patches a side")
    return {**_square(vision, patches // side), "resolution": "fixed"}


TOWERS: dict[str, Callable[[Config, Config], Fields]] = {
    "gemma3": _gemma3,
    "kimi_k25": _kimi,
    "llama4": _llama4,
    "qwen2_5_vl": _qwen2_5,
    "qwen3_5_moe": _qwen,
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
}


WRAPPED = {  # the language model stands in text_config, the encoder of pictures beside it
    "gemma3": "gemma3_text",
    "kimi_k25": "kimi_k2",
    "llama4": "llama4_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}

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
