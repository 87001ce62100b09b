"""In which type a checkpoint stores its weights."""

from typing import Literal

from models.huggingface.config import Config

DTYPE = ("torch_dtype", "dtype")


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
