"""Machines with an engine's own kernels: fits, and curves of experts with what lies between measured degrees."""

import numpy as np
import pytest

from ground.errors import BadInput
from hardware.engines import OPERATORS, _curves, _lines, engine_kernels, expert_curves, measured_as, with_engine
from hardware.fits import Product, matmul_seconds
from hardware.loader import load_hardware
from planner.costs.roofline import Roofline
from planner.manifest.terms import timing

R1 = (7168, 2048, 8, 256)
FILES = sorted(path for path in OPERATORS.glob("*.csv") if path.stem not in ("fits", "held_out"))


def test_an_engine_brings_its_kernels():
    """vLLM on H200: its products, attention and all-reduce stand before those of the entry, with their residuals."""
    plain = load_hardware("h200")
    own = with_engine(plain, "vllm@0.15.1")
    assert with_engine(plain, None) is plain and with_engine(plain, "mindie") is plain
    assert with_engine(plain, "vllm") is own
    assert own.kernels.gqa_decode.version == "vllm 0.24.0"
    fused = with_engine(load_hardware("b200"), "trtllm").kernels.gemm["nvfp4"]
    assert fused.version == "sglang 0.5.14", "the one without a quantisation before it"
    assert own.kernels.gqa_decode_fp8 is not None and plain.kernels.gqa_decode_fp8 is None
    assert own.kernels.gemm_static["fp8"].quantises and not own.kernels.gemm["bf16"].quantises
    assert own.kernels.gemm["fp8"].version.startswith("sglang")  # its own was timed eagerly
    assert own.kernels.mla_prefill == plain.kernels.prefill_attention
    assert {fit.ranks for fit in own.collectives if fit.ranks} == {2, 4, 8}


@pytest.mark.parametrize("machine", ["a100", "h100", "h200", "b200", "gb200", "l40s"])
@pytest.mark.parametrize("engine", ["trtllm", "sglang", "vllm"])
def test_fits_are_close_to_what_they_rest_on(machine, engine):
    """Medians of at most 26 %, attention on L40S being the worst; no entry is left out."""
    own = with_engine(load_hardware(machine), engine)
    kernels = own.kernels
    fits = [*kernels.gemm.values(), *kernels.gemm_static.values(), kernels.gqa_decode, kernels.prefill_attention]
    measured = [fit.median_residual for fit in fits if "aiconfigurator-core" in fit.source]
    assert len(measured) >= 3
    assert all(residual is not None and residual < 0.26 for residual in measured)


@pytest.mark.parametrize(
    ("machine", "engine", "dtype", "rows", "columns", "measured"),
    [
        ("b200", "sglang", "fp8", 8192, 256, 29.8e-6),
        ("b200", "sglang", "fp8", 2048, 512, 15.8e-6),
        ("b200", "trtllm", "bf16", 8192, 512, 25.0e-6),
        ("b300", "vllm", "nvfp4", 8192, 512, 29.4e-6),
        ("h200", "sglang", "fp8", 2048, 256, 15.9e-6),
    ],
)
def test_narrow_products_of_many_rows(machine, engine, dtype, rows, columns, measured):
    """Within 15 % of AIConfigurator's times at a depth of 4,096: few columns leave no core idle where rows are many."""
    own = with_engine(load_hardware(machine), engine)
    seconds = matmul_seconds(own.device, dtype, own.kernels.gemm[dtype], Product(1.0, rows, columns, 4096))
    assert seconds == pytest.approx(measured, rel=0.15)
    term = Roofline(own).matmul("product", "attention", {"tokens": 1.0}, columns, 4096, dtype)
    assert timing(term, {"tokens": float(rows), "one": 1.0}).seconds() == pytest.approx(seconds, rel=1e-9)


