"""Fits of attention kernels of serving engines, as `scripts.fit_operators` writes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars

from hardware.fits import attention_seconds
from hardware.spec import AttentionFit, HardwareSpec, Number
from planner.costs.attention_operators import WIDEST_WINDOW, in_two
from scripts.fitting import (
    FEWEST,
    LATENT,
    NONE,
    VALUE,
    Array,
    Bounds,
    Measured,
    Row,
    columns,
    fitted,
    read,
    within,
    work,
)
from scripts.served import BLACKWELL, COLD, as_served

ATTENTION: Bounds = {
    "peak_fraction": (0.01, 1.0, 0.6, 0.3),
    "half_length": (0.0, 20000.0, 500.0, 500.0),
    "memory_fraction": (0.05, 1.0, 0.8, 0.3),
    "serial_fraction": (0.0, 1.0, 0.2, 0.3),
    "floor_seconds": (0.0, 1e-3, 1e-5, 1e-5),
}
HEAD: Bounds = {"half_head": (0.0, 1000.0, 20.0, 30.0)}
FILLED: Bounds = {"half_queries": (0.0, 1e6, 5e3, 5e3)}
ATTENDED: tuple[tuple[str, str, bool, tuple[int, ...]], ...] = (
    ("generation", "gqa_decode", False, (64, 128)),
    ("context", "prefill_attention", False, (64, 128, 256)),
    ("generation", "gqa_decode", False, (256,)),
    *(("generation", "window_gqa_decode", True, (size,)) for size in (64, 128, 256)),
    *(("context", "window_prefill_attention", True, (size,)) for size in (64, 128, 256)),
)
"""Kinds of attention that are fitted: table, family, whether layers see a window, and elements of a head."""
SLOW: Bounds = {"slow_fraction": (0.0, 5.0, 0.5, 0.5), "slow_seconds": (0.0, 1e-3, 5e-6, 5e-6)}
BEYOND: Bounds = {"beyond_fraction": (0.0, 1.0, 0.02, 0.05)}
AGAIN: Bounds = {"again_fraction": (0.0, 1.0, 0.3, 0.3)}


def attention(folder: Path, engine: str, hw: HardwareSpec) -> Iterator[Row]:
    """Yield grouped-query attention of running requests and of prompts, by the type of the cache.

    Heads that each have keys and values of their own are left out: TensorRT-LLM on Hopper has another kernel for them.
    Of several kernels the one that most shapes with heads of 128 ran counts. How much slower narrow heads are is fitted
    for prompts; running requests are bound by memory, and wider heads there are another kernel's. Layers that see a
    window, whose tiles have two edges, have fits of their own for each size of head, where the kernel is that of full
    attention: SGLang on Hopper and TensorRT-LLM on Blackwell run another one for Gemma 4 alone.
    """
    peaks = hw.device.peak_flops_per_second
    for kind, family, windowed, sizes in ATTENDED:
        for path in folder.glob(f"attention/{engine}/*/{kind}_attention_perf.parquet"):
            table = read(path).filter(
                polars.col("head_dim").is_in(sizes)
                & (polars.col("num_heads") <= 16 * polars.col("num_key_value_heads").clip(lower_bound=1))
                & (polars.col("step" if kind == "generation" else "isl") >= 127)
            )
            for cache, suffix in (("bfloat16", ""), ("fp8", "_fp8")):
                own = table.filter(polars.col("kv_cache_dtype") == cache)
                if kind == "context" and cache in own["attn_dtype"]:
                    own = own.filter(polars.col("attn_dtype") == cache)
                if kind == "generation":
                    own = own.filter(polars.col("num_heads") > polars.col("num_key_value_heads"))
                    own = own.filter(polars.col("num_key_value_heads") > 0)
                full = own.filter(polars.col("window_size") == 0)
                usual = full.filter(polars.col("head_dim") == sizes[len(sizes) // 2])["kernel_source"].mode().sort()
                own = own.filter(polars.col("window_size").is_between(1, WIDEST_WINDOW)) if windowed else full
                own = own.filter(polars.col("kernel_source").is_in(usual[:1]))
                if len(own) < 200 or (suffix and "fp8" not in peaks):
                    continue
                heads, kept, size = columns(own, "num_heads", "num_key_value_heads", "head_dim")
                queries, all_pairs, all_cached = work(own, kind)
                pairs, cached = within(own, kind) if windowed else (all_pairs, all_cached)
                per_key = kept * 2 * size * (1 if suffix else 2)
                share = peaks["bf16"].value / peaks["fp8"].value if suffix and kind == "context" else 1.0
                per_pair = 4 * heads * size * share
                moved = cached * per_key + queries * heads * size * 4
                shape = Work(pairs * per_pair, moved, pairs / queries, size, queries * heads)
                bounds = ATTENTION | HEAD if kind == "context" and len(np.unique(size)) > 1 else ATTENTION
                bounds = bounds | BEYOND if windowed else bounds
                bounds = bounds | FILLED if kind == "context" and not windowed else bounds
                beyond = (all_pairs - pairs) * per_pair, (all_cached - cached) * per_key
                name = family + suffix + (f" {sizes[0]}" if len(sizes) == 1 else "")
                yield from attended(name, path, hw, own, shape, bounds, beyond)


def mla(folder: Path, engine: str, hw: HardwareSpec) -> Iterator[Row]:
    """Yield latent attention, absorbed for running requests and unabsorbed for prompts (DeepSeek-V3's dimensions)."""
    peaks = hw.device.peak_flops_per_second
    for path in folder.glob(f"mla/{engine}/*/generation_mla_perf.parquet"):
        for cache, suffix in (("bfloat16", ""), ("fp8", "_fp8")):
            own = read(path).filter((polars.col("kv_cache_dtype") == cache) & (polars.col("step") >= 127))
            own = own.filter(polars.col("num_heads") >= FEWEST)
            if len(own) < 200 or (suffix and "fp8" not in peaks):
                continue
            (heads,) = columns(own, "num_heads")
            queries, pairs, cached = work(own, "generation")
            moved = cached * LATENT * (1 if suffix else 2) + queries * heads * (LATENT + VALUE) * 2
            share = peaks["bf16"].value / peaks["fp8"].value if suffix else 1.0
            flops = pairs * 2 * heads * (LATENT + VALUE) * share
            shape = Work(flops, moved, pairs / queries, np.full_like(flops, np.inf), queries * heads)
            again = np.zeros_like(flops), in_two(heads) * cached * LATENT * (1 if suffix else 2)
            bounds = ATTENTION | AGAIN if hw.name in BLACKWELL else ATTENTION
            yield from attended(f"mla_decode{suffix}", path, hw, own, shape, bounds, again)
    for path in folder.glob(f"mla/{engine}/*/context_mla_perf.parquet"):
        own = read(path).filter((polars.col("kv_cache_dtype") == "bfloat16") & (polars.col("isl") >= 127))
        own = own.filter(polars.col("num_heads") >= FEWEST)
        own = own.filter(polars.col("kernel_source") != "flash_attention")  # on latents, where SGLang expands them
        if len(own) >= 200:
            (heads,) = columns(own, "num_heads")
            queries, pairs, cached = work(own, "context")
            moved = (queries + cached) * heads * (192 + 128) * 2
            flops, wide = pairs * 2 * heads * (192 + 128), np.full_like(moved, np.inf)
            shape = Work(flops, moved, pairs / queries, wide, queries * heads)
            yield from attended("mla_prefill", path, hw, own, shape, ATTENTION | FILLED)


class Work(NamedTuple):
    """FLOP, bytes, mean keys per query, elements of a head, and queries times heads."""

    flops: Array
    moved: Array
    keys: Array
    head: Array
    rows: Array


def attended(
    family: str,
    path: Path,
    hw: HardwareSpec,
    table: polars.DataFrame,
    shape: Work,
    bounds: Bounds = ATTENTION,
    beyond: tuple[Array, Array] | None = None,
) -> Iterator[Row]:
    """Yield the fit of an attention kernel, if its times can be.

    ``beyond``: FLOP and bytes of keys outside a window, or of latents that a second tile of heads reads.
    """
    time = table["latency"].to_numpy().astype(float) / 1e3
    # What a prompt's attention reads was written just before it
    measured = Measured(time, as_served(hw, shape.moved, shape.moved, time) if "decode" in family else time)
    flops, moved, keys, head, rows = shape
    outside, told = beyond or (np.zeros_like(time), np.zeros_like(time)), measured.told
    if np.mean((moved / time)[told] > hw.device.memory_bandwidth_bytes_per_second.value) > COLD:
        return  # TensorRT-LLM 1.0's on A100 reads 1.6 times what the memory gives

    def seconds(fit: AttentionFit) -> Number:
        more, read_too = ((fit.beyond_fraction + fit.again_fraction) * each for each in outside)
        seen = keys * (1.0 + more / flops)
        return attention_seconds(hw.device, fit, flops + more, moved + read_too, seen, head, rows)

    more = SLOW if "gqa_decode" in family else NONE
    yield fitted(family, " ".join(path.parts[-3:-1]), hw.kernels.gqa_decode, bounds, seconds, measured, more)
