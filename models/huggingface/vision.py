"""The ``vision_config`` of multimodal families: Qwen2.5-VL, Qwen3-VL, Qwen3.5, Kimi-K2.5, Llama 4, Gemma 3.

Names of keys and the meaning of windows are those of the families' own configuration and modelling classes
(github.com/huggingface/transformers, src/transformers/models), limits of pictures those of their processors.
"""

from collections.abc import Callable

from models.huggingface.config import Config
from models.huggingface.parts import Fields
from models.spec import MOST_LAYERS

QWEN_MOST_TOKENS = 16384
"""Tokens of a picture at most: preprocessor_config.json of Qwen2.5-VL, max_pixels 12,845,056 of 28 x 28 pixels each."""

KIMI_MOST_PATCHES = 16384
"""Patches of a picture at most: preprocessor_config.json of Kimi-K2.5, in_patch_limit."""

LLAMA4_MOST_TILES = 16
"""Tiles of a picture at most: preprocessor_config.json of Llama-4-Scout, max_patches."""


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
    side = round(config.integer("mm_tokens_per_image") ** 0.5)
    patches = vision.integer("image_size", most=10_000) // vision.integer("patch_size")
    if side < 1 or patches % side:
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
