"""Measured curves of an engine's expert kernels on a machine: `operators/*.csv`, made by `scripts/fit_operators.py`.

A row is one kernel for one shape of experts; its curves are seconds of the whole expert block of one rank at 1, 2, 4,
... tokens, at TP degrees with all experts on the rank and at EP degrees with whole experts. Both cut: the product of
the two ratios, for experts of a rank have as many rows each at the same tokens however they are spread. Where one of
the two was measured alone, it stands for the other: half the columns of all experts are as much work as half the
experts. Where both were (553 kernels, shapes and degrees on H100, H200 and B200), they are 13 % apart in the median.
"""

import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.units import MICRO
from hardware.spec import Dtype, HardwareSpec, Number

OPERATORS = Path(__file__).parent / "operators"
SOURCE = "https://github.com/ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)"
TWINS = {"h800": "h100"}
"""Machines with the same cores and memory as a measured one."""
ROUTED = ("monolithic", "sglang_flashinfer_trtllm", "sglang_mxfp4_flashinfer_trtllm")
"""Words of kernels that choose the experts themselves, from the router's logits."""

Shape = tuple[int, int, int, int]
"""Hidden size, intermediate size, experts per token, experts."""


class ExpertCurves(NamedTuple):
    """One kernel for one shape; logarithms of its seconds by degree, [degrees, points]."""

    kernel: str
    version: str
    median_residual: float
    lent: bool
    shape: Shape
    """What it was measured for."""
    tensor: dict[int, NDArray[np.float64]]
    expert: dict[int, NDArray[np.float64]]

    @property
    def routes(self) -> bool:
        """Whether the kernel chooses the experts of a token, too."""
        return any(word in self.kernel for word in ROUTED)

    def seconds(self, tp: Number, ep: Number) -> tuple[Number, ...]:
        """Return the seconds at 1, 2, 4, ... tokens with experts cut by ``tp`` and spread over ``ep`` ranks."""
        logarithms = _between(self.tensor, tp) + _between(self.expert, ep) - self.tensor[1][:, None]
        found = np.exp(logarithms)
        if np.ndim(tp) or np.ndim(ep):
            return tuple(found)
        return tuple(found[:, 0].tolist())


def _between(known: dict[int, NDArray[np.float64]], degree: Number) -> NDArray[np.float64]:
    """[points, instances] logarithms at degrees, linear in the logarithm of the degree, constant outside."""
    degrees = sorted(known)
    place = np.interp(np.log2(np.atleast_1d(degree)), np.log2(degrees), np.arange(len(degrees)))
    table = np.stack([known[degree] for degree in degrees], axis=1)
    left = np.minimum(place.astype(np.intp), max(len(degrees) - 2, 0))
    right = np.minimum(left + 1, len(degrees) - 1)
    return np.asarray(table[:, left] + (place - left) * (table[:, right] - table[:, left]))


def expert_curves(hardware: HardwareSpec, engine: str | None, dtype: Dtype, shape: Shape) -> ExpertCurves | None:
    """Return the curves of an engine's kernel on a machine for the measured shape most like this one.

    Itself where it was measured; otherwise that with the smallest sum of logarithms of the ratios of its sizes, of
    the kernels that the engine runs a quarter of its shapes with; None where none was measured in a number format.
    """
    return None if engine is None else _nearest(measured_as(hardware), engine.partition("@")[0], dtype, shape)


@cache
def _nearest(machine: str, engine: str, dtype: Dtype, shape: Shape) -> ExpertCurves | None:
    lines = _lines(machine)
    own = lines.get((engine, dtype, *map(str, shape)))
    if own is not None:
        return _curves(engine, own)
    kernels = {key: line.split(",", 2)[1] for key, line in lines.items() if key[:2] == (engine, dtype)}
    if not kernels:
        return None
    counts = Counter(kernels.values())
    like = {
        sum(abs(math.log(int(a) / b)) for a, b in zip(key[2:], shape, strict=True)): key
        for key, kernel in kernels.items()
        if 4 * counts[kernel] >= len(kernels)
    }
    return _curves(engine, lines[like[min(like)]])


def expert_kernels(machine: str) -> list[tuple[tuple[str, ...], ExpertCurves]]:
    """Return all curves of a machine with engine, dtype and shape."""
    return [(key, _curves(key[0], line)) for key, line in _lines(machine).items()]


def measured_as(hardware: HardwareSpec) -> str:
    """Return the machine whose measurements stand for this one: itself, what it is an overlay of, or its twin."""
    based = hardware.based_on
    name = based.name if based is not None and based.same_device else hardware.name
    return TWINS.get(name, name)


@cache
def _lines(machine: str) -> dict[tuple[str, ...], str]:
    """Rows of a machine's file as they stand, by engine, dtype and shape; empty where there is no file."""
    path = OPERATORS / f"{machine}.csv"
    found: dict[tuple[str, ...], str] = {}
    if not path.is_file():
        return found
    for line in path.read_text().splitlines()[1:]:
        engines, _, _, *shape = line.split(",", 8)[:8]
        for engine in engines.split():
            found[(engine, *shape)] = line
    return found


@cache
def _curves(engine: str, line: str) -> ExpertCurves:
    _, kernel, version, _, *shape, residual, curves = line.split(",")
    tensor, expert = {}, {}
    for curve in curves.split(";"):
        tp, ep, *points = curve.split()
        logarithms = np.log(np.array(points, dtype=np.float64) * MICRO)
        if ep == "1":
            tensor[int(tp)] = logarithms
        if tp == "1":
            expert[int(ep)] = logarithms
    if 1 in (len(tensor), len(expert)):
        tensor = expert = max(tensor, expert, key=len)
    hidden, intermediate, chosen, experts = map(int, shape)
    measured = hidden, intermediate, chosen, experts
    return ExpertCurves(kernel, version, float(residual), version.split()[0] != engine, measured, tensor, expert)
