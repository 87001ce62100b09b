"""The number format in which a checkpoint stores its weights."""

from collections.abc import Mapping
from typing import Literal

from models.huggingface.config import Config

DTYPE = ("torch_dtype", "dtype")
Native = Literal["bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]

# quant_method of formats that say all by their name; fbgemm_fp8 scales per row, which costs the same.
METHODS: dict[object, Native] = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}
# (type, bits) of compressed-tensors' weights.
COMPRESSED: dict[tuple[object, object], Native] = {
    ("int", 4): "int4",
    ("int", 8): "int8",
    ("float", 8): "fp8",
    ("float", 4): "nvfp4",
}
# quant_algo of NVIDIA's ModelOpt.
MODELOPT: dict[object, Native] = {"FP8": "fp8", "NVFP4": "nvfp4"}
ACCEPTED = (
    "its quant_method must be fp8, mxfp4, compressed-tensors with weights of 4 or 8 bits, or modelopt with FP8 or "
    "NVFP4; for another type leave the key out and name the type with --weights"
)


def native_dtype(config: Config) -> Native:
    """Return the type in which the checkpoint stores its weights: of ``quantization_config``, else ``torch_dtype``.

    float16 is told apart from bfloat16 nowhere in the costs: both are two bytes and run at one rate. Raises BadInput
    for a quantisation that podplan does not carry, naming those that it does.
    """
    quantization = config.get("quantization_config")
    if quantization is not None:
        found = quantised(quantization) if isinstance(quantization, dict) else None
        if found is None:
            config.refuse("quantization_config", ACCEPTED)
        return found
    key, dtype = config.find(*DTYPE)
    if dtype not in ("bfloat16", "float16"):
        config.refuse(key, "must be bfloat16 or float16")
    return "bf16"


def with_modelopt(config: Config, beside: Config) -> Config:
    """Return the configuration with the quantisation that ModelOpt states in a file beside it.

    Raises BadInput naming that file where its ``quant_algo`` is not carried.
    """
    section = beside.section("quantization")
    if known(MODELOPT, section.find("quant_algo")[1]) is None:
        section.refuse("quant_algo", f"must be {' or '.join(str(word) for word in MODELOPT)}")
    settings = {"quant_method": "modelopt", "quant_algo": section.values["quant_algo"]}
    return Config({**config.values, "quantization_config": settings}, config.where)


def quantised(settings: Mapping[str, object]) -> Native | None:
    """Return the type of a ``quantization_config``, None for one that is not carried."""
    method = settings.get("quant_method")
    if method == "compressed-tensors":
        return compressed(settings.get("config_groups"))
    return known(MODELOPT, settings.get("quant_algo")) if method == "modelopt" else known(METHODS, method)


def known(table: Mapping[object, Native], word: object) -> Native | None:
    """Return the table's entry for a word; None for a list or an object, which a hostile file may hold."""
    return table.get(word) if isinstance(word, str) else None


def compressed(groups: object) -> Native | None:
    """Return the one type of all groups of a compressed-tensors configuration."""
    if not isinstance(groups, dict):
        return None
    types = set()
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            return None
        kind, bits = weights.get("type"), weights.get("num_bits")
        types.add(COMPRESSED.get((kind, bits)) if isinstance(kind, str) and isinstance(bits, int) else None)
    return types.pop() if len(types) == 1 else None
