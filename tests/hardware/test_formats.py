"""Number formats: bytes with scales, and what is multiplied or dequantised where."""

import pytest

from ground.errors import BadInput
from hardware.formats import (
    ELEMENT_BYTES,
    attention_dtype,
    beside_experts,
    feed_forward_dtype,
    multiplied,
    product_dtype,
    storable,
)
from hardware.loader import hardware_names, load_hardware


def test_bits_per_weight() -> None:
    """4.25 bits with an 8-bit scale per 32, 4.5 with one per 16 or a BF16 scale per 32."""
    bits = {dtype: 8 * ELEMENT_BYTES[dtype] for dtype in ("mxfp4", "nvfp4", "int4", "fp8", "int8", "bf16")}
    assert bits == {"mxfp4": 4.25, "nvfp4": 4.5, "int4": 4.5, "fp8": 8, "int8": 8, "bf16": 16}


@pytest.mark.parametrize(
    ("hardware", "weights", "product"),
    [
        ("h100", "mxfp4", "bf16"),
        ("h100", "fp8", "fp8"),
        ("b200", "nvfp4", "nvfp4"),
        ("b200", "mxfp4", "mxfp4"),
        ("b200", "int4", "bf16"),
        ("mi355x", "mxfp4", "mxfp4"),
        ("mi355x", "nvfp4", "bf16"),
        ("910b", "int4", "bf16"),
        ("910b", "int8", "int8"),
    ],
)
def test_what_multiplies(hardware: str, weights: str, product: str) -> None:
    """Blackwell multiplies both four-bit formats, CDNA 4 one of them, others dequantise to BF16."""
    assert product_dtype(load_hardware(hardware), weights) == product  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hardware", "native", "product", "beside"),
    [("cm384", "fp8", "int8", "int8"), ("910b3", "int4", "int8", "bf16"), ("a100", "fp8", "bf16", "bf16")],
)
def test_experts_of_int4(hardware: str, native: str, product: str, beside: str) -> None:
    """Ascend multiplies INT4 experts in INT8 and keeps INT8 beside them, unless the checkpoint is INT4 as it ships."""
    machine = load_hardware(hardware)
    assert product_dtype(machine, "int4", grouped=True) == product
    assert beside_experts(machine, "int4", native, "bf16") == beside  # type: ignore[arg-type]


def test_eight_bit_weights_need_eight_bit_products() -> None:
    """Ascend 910B takes no FP8 weights, and says what it takes."""
    with pytest.raises(BadInput, match=r"910b does not multiply fp8; use bf16 or int8 or int4"):
        product_dtype(load_hardware("910b"), "fp8")


@pytest.mark.parametrize("name", hardware_names())
def test_four_bits_fit_everywhere(name: str) -> None:
    """Every machine stores the four-bit formats, and what it multiplies first."""
    hw = load_hardware(name)
    assert {"int4", "mxfp4", "nvfp4"} <= set(storable(hw))
    assert storable(hw)[: len(multiplied(hw))] == multiplied(hw)


def test_parts_of_a_four_bit_checkpoint() -> None:
    """Attention of a MoE model stays BF16; NVFP4 quantises shared experts, INT4 and MXFP4 do not; a dense model all."""
    kinds = [
        (attention_dtype(word, True), feed_forward_dtype(word, True)) for word in ("mxfp4", "int4", "nvfp4", "fp8")
    ]
    assert kinds == [("bf16", "bf16"), ("bf16", "bf16"), ("bf16", "nvfp4"), ("fp8", "fp8")]
    assert attention_dtype("nvfp4", False) == feed_forward_dtype("int4", False).replace("int4", "nvfp4") == "nvfp4"
