"""Timing kernels through a PyTorch that is handed in: here a stand-in that only knows shapes."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from hardware.measurements import NUMBERS, Timer, measure_all


class _Tensor:
    """A shape and what the timed kernels do with it."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __matmul__(self, other: "_Tensor") -> "_Tensor":
        return _Tensor(*self.shape[:-1], other.shape[-1])

    def __getitem__(self, _: object) -> "_Tensor":
        return self

    def to(self, _: object) -> "_Tensor":
        return self

    def contiguous(self) -> "_Tensor":
        return self

    def repeat_interleave(self, _: int, dim: int) -> "_Tensor":
        return self

    def copy_(self, _: "_Tensor") -> None:
        np.zeros(10)

    def add_(self, _: int) -> None:
        np.zeros(10)


class _Torch:
    """As much of the module as ``measuring`` calls."""

    __version__ = "0"
    bfloat16 = "bfloat16"

    nn = SimpleNamespace(functional=SimpleNamespace(scaled_dot_product_attention=lambda query, *_, is_causal: query))

    @staticmethod
    def randn(*shape: int, device: str) -> _Tensor:
        return _Tensor(*shape)

    @staticmethod
    def empty_like(tensor: _Tensor) -> _Tensor:
        return tensor

    @staticmethod
    def bmm(left: _Tensor, right: _Tensor) -> _Tensor:
        return left @ right


def test_every_row_can_be_calibrated() -> None:
    """Each kernel has the columns that its kind needs, a positive time and where it was measured."""
    torch: Any = _Torch
    rows = list(measure_all(Timer(torch, "cpu", quick=True, runs=1, least_seconds=1e-5)))
    assert {row["kernel"] for row in rows} == {
        "gemm", "grouped_gemm", "gqa_decode", "prefill_attention", "memory_copy", "eager_launch",
    }  # fmt: skip
    for row in rows:
        assert all(float(str(row[name])) > 0 for name in (*NUMBERS[str(row["kernel"])], "seconds"))
        assert row["source"] == "plan measure on cpu"
