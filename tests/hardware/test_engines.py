"""Machines with an engine's own kernels."""

import pytest

from ground.errors import BadInput
from hardware.engines import engine_kernels, with_engine
from hardware.loader import load_hardware


def test_an_engine_brings_its_kernels():
    """vLLM on H200: its products, attention and all-reduce stand before those of the entry, with their residuals."""
    plain = load_hardware("h200")
    own = with_engine(plain, "vllm@0.15.1")
    assert with_engine(plain, None) is plain and with_engine(plain, "mindie") is plain
    assert with_engine(plain, "vllm") is own
    assert own.kernels.gqa_decode.version == "vllm 0.24.0"
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


def test_kernels_of_an_engine_are_listed():
    """Fits by family, and a block of experts by shape with its times; an engine that was not measured is refused."""
    kernels = {kernel.family: kernel for kernel in engine_kernels(load_hardware("h800"), "vllm")}
    assert "floor_seconds" in kernels["gemm bf16"].told
    assert "us" in kernels["experts fp8 7168x2048x8x256"].told
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
