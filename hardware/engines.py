"""A machine as one serving engine uses it: measured operators over those of the entry (`operators/*.csv`).

`scripts/fit_operators.py` makes the files: `fits.csv` has fits of products, attention and sums; each machine's file
has curves of expert kernels. A row of those is one kernel for one shape of experts; its curves are seconds of the whole
expert block of one rank at 1, 2, 4, ... tokens, at TP degrees with all experts on the rank and at EP degrees with whole
experts. Both cut: the product of the two ratios, for experts of a rank have as many rows each at the same tokens,
however they are spread. Where one of the two was measured alone, it stands for the other: half the columns of all
experts are as much work as half the experts. Where both were (553 kernels, shapes and degrees on H100, H200 and B200),
they are 13 % apart in the median.
"""

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from ground.files import csv_table, read_text
from ground.identity import Kept, Same
from ground.units import MICRO, format_duration
from hardware.loader import load_hardware
from hardware.spec import (
    AttentionFit,
    ChunkFit,
    CollectiveFit,
    Dtype,
    HardwareSpec,
    Kernels,
    MatmulFit,
    Number,
    Protocol,
    SparseFit,
    VectorFit,
)

OPERATORS = Path(__file__).parent / "operators"
SOURCE = "https://github.com/ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)"
TWINS = {"h800": "h100", "h20-3e": "h20"}  # machines with the same cores as a measured one
KIN = {"h20": "h200"}
"""Machines that run the kernels of a measured one at rates of their own (fitted on theirs, without an engine)."""
ROUTED = ("monolithic", "sglang_flashinfer_trtllm", "sglang_mxfp4_flashinfer_trtllm")
"""Words of kernels that choose the experts themselves, from the router's logits."""
OVER_RANKS = ("oaitriton", " + ")
"""Words of kernels that vLLM brings to several ranks in a way of its own: it finds out in other kernels which experts a
rank has (67 us for one token of gpt-oss at EP 8 to 128, 39 where TP cuts as much), or runs another product over EP.
TensorRT-LLM, which borrows them, takes as long with EP as with TP (35 runs of gpt-oss on H200, within 3 %)."""
PRODUCTS = ("gemm", "gemm_static")
KINDS: dict[str, type[VectorFit | ChunkFit | SparseFit]] = {
    "sparse_prefill": SparseFit,
    "sparse_prefill_fp8": SparseFit,
    "recurrence": VectorFit,
    "convolution": VectorFit,
    "chunkwise": ChunkFit,
}
LENDERS = {
    ("vllm", "gemm fp8"): "sglang",
    ("trtllm", "gemm nvfp4"): "sglang",
    ("trtllm", "gqa_decode"): "vllm",
    ("vllm", "mla_decode"): "trtllm",
    ("vllm", "mla_decode_fp8"): "trtllm",
}
"""Engines whose kernel was timed eagerly, untuned, wrongly or within a module alone, and another that runs the same one
or its like. Of NVFP4 vLLM's has the same kernel on Blackwell and 3 us of a quantisation before it, which TensorRT-LLM
fuses into the norm. Latents in decode are TensorRT-LLM's kernels on Blackwell, FlashMLA and FlashAttention 3 on Hopper:
vLLM's modules grow with the cached tokens as TensorRT-LLM's kernels do, 3 to 5 % less at 64 requests."""
OTHER_LENDERS = {("vllm", "mla_decode", machine): "sglang" for machine in ("l40s", "rtx-pro-6000")}
"""Where it is another engine: there both run Triton's."""
EXPERT_LENDERS = {"trtllm": ("vllm", "sglang"), "vllm": ("trtllm", "sglang"), "sglang": ("vllm", "trtllm")}
"""Engines whose experts stand in, the nearest first, where an engine has none in a number format: 10 to 21 % off in the
mean of up to 185 shapes that two engines run, without bias; the roofline is 25 to 28 % off, and too quick."""
NEAR, NEARNESS = 4, 2
"""Measured shapes of experts that stand for one that was not, and the power of their distance from it that they count
less by (D. Shepard, A two-dimensional interpolation function, 1968; weights by distance)."""
ACROSS_TRAYS = ("gb200", "gb300", ("all_reduce 8", "all_reduce 16"))
"""A rack whose sums within a tray alone were measured, the rack whose sums over trays stand in, and which they are."""

