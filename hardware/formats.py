"""Number formats of weights and activations: bytes with their scales, and which machine multiplies them.

A format that a device multiplies has a peak and kernel fits of its own in the hardware entry. INT4, MXFP4 and NVFP4
can be *stored* on any device: where they are not multiplied, the kernel turns them into BF16 on the way from memory
(weight-only quantisation), so bytes shrink and products stay those of BF16. Ascend's grouped products widen INT4 to
INT8 (W4A8), so experts are multiplied at INT8's rates.
"""

from typing import Literal

from ground.errors import BadInput
from hardware.spec import Dtype, HardwareSpec

KvDtype = Literal["bf16", "fp8", "int8"]

ELEMENT_BYTES: dict[Dtype, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2.0 / 32,
    "mxfp4": 0.5 + 1.0 / 32,
    "nvfp4": 0.5 + 1.0 / 16,
}
"""Bytes of one stored weight, scales included where they are more than a part in a thousand.

MXFP4: an 8-bit scale per 32 (OCP Microscaling specification 1.0, section 5.1), 4.25 bits. NVFP4: an FP8 scale per 16
(NVIDIA, Introducing NVFP4), 4.5 bits. INT4: a BF16 scale per 32, as Kimi-K2.5's configuration states, 4.5 bits. FP8
with 128 x 128 blocks carries 4/16384 and INT8 per channel 4/depth of an element more: measured kernels read them too,
so they stand in the fitted rates, and in memory they are below what the runtime's reserve is known to.
"""

ACTIVATION_BYTES: dict[Dtype, float] = ELEMENT_BYTES | {"mxfp4": 1.0 + 1.0 / 32}
"""Bytes of one activation that enters a product: MXFP4 weights are multiplied by MXFP8 activations."""

WEIGHT_ONLY: tuple[Dtype, ...] = ("int4", "mxfp4", "nvfp4")
"""Formats that are dequantised to BF16 where the device does not multiply them."""


def multiplied(hardware: HardwareSpec) -> tuple[Dtype, ...]:
    """Return the formats that a device multiplies: those with a peak and with dense and grouped fits."""
    kernels = hardware.kernels
    peaks = hardware.device.peak_flops_per_second
    return tuple(dtype for dtype in peaks if dtype in kernels.gemm and dtype in kernels.grouped_gemm)


def storable(hardware: HardwareSpec) -> tuple[Dtype, ...]:
    """Return the formats that weights may have on a device."""
    own = multiplied(hardware)
    return (*own, *(dtype for dtype in WEIGHT_ONLY if dtype not in own))


def product_dtype(hardware: HardwareSpec, weights: Dtype, *, grouped: bool = False) -> Dtype:
    """Return the format in which weights stored as ``weights`` are multiplied, those of experts if ``grouped``.

    Raises BadInput for a format that the device neither multiplies nor dequantises.
    """
    peaks, kernels = hardware.device.peak_flops_per_second, hardware.kernels
    if weights in peaks and weights in kernels.gemm:
        return weights
    if weights in WEIGHT_ONLY:
        return "int8" if grouped and weights == "int4" and _widens_int4(hardware) else "bf16"
    raise BadInput(f"hardware {hardware.name} does not multiply {weights}; use {' or '.join(storable(hardware))}")


def _widens_int4(hardware: HardwareSpec) -> bool:
    fit = hardware.kernels.grouped_gemm.get("int8")
    return fit is not None and fit.takes_int4


def beside_experts(hardware: HardwareSpec, weights: Dtype, native: Dtype, shipped: Dtype) -> Dtype:
    """Return the format of the other weights beside 4-bit experts: ``shipped`` where the device multiplies it.

    Where INT4 experts are multiplied in INT8, a checkpoint that does not ship four bits (``native``) is INT8 beside
    them (ModelSlim's W4A8 of DeepSeek-V3.2: attention, dense layers and shared experts).
    """
    if weights == "int4" and native not in WEIGHT_ONLY and _widens_int4(hardware):
        return "int8"
    return shipped if shipped in multiplied(hardware) else "bf16"


def attention_dtype(weights: Dtype, has_experts: bool, beside: Dtype = "bf16") -> Dtype:
    """Return the format of attention's weights: four-bit checkpoints of MoE models leave them in BF16, or ``beside``.

    So do gpt-oss (mxfp4), Kimi-K2.5 (int4) and NVIDIA's NVFP4 release of DeepSeek-V3.1.
    """
    return beside if weights in WEIGHT_ONLY and has_experts else weights


def feed_forward_dtype(weights: Dtype, has_experts: bool, beside: Dtype = "bf16") -> Dtype:
    """Return the format of dense and shared feed-forwards: NVFP4 releases quantise them too, INT4 and MXFP4 do not."""
    return beside if weights in ("int4", "mxfp4") and has_experts else weights
