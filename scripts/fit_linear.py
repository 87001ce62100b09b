"""Fit the kernels of gated delta-net layers: the step of the state, the short convolution, and prompts in chunks."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars

from hardware.engines import SOURCE
from hardware.spec import ChunkFit, HardwareSpec, Number, VectorFit
from planner.costs.sparse_attention import chunk_flops
from scripts.fitting import Array, Bounds, Measured, Row, fitted, read
from scripts.served import COLD, as_served

VECTOR: Bounds = {"memory_fraction": (0.01, 1.0, 0.6, 0.3), "floor_seconds": (0.0, 1e-3, 4e-6, 4e-6)}
CHUNK: Bounds = {
    "peak_fraction": (0.001, 1.0, 0.1, 0.1),
    "token_seconds": (0.0, 1e-6, 2e-8, 2e-8),
    "floor_seconds": (0.0, 1e-3, 3e-5, 3e-5),
}
LEAST_ROWS = 20


def linear(folder: Path, engine: str, hw: HardwareSpec) -> Iterator[Row]:
    """Yield the fits of one engine on one machine."""
    convolves, prompts = polars.col("kernel_source").str.contains("conv"), polars.col("phase") == "context"
    for path in folder.glob(f"linear_attention/{engine}/*/gdn_perf.parquet"):
        table, version = read(path), f"{engine} {path.parts[-2]}"
        bandwidth = hw.device.memory_bandwidth_bytes_per_second.value
        for family, own in (
            ("recurrence", table.filter(~convolves & ~prompts)),
            ("convolution", table.filter(convolves)),
        ):
            moved, time = moved_bytes(own, family), own["latency"].to_numpy().astype(float) / 1e3
            held = moved / 2 if family == "recurrence" else moved  # a state is written where it was read
            measured = Measured(time, as_served(hw, held, moved, time))
            told = measured.told
            # TensorRT-LLM's convolution is said to read 2.5 times what the memory gives
            if told.sum() >= LEAST_ROWS and np.mean(moved[told] > bandwidth * time[told]) < COLD:
                yield fitted(
                    family, version, hw.kernels.vector, VECTOR, partial(vector_seconds, moved / bandwidth), measured
                )
        # Chunks of one prompt wait for each other, which many prompts at once would hide: a server whose requests end
        # one by one takes them in one by one.
        own = table.filter(~convolves & prompts & (polars.col("batch_size") == 1) & (polars.col("seq_len") >= 127))
        if len(own) >= LEAST_ROWS:
            tokens, heads, key, value = numbers(own, "num_tokens", "num_v_heads", "head_k_dim", "head_v_dim")
            flops = tokens * heads * np.vectorize(chunk_flops)(key, value)
            form = ChunkFit(kind="fitted", source=SOURCE, version="", peak_fraction=1, token_seconds=0, floor_seconds=0)
            seconds = partial(chunk_seconds, flops / hw.device.peak_flops_per_second["bf16"].value, tokens)
            time = own["latency"].to_numpy().astype(float) / 1e3
            yield fitted("chunkwise", version, form, CHUNK, seconds, Measured(time, time))


def moved_bytes(table: polars.DataFrame, family: str) -> Array:
    """Bytes read and written: FP32 states and BF16 operands, or inputs and outputs and, of a running request, the
    inputs before.
    """
    keys, values, key, value = numbers(table, "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    width, tokens, batch = numbers(table, "d_conv", "num_tokens", "batch_size")
    if family == "recurrence":
        return batch * (2 * 4.0 * values * key * value + 2 * 2.0 * (keys * key + values * value))
    running = batch * (table["phase"] == "generation").to_numpy()
    return (2 * keys * key + values * value) * (4.0 * tokens + 4.0 * (width - 1) * running)


def numbers(table: polars.DataFrame, *names: str) -> list[Array]:
    """Columns as arrays of floats."""
    return [table[name].to_numpy().astype(float) for name in names]


def vector_seconds(least: Array, fit: VectorFit) -> Number:
    """Seconds of element-wise work that takes ``least`` at the memory's rate."""
    return least / fit.memory_fraction + fit.floor_seconds


def chunk_seconds(least: Array, tokens: Array, fit: ChunkFit) -> Number:
    """Seconds of prompts in chunks whose products take ``least`` at the peak (``hardware.spec.ChunkFit``)."""
    return least / fit.peak_fraction + fit.token_seconds * tokens + fit.floor_seconds
