"""Measured curves of expert kernels: which are found, and what lies between measured degrees."""

import numpy as np
import pytest

from hardware.curves import OPERATORS, _curves, _lines, expert_curves
from hardware.loader import load_hardware

R1 = (7168, 2048, 8, 256)


def test_the_engine_selects_the_kernel():
    """SGLang's Triton and vLLM's CUTLASS on H200; TensorRT-LLM is lent vLLM's; the reference has none."""
    h200 = load_hardware("h200")
    found = {engine: expert_curves(h200, engine, "fp8", R1) for engine in ("sglang", "vllm", "trtllm")}
    assert all(found.values())
    assert found["sglang"].kernel == "sglang_fused_moe_triton"  # type: ignore[union-attr]
    assert [own.lent for own in found.values() if own] == [False, False, True]
    assert expert_curves(h200, None, "fp8", R1) is None
    assert expert_curves(h200, "reference", "fp8", R1) is None
    assert expert_curves(load_hardware("cm384"), "vllm", "int8", R1) is None


def test_sizes_that_were_not_measured_are_like_others():
    """The closest measured ones are taken, but of no kernel that only odd ones run (FlashInfer's CUTLASS on H200)."""
    h200 = load_hardware("h200")
    like = expert_curves(h200, "vllm", "fp8", (7168, 2048, 8, 255))
    assert like is not None and like.shape == R1
    odd = expert_curves(h200, "vllm", "fp8", (2816, 704, 8, 128))
    near = expert_curves(h200, "vllm", "fp8", (2816, 704, 8, 127))
    assert odd is not None and near is not None
    assert "cutlass" in odd.kernel and near.shape == (2048, 768, 8, 128) and "triton" in near.kernel


def test_degrees_between_measured_ones():
    """TP 1 is as it stands in the file (SGLang, one token: 109 us); TP 3 lies between 2 and 4; arrays as numbers."""
    curves = expert_curves(load_hardware("h200"), "sglang", "fp8", R1)
    assert curves is not None
    whole, two, three, four = (np.array(curves.seconds(degree, 1.0)) for degree in (1, 2, 3, 4))
    assert whole[0] == pytest.approx(109e-6, rel=0.02)
    assert np.all((three - two) * (three - four) <= 0)
    together = np.array(curves.seconds(np.array([1, 4]), np.array([1.0, 1.0])))
    assert together == pytest.approx(np.stack([whole, four], axis=1))


FILES = sorted(path for path in OPERATORS.glob("*.csv") if path.stem != "fits")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_hold_what_they_promise(path):
    """Every row reads, its residual is small, and more tokens never take far less time."""
    lines = _lines(path.stem)
    assert lines
    for (engine, *_), line in lines.items():
        curves = _curves(engine, line)
        assert 0 <= curves.median_residual < 0.05
        for points in (*curves.tensor.values(), *curves.expert.values()):
            assert np.all(np.isfinite(points))
            assert np.all(np.diff(points) > -0.7)
