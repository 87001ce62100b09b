"""A machine as one serving engine uses it: the engine's own kernels over those of the entry (`operators/fits.csv`)."""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ground.errors import BadInput
from ground.files import read_text
from ground.identity import Kept, Same
from ground.tables import csv_table
from ground.units import format_duration
from hardware.curves import OPERATORS, SOURCE, expert_kernels, measured_as
from hardware.spec import AttentionFit, CollectiveFit, HardwareSpec, MatmulFit, Protocol

PRODUCTS = ("gemm", "gemm_static")
LENDERS = {("vllm", "gemm fp8"): "sglang", ("trtllm", "gemm nvfp4"): "vllm"}
"""Engines whose kernel was timed eagerly or untuned, and another that runs the same one (DeepGEMM, CUTLASS)."""
ACROSS_TRAYS = ("gb200", "gb300", ("all_reduce 8", "all_reduce 16"))
"""A rack whose sums within a tray alone were measured, the rack whose sums over trays stand in, and which they are."""


def with_engine(hardware: HardwareSpec, engine: str | None) -> HardwareSpec:
    """Return the machine with the kernels of ``NAME`` or ``NAME@VERSION`` where they were measured."""
    name = (engine or "").partition("@")[0]
    rows = _rows().get((measured_as(hardware), name), {}) if name else {}
    if not rows:
        return hardware
    return _KNOWN.of((Same(hardware), name), lambda: _overlaid(hardware, rows))


class EngineKernel(NamedTuple):
    """One measured kernel of an engine: its family or the shape of its experts, and what its fit is."""

    family: str
    kernel: str
    version: str
    median_residual: float
    told: str
    seconds: tuple[float, ...] = ()
    """Measured times of a whole block of experts on one rank, at 1, 2, 4, ... tokens."""


def engine_kernels(hardware: HardwareSpec, engine: str) -> list[EngineKernel]:
    """Return the kernels measured under an engine on a machine, fits before curves.

    Raises BadInput where there are none, naming the engines that were measured.
    """
    machine, name = measured_as(hardware), engine.partition("@")[0]
    found = [
        EngineKernel(family, family, row["version"], float(row["median_residual"]), row["parameters"])
        for family, row in _rows().get((machine, name), {}).items()
    ]
    for (own, dtype, *shape), curves in expert_kernels(machine):
        if own == name:
            times = tuple(np.exp(curves.tensor[1]).tolist())
            told = ", ".join(format_duration(times[power]) for power in (0, 4, 8, 12))
            family = f"experts {dtype} {'x'.join(shape)}"
            found.append(EngineKernel(family, curves.kernel, curves.version, curves.median_residual, told, times))
    if not found:
        known = sorted(own for other, own in _rows() if other == machine)
        measured = f"measured are {', '.join(known)}" if known else "none was measured on it"
        raise BadInput(f"--engine: no kernel of {engine[:40]!r} was measured on {hardware.name}; {measured}")
    return found


_KNOWN = Kept[HardwareSpec](most=32)
"""Machines that were asked for: one question has one machine."""


@cache
def _rows() -> dict[tuple[str, str], dict[str, dict[str, str]]]:
    """Rows by machine and engine, then by family."""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for _, row in csv_table(read_text(OPERATORS / "fits.csv"), "fits.csv"):
        found.setdefault((row["machine"], row["engine"]), {})[row["family"]] = row
    for (engine, family), lender in LENDERS.items():
        for (machine, name), rows in found.items():
            lent = found.get((machine, lender), {}).get(family)
            if name == engine and lent is not None:
                rows.setdefault(family, lent)
    borrower, other, families = ACROSS_TRAYS
    for (machine, name), rows in found.items():
        if machine == borrower:
            rows.update({family: lent for family in families if (lent := found[other, name].get(family))})
    return found


def _overlaid(hardware: HardwareSpec, rows: dict[str, dict[str, str]]) -> HardwareSpec:
    kernels: dict[str, Any] = {name: dict(getattr(hardware.kernels, name)) for name in PRODUCTS}
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
        told |= {name: float(value) for name, value in (pair.split("=") for pair in row["parameters"].split())}
        if name in PRODUCTS:
            kernels[name][key] = MatmulFit(**told, quantises=key != "bf16")
        else:
            kernels[name] = AttentionFit(**told)
    return replace(
        hardware, kernels=replace(hardware.kernels, **kernels), collectives=[*collectives, *hardware.collectives]
    )


def _protocol(place: int, text: str) -> Protocol:
    latency, rate = text.split("/")
    return Protocol(name=f"line {place}", latency_seconds=float(latency), bandwidth_bytes_per_second=float(rate))