Shape = tuple[int, int, int, int]  # hidden size, intermediate size, experts per token, experts
_KNOWN = Kept[HardwareSpec](most=32)  # machines that were asked for: one question has one machine


class ExpertCurves(NamedTuple):
    """One kernel for one shape; logarithms of its seconds by degree, [degrees, points]."""

    kernel: str
    version: str
    median_residual: float
    lent: bool
    shape: Shape  # shape that was measured
    tensor: dict[int, NDArray[np.float64]]
    expert: dict[int, NDArray[np.float64]]
    alike: tuple[tuple[float, "ExpertCurves"], ...] = ()
    """Shares of the measured shapes that stand for another one, this the nearest; none where it was measured itself."""

    @property
    def routes(self) -> bool:
        """Whether the kernel chooses the experts of a token, too."""
        return any(word in self.kernel for word in ROUTED)

    def seconds(self, tp: Number, ep: Number) -> tuple[Number, ...]:
        """Return the seconds at 1, 2, 4, ... tokens with experts cut by ``tp`` and spread over ``ep`` ranks."""
        logarithms = _between(self.tensor, tp) + _between(self.expert, ep) - self.tensor[1][:, None]
        found = np.exp(logarithms)
        return tuple(found) if np.ndim(tp) or np.ndim(ep) else tuple(found[:, 0].tolist())


def _between(known: dict[int, NDArray[np.float64]], degree: Number) -> NDArray[np.float64]:
    """[points, instances] logarithms at degrees, linear in the logarithm of the degree, constant outside."""
    if not isinstance(degree, np.ndarray) and degree in known:
        return known[int(degree)][:, None]
    degrees = sorted(known)
    place = np.interp(np.log2(np.atleast_1d(degree)), np.log2(degrees), np.arange(len(degrees)))
    table = np.stack([known[degree] for degree in degrees], axis=1)
    left = np.minimum(place.astype(np.intp), max(len(degrees) - 2, 0))
    right = np.minimum(left + 1, len(degrees) - 1)
    return np.asarray(table[:, left] + (place - left) * (table[:, right] - table[:, left]))


def expert_curves(hardware: HardwareSpec, engine: str | None, dtype: Dtype, shape: Shape) -> ExpertCurves | None:
    """Return the curves of an engine's kernel on a machine for the measured shape most like this one.

    Itself where it was measured; otherwise the nearest by the logarithms of the ratios of its sizes, with the others
    near it that stand for the shape (``NEAR``), of the kernels that the engine runs a quarter of its shapes with.
    Another engine lends its own where none was measured in a number format; None where no engine has any. The residual
    of what stands for another is that of measured curves met in the same way.
    """
    return None if engine is None else _nearest(measured_as(hardware), engine.partition("@")[0], dtype, shape)


@cache
def _nearest(machine: str, engine: str, dtype: Dtype, shape: Shape) -> ExpertCurves | None:
    lines = _lines(machine)
    measured = {key[0] for key in lines if key[1] == dtype}
    lender = next((each for each in (engine, *EXPERT_LENDERS.get(engine, ())) if each in measured), None)
    if lender is None:
        return None
    own, lent = lines.get((lender, dtype, *map(str, shape))), lender != engine
    if own is not None:
        return _granted(_curves(engine, own), engine, "lent") if lent else _curves(engine, own)
    kernels = {key: line.split(",", 2)[1] for key, line in lines.items() if key[:2] == (lender, dtype)}
    counts = Counter(kernels.values())
    apart = {
        key: math.dist([math.log(int(size)) for size in key[2:]], [math.log(size) for size in shape])
        for key, kernel in kernels.items()
        if 4 * counts[kernel] >= len(kernels)
    }
    near = sorted(apart, key=apart.__getitem__)[:NEAR]
    found = [_curves(engine, lines[key]) for key in near]
    shares = [apart[key] ** -NEARNESS / sum(apart[each] ** -NEARNESS for each in near) for key in near]
    nearest = found[0]._replace(alike=tuple(zip(shares, found, strict=True)))
    return _granted(nearest, engine, "lent alike" if lent else "alike")


