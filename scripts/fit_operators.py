"""Make `hardware/operators/*.csv` from measured operators of serving engines: curves of expert kernels, fits of others.

    python -m scripts.fit_operators DATA

DATA is a folder of Parquet files `system/table/engine/version/` as NVIDIA's AIConfigurator publishes them
(aiconfigurator-core 0.12.0, Apache-2.0), `latency` in milliseconds. Needs polars, which podplan does not.

What is left out or taken back, since a server does not see it, stands in `scripts/served.py`; attention, experts,
delta-net layers and sparse attention have files of their own.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars
from scipy.optimize import least_squares

from hardware.fits import Product, matmul_seconds
from hardware.loader import hardware_names, load_hardware
from hardware.spec import Device, Dtype, HardwareSpec, MatmulFit, Number
from scripts import fit_held_out
from scripts.fit_attention import attention, mla
from scripts.fit_experts import write_curves
from scripts.fit_linear import linear
from scripts.fit_sparse import sparse
from scripts.fitting import ARTEFACT, DTYPES, Array, Bounds, Measured, Row, fitted, read
from scripts.served import as_served

OUT = Path(__file__).parents[1] / "hardware" / "operators"
MACHINES = {
    "a100_sxm": "a100",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
COPIES = 5
"""Weights that products were repeated on in turn (AIConfigurator's collectors)."""
GEMMS = {
    "bfloat16": "gemm bf16",
    "fp8_block": "gemm fp8",
    "fp8": "gemm_static fp8",
    "nvfp4": "gemm nvfp4",
    "sq": "gemm int8",
}
UNUSED = {("vllm", "fp8_block"): "timed eagerly", ("trtllm", "nvfp4"): "not autotuned"}
"""Tables of products that are not what a server runs; ``hardware.engines.LENDERS`` says what stands in."""
MATMUL: Bounds = {
    "peak_fraction": (0.01, 1.0, 0.7, 0.3),
    "half_rows": (0.0, 2000.0, 30.0, 50.0),
    "half_depth": (0.0, 8000.0, 200.0, 300.0),
    "half_columns": (0.0, 8000.0, 200.0, 300.0),
    "half_outputs": (0.0, 6.4e7, 1e5, 2e5),
    "memory_fraction": (0.05, 1.0, 0.8, 0.3),
    "serial_fraction": (0.0, 1.0, 0.3, 0.3),
    "floor_seconds": (0.0, 1e-3, 5e-6, 5e-6),
    "depth_seconds": (0.0, 1e-8, 1e-10, 2e-10),
}
MICRO_IN_MS = 1e-3
ENGINES = ("trtllm", "sglang", "vllm")
FIT_COLUMNS = ["machine", "engine", "family", "version", "rows", "median_residual", "parameters"]
Families = tuple[Callable[[Path, str, HardwareSpec], Iterator[Row]], ...]


def main(data: Path) -> None:
    """Write the curves of every machine, and the fits of all."""
    OUT.mkdir(exist_ok=True)
    known = [(data / system, machine) for system, machine in MACHINES.items() if machine in hardware_names()]
    alone = [row for folder, machine in known for row in fits(folder, load_hardware(machine), FAMILIES)]
    write_fits(alone)
    within = [row for folder, machine in known for row in fits(folder, load_hardware(machine), (sparse,))]
    write_fits(alone + within)
    for system, machine in MACHINES.items():
        write_curves(data, system, machine, OUT)
    fit_held_out.write()


def write_fits(rows: list[Row]) -> None:
    """Write the fits, those of a machine and engine together."""
    places = list(MACHINES.values())
    with (OUT / "fits.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIT_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (places.index(row["machine"]), ENGINES.index(row["engine"]))))


def fits(folder: Path, hw: HardwareSpec, families: Families) -> Iterator[Row]:
    """Yield the fits of every engine's kernels of some families on one machine."""
    for engine in ENGINES:
        for family in families:
            yield from (row | {"machine": hw.name, "engine": engine} for row in family(folder, engine, hw))


def gemm(folder: Path, engine: str, hw: HardwareSpec) -> Iterator[Row]:
    """Yield dense products by dtype, with the quantisation of activations that runs before them.

    Where a checkpoint states one scale beforehand, what finds it (`computescale`) is no part of them, and under
    TensorRT-LLM neither is the quantisation itself (`scale_matrix`): the norm or the activation before writes FP8.
    """
    for path in folder.glob(f"gemm/{engine}/*/gemm_perf.parquet"):
        version = f"{engine} {path.parts[-2]}"
        table = read(path).filter(polars.col("m") <= 16384)
        for side in ("n", "k"):
            table = table.filter(polars.col(side) >= 256)
        for dtype, family in GEMMS.items():
            if (engine, dtype) in UNUSED:
                continue
            own = table.filter(polars.col("gemm_dtype") == dtype)
            key: Dtype = DTYPES[dtype]  # type: ignore[assignment]
            if key not in hw.kernels.gemm or key not in hw.device.peak_flops_per_second or len(own) < 200:
                continue
            rows, columns, depth, time = (own[name].to_numpy().astype(float) for name in ("m", "n", "k", "latency"))
            if dtype == "fp8":
                for before in ("computescale", "scale_matrix")[: 2 if engine == "trtllm" else 1]:
                    time = time - quantisation(folder, engine, before, rows, depth)
            time = np.maximum(time, 2 * MICRO_IN_MS) / 1e3
            product = Product(1.0, rows, columns, depth)
            most = as_served(hw, COPIES * product.moved_bytes(key), product.moved_bytes(key), time)
            seconds = partial(products, hw.device, key, product)
            yield fitted(family, version, hw.kernels.gemm[key], MATMUL, seconds, Measured(time, most))


def products(device: Device, dtype: Dtype, product: Product, fit: MatmulFit) -> Number:
    """``matmul_seconds`` with the fit last."""
    return matmul_seconds(device, dtype, fit, product)


def quantisation(folder: Path, engine: str, table: str, rows: Array, depth: Array) -> Array:
    """Milliseconds of a step of quantisation at the shapes of products, linear in elements between measured ones."""
    paths = list(folder.glob(f"quantize/{engine}/*/{table}_perf.parquet"))
    if not paths:
        return np.zeros_like(rows)
    own = read(paths[0]).filter(polars.col("quant_dtype") == "fp8")
    own = (
        own.with_columns(elements=polars.col("m") * polars.col("k"))
        .group_by("elements")
        .agg(polars.col("latency").median())
    )
    own = own.sort("elements")
    return np.interp(rows * depth, own["elements"].to_numpy(), own["latency"].to_numpy())


def all_reduce(folder: Path, engine: str, hw: HardwareSpec) -> Iterator[Row]:
    """Yield the engine's own all-reduce in a captured graph by number of devices: the fastest of four lines."""
    for path in folder.glob(f"comm/{engine}/*/custom_allreduce_perf.parquet"):
        table = read(path)
        table = table.filter(~polars.col("kernel_source").str.contains("eager"))
        for (ranks,), own in sorted(table.group_by("num_gpus"), key=lambda item: item[0]):
            own = own.sort("message_size")
            wire = own["message_size"].to_numpy() * 2.0 * 2 * (ranks - 1) / ranks
            time = own["latency"].to_numpy().astype(float) / 1e3
            kept = np.minimum.accumulate(time[::-1])[::-1] * ARTEFACT >= time
            wire, time = wire[kept], time[kept]
            lines = []
            for some in np.array_split(np.arange(len(wire)), 4):
                rate = max((wire[some[-1]] - wire[some[0]]) / max(time[some[-1]] - time[some[0]], 1e-7), 1e9)
                lines += [max(float(np.median(time[some] - wire[some] / rate)), 1e-6), rate]
            size = np.array(lines)
            off_by = partial(off_lines, wire, time, size)
            found = least_squares(off_by, np.ones(8), bounds=(0.05, 20), loss="soft_l1", f_scale=0.1)
            off = float(np.median(np.abs(off_by(found.x))))
            told = " ".join(f"{latency:.3g}/{rate:.3g}" for latency, rate in (found.x * size).reshape(-1, 2))
            yield {"family": f"all_reduce {ranks}", "version": " ".join(path.parts[-3:-1]), "rows": len(time)} | {
                "median_residual": f"{off:.3f}",
                "parameters": told,
            }


def off_lines(wire: Array, time: Array, size: Array, scaled: Array) -> Array:
    """Relative errors of the fastest of some lines, [latency, rate] each, scaled."""
    return np.min([latency + wire / rate for latency, rate in (scaled * size).reshape(-1, 2)], axis=0) / time - 1


FAMILIES: Families = (gemm, attention, mla, all_reduce, linear)
"""Kernels that were timed alone."""

if __name__ == "__main__":
    main(Path(sys.argv[1]))