def test_kernels_of_an_engine_are_listed():
    """Fits by family, and a block of experts by shape with its times; an engine that was not measured is refused."""
    kernels = {kernel.family: kernel for kernel in engine_kernels(load_hardware("h800"), "vllm")}
    assert "floor_seconds" in kernels["gemm bf16"].told and "us" in kernels["experts fp8 7168x2048x8x256"].told
    assert measured_as(load_hardware("h20-3e")) == "h20"  # and so the launch times that engines have there
    with pytest.raises(BadInput, match="measured are sglang, trtllm, vllm"):
        engine_kernels(load_hardware("h100"), "mindie")
    with pytest.raises(BadInput, match="none was measured"):
        engine_kernels(load_hardware("cm384"), "vllm")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_sums_over_trays_are_those_of_the_rack_where_they_were_measured(engine: str) -> None:
    """GB200's were measured within a tray alone, and eight ranks stand on two."""
    borrower, lender = (
        {fit.ranks: fit.protocols for fit in with_engine(load_hardware(name), engine).collectives if fit.in_graph}
        for name in ("gb200", "gb300")
    )
    assert all(borrower[ranks] == lender[ranks] for ranks in (8, 16))
    assert borrower[4] != lender[4]


def test_the_engine_selects_the_kernel():
    """Triton under SGLang and vLLM on H200; TensorRT-LLM's own, or lent vLLM's as FP8 of SGLang on L40S; else none."""
    h200 = load_hardware("h200")
    found = {engine: expert_curves(h200, engine, "fp8", R1) for engine in ("sglang", "vllm", "trtllm")}
    assert all(found.values())
    assert found["sglang"].kernel == "sglang_fused_moe_triton"  # type: ignore[union-attr]
    assert found["trtllm"].kernel == "wideep_compute_cutlass"  # type: ignore[union-attr]
    assert not any(own.lent for own in found.values() if own)
    assert expert_curves(h200, "trtllm", "fp8", (4096, 1536, 8, 128)).lent  # type: ignore[union-attr]
    l40s = [expert_curves(load_hardware("l40s"), engine, "fp8", (2048, 768, 8, 128)) for engine in ("sglang", "vllm")]
    assert l40s[0].lent and l40s[0].seconds(1, 1) == l40s[1].seconds(1, 1)  # type: ignore[union-attr]
    assert expert_curves(h200, None, "fp8", R1) is expert_curves(h200, "reference", "fp8", R1) is None
    assert expert_curves(load_hardware("cm384"), "vllm", "int8", R1) is None


def test_sizes_that_were_not_measured_are_like_others():
    """The closest measured ones are taken, but of no kernel that only odd ones run (FlashInfer's CUTLASS on H200)."""
    h200 = load_hardware("h200")
    like = expert_curves(h200, "vllm", "fp8", (7168, 2048, 8, 255))
    assert like.shape == R1
    odd = expert_curves(h200, "vllm", "fp8", (2816, 704, 8, 128))
    near = expert_curves(h200, "vllm", "fp8", (2816, 704, 8, 127))
    assert "cutlass" in odd.kernel and near.shape == (2048, 768, 8, 128) and "triton" in near.kernel


def test_degrees_between_measured_ones():
    """TP 1 is as it stands in the file (SGLang, one token: 109 us); TP 3 lies between 2 and 4; arrays as numbers."""
    curves = expert_curves(load_hardware("h200"), "sglang", "fp8", R1)
    whole, two, three, four = (np.array(curves.seconds(degree, 1.0)) for degree in (1, 2, 3, 4))
    assert whole[0] == pytest.approx(109e-6, rel=0.02)
    assert np.all((three - two) * (three - four) <= 0)
    together = np.array(curves.seconds(np.array([1, 4]), np.array([1.0, 1.0])))
    assert together == pytest.approx(np.stack([whole, four], axis=1))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_hold_what_they_promise(path):
    """Every row reads, its residual is small, and more tokens never take less time."""
    lines = _lines(path.stem)
    assert lines
    for (engine, *_), line in lines.items():
        curves = _curves(engine, line)
        assert 0 <= curves.median_residual < 0.05
        for points in (*curves.tensor.values(), *curves.expert.values()):
            assert np.all(np.isfinite(points))
            assert np.all(np.diff(points) >= 0)