def _granted(curves: ExpertCurves, engine: str, case: str) -> ExpertCurves:
    return curves._replace(median_residual=max(curves.median_residual, held_out(engine, case)))


def held_out(engine: str, case: str) -> float:
    """Return the residual of curves that stand for an engine's (``scripts/fit_held_out.py``); 0 until it is known."""
    return _held_out().get((engine.partition("@")[0], case), 0.0)


@cache
def _held_out() -> dict[tuple[str, str], float]:
    table = csv_table(read_text(OPERATORS / "held_out.csv"), "held_out.csv")
    return {(row["engine"], row["case"]): float(row["residual"]) for _, row in table}


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
    for line in path.read_text().splitlines()[1:] if path.is_file() else ():
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
    lent = version.split()[0] != engine
    if lent and any(word in kernel for word in OVER_RANKS):
        expert.clear()
    if min(len(tensor), len(expert)) < 2:
        tensor = expert = max(tensor, expert, key=len)
    if 1 not in tensor:
        tensor[1] = np.maximum.accumulate(2 * tensor[2] - tensor[4])  # timed on two ranks: as much slower again
    measured: Shape = tuple(map(int, shape))  # type: ignore[assignment]
    return ExpertCurves(kernel, version, float(residual), lent, measured, tensor, expert)


def with_engine(hardware: HardwareSpec, engine: str | None) -> HardwareSpec:
    """Return the machine with the kernels of ``NAME`` or ``NAME@VERSION`` where they were measured."""
    name, machine = (engine or "").partition("@")[0], measured_as(hardware)
    kin = KIN.get(machine, machine)
    rows = _rows().get((kin, name), {})
    if not rows:
        return hardware
    if kin != machine:
        return _KNOWN.of((Same(hardware), name), lambda: _started(hardware, rows, load_hardware(kin).kernels))
    return _KNOWN.of((Same(hardware), name), lambda: _overlaid(hardware, rows))


def timed(hardware: HardwareSpec, engine: str | None) -> bool:
    """Whether kernels of ``NAME`` or ``NAME@VERSION`` were measured on the machine."""
    return (measured_as(hardware), (engine or "").partition("@")[0]) in _rows()


def _started(hardware: HardwareSpec, rows: dict[str, dict[str, str]], kin: Kernels) -> HardwareSpec:
    """Return a machine whose products start up as much later than its entry's as an engine's do on its kin.

    That difference has the gap between kernels and the quantisation of activations in it.
    """
    gemm = dict(hardware.kernels.gemm)
    for key, fit in hardware.kernels.gemm.items():
        row = rows.get(f"gemm {key}")
        if row is not None:
            later = max(_parameters(row)["floor_seconds"] - kin.gemm[key].floor_seconds, 0.0)
            note = f"of this machine; under the engine it starts up {format_duration(later)} later, as {row['version']}"
            own: dict[str, Any] = {"timed_alone": False, "quantises": key != "bf16", "median_residual": None}
            gemm[key] = replace(fit, **own, floor_seconds=fit.floor_seconds + later, note=note)
    return replace(hardware, kernels=replace(hardware.kernels, gemm=gemm))


def _parameters(row: dict[str, str]) -> dict[str, float]:
    return {name: float(value) for name, value in (pair.split("=") for pair in row["parameters"].split())}


class EngineKernel(NamedTuple):
    """One measured kernel of an engine: its family or the shape of its experts, and what its fit is."""

    family: str
    kernel: str
    version: str
    median_residual: float
    told: str
    seconds: tuple[float, ...] = ()  # measured times of a whole block of experts on one rank, at 1, 2, 4, ... tokens


def engine_kernels(hardware: HardwareSpec, engine: str) -> list[EngineKernel]:
    """Return the kernels measured under an engine on a machine, fits before curves.

    Raises BadInput where there are none, naming the engines that were measured.
    """
    machine, name = measured_as(hardware), engine.partition("@")[0]
    found = [
        EngineKernel(family, family, row["version"], float(row["median_residual"]), row["parameters"])
        for family, row in _rows().get((machine, name), {}).items()
    ]
    for (own, dtype, *shape), line in _lines(machine).items():
        if own == name:
            curves = _curves(name, line)
            times = tuple(np.exp(curves.tensor[1]).tolist())
            told = ", ".join(format_duration(times[power]) for power in (0, 4, 8, 12))
            family = f"experts {dtype} {'x'.join(shape)}"
            found.append(EngineKernel(family, curves.kernel, curves.version, curves.median_residual, told, times))
    if not found:
        known = sorted(own for other, own in _rows() if other == machine)
        measured = f"measured are {', '.join(known)}" if known else "none was measured on it"
        raise BadInput(f"--engine: no kernel of {engine[:40]!r} was measured on {hardware.name}; {measured}")
    return found


@cache
def _rows() -> dict[tuple[str, str], dict[str, dict[str, str]]]:
    """Rows by machine and engine, then by family."""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for _, row in csv_table(read_text(OPERATORS / "fits.csv"), "fits.csv"):
        found.setdefault((row["machine"], row["engine"]), {})[row["family"]] = row
    for (engine, family), lender in LENDERS.items():
        for (machine, name), rows in found.items():
            lent = found.get((machine, OTHER_LENDERS.get((engine, family, machine), lender)), {}).get(family)
            if name == engine and lent is not None:
                rows.setdefault(family, lent)
    borrower, other, families = ACROSS_TRAYS
    for (machine, name), rows in found.items():
        if machine == borrower:
            rows.update({family: lent for family in families if (lent := found[other, name].get(family))})
    return found


def _overlaid(hardware: HardwareSpec, rows: dict[str, dict[str, str]]) -> HardwareSpec:
    kernels: dict[str, Any] = {name: dict(getattr(hardware.kernels, name)) for name in (*PRODUCTS, "attention_by_head")}
    # An engine's kernel for prompts of grouped queries is not its kernel for MLA's.
    kernels["mla_prefill"] = hardware.kernels.mla_prefill or hardware.kernels.prefill_attention
    collectives = []
    for family, row in rows.items():
        name, _, key = family.partition(" ")
        told: dict[str, Any] = {
            "kind": "fitted",
            "source": SOURCE,
            "version": row["version"],
            "median_residual": float(row["median_residual"]),
        }
        if name == "all_reduce":
            protocols = [_protocol(place, text) for place, text in enumerate(row["parameters"].split(), start=1)]
            scope = hardware.scopes[0].name if len(hardware.scopes) == 1 else hardware.scope_of(int(key)).name
            collectives.append(
                CollectiveFit(**told, op="all_reduce", scope=scope, in_graph=True, ranks=int(key), protocols=protocols)
            )
            continue
        told |= _parameters(row)
        if name in PRODUCTS:
            kernels[name][key] = MatmulFit(**told, quantises=key != "bf16")
        elif key:
            kernels["attention_by_head"][family] = AttentionFit(**told)
        else:
            kernels[name] = KINDS.get(name, AttentionFit)(**told)
    return replace(
        hardware, kernels=replace(hardware.kernels, **kernels), collectives=[*collectives, *hardware.collectives]
    )


def _protocol(place: int, text: str) -> Protocol:
    latency, rate = text.split("/")
    return Protocol(name=f"line {place}", latency_seconds=float(latency), bandwidth_bytes_per_second=float(rate))
