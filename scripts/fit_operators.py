"""Make `hardware/operators/*.csv` from measured operators of serving engines: curves of expert kernels, fits of others.

    python -m scripts.fit_operators DATA

DATA is a folder of Parquet files `system/table/engine/version/` as NVIDIA's AIConfigurator publishes them
(aiconfigurator-core 0.12.0, Apache-2.0), `latency` in milliseconds. Needs polars, which podplan does not.

A curve is a power law between points at 1, 2, 4, ... 16,384 tokens, by least squares of its relative error over all
measured token counts. Experts of a rank were timed with every expert on it under a power-law load (exponent 1.01,
which is closest to loads that were served), and with experts spread by EP under an even one, for what the busiest
rank gets is `planner.balance`'s to say. What is left out or taken back, since a server does not see it, stands in
`scripts/served.py`.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars
from scipy.optimize import least_squares

from hardware.fits import Product, attention_seconds, matmul_seconds
from hardware.loader import hardware_names, load_hardware
from hardware.spec import AttentionFit, Device, Dtype, HardwareSpec, MatmulFit, Number
from planner.costs.attention_operators import WIDEST_WINDOW, in_two
from scripts.fit_linear import linear
from scripts.fit_sparse import sparse
from scripts.fitting import FEWEST, LATENT, VALUE, Array, Bounds, Row, columns, fitted, read, within, work
from scripts.served import BLACKWELL, COLD, POINTS, as_served, fewer_hit, spreads, uncached_microseconds

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
HOLD = 0.02
"""Weight of a straight line through neighbouring points beside that of a measurement: it places what none does."""
ARTEFACT = 1.8
"""A time that is longer than this many times that of a larger batch is left out: a batch can be padded."""
COPIES = 5
"""Weights that products were repeated on in turn (AIConfigurator's collectors)."""
WHAT = ["engines", "kernel", "version"]
SHAPED = ["dtype", "hidden", "intermediate", "experts_per_token", "experts"]
COLUMNS = [*WHAT, *SHAPED, "median_residual", "curves"]
DTYPES = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "int4_wo": "int4",
    "nvfp4": "nvfp4",
    "sq": "int8",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
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
BEYOND: Bounds = {"beyond_fraction": (0.0, 1.0, 0.02, 0.05)}
AGAIN: Bounds = {"again_fraction": (0.0, 1.0, 0.3, 0.3)}
MICRO_IN_MS = 1e-3
ENGINES = ("trtllm", "sglang", "vllm")
FIT_COLUMNS = ["machine", "engine", "family", "version", "rows", "median_residual", "parameters"]
PLACED = "power_law_1.01_eplb"
"""A power-law load whose experts are placed so that ranks have alike, as TensorRT-LLM's of an EP rank were timed."""
UNLIKE = ("nongated", "situ_as_silu")
"""Kernels of other activations than SwiGLU."""
SHAPE = ["hidden_size", "inter_size", "topk", "num_experts"]
DEGREES = ["moe_tp_size", "moe_ep_size"]
Families = tuple[Callable[[Path, str, HardwareSpec], Iterator[Row]], ...]


def users(machine: str, engine: str, dtype: str) -> list[str]:
    """Engines that run an engine's kernel for a dtype, or whose own was not measured and is closest to it.

    TensorRT-LLM's kernels on Blackwell are those that FlashInfer brings to SGLang and vLLM. On Hopper it runs MXFP4 by
    OpenAI's Triton kernels, as vLLM and SGLang do (its server_args.py takes `triton_kernel`, where the one measured
    multiplies weights made BF16 before), and block-scaled FP8 by CUTLASS, as vLLM through FlashInfer. vLLM runs MXFP4
    with MXFP8 activations on Blackwell, which was measured under SGLang alone.
    """
    if engine == "trtllm":
        return ["trtllm"]
    if machine in ("h100", "h200") and dtype.endswith("mxfp4"):
        return ["vllm", "trtllm", "sglang"] if engine == "vllm" else []
    if machine in BLACKWELL and dtype.endswith("mxfp8"):
        return [engine, *({"sglang": ["vllm", "trtllm"], "vllm": ["trtllm"]}[engine])]
    return [engine, "trtllm"] if machine in BLACKWELL or engine == "vllm" else [engine]


def preference(kernel: str, dtype: str) -> tuple[bool, bool, bool]:
    """Order of kernels that one engine has for a shape: the one that it prefers comes first."""
    return not dtype.startswith(("fp8_block", "w4a8")), "trtllm" not in kernel, "triton" in kernel


def main(data: Path) -> None:
    """Write the curves of every machine, and the fits of all."""
    OUT.mkdir(exist_ok=True)
    known = [(data / system, machine) for system, machine in MACHINES.items() if machine in hardware_names()]
    alone = [row for folder, machine in known for row in fits(folder, load_hardware(machine), FAMILIES)]
    write_fits(alone)
    within = [row for folder, machine in known for row in fits(folder, load_hardware(machine), (sparse,))]
    write_fits(alone + within)
    for system, machine in MACHINES.items():
        paths = sorted(data.glob(f"{system}/moe/*/*/moe_perf.parquet"))
        if machine not in BLACKWELL:
            paths += data.glob(f"{system}/moe/trtllm/*/wideep_moe_perf.parquet")
        rows = [row for path in paths for row in curves(path, machine)]
        best: dict[tuple[object, ...], dict[str, object]] = {}
        for row in sorted(rows, key=lambda row: row["rank"]):
            shape = tuple(row[name] for name in SHAPED)
            own = [name for name in row["engines"] if (name, *shape) not in best]
            if own:
                kept = row | {"engines": " ".join(own)}
                best |= {(name, *shape): kept for name in own}
        kept = list({id(row): row for row in best.values()}.values())
        with (OUT / f"{machine}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(kept, key=lambda row: [str(row[name]) for name in ("engines", *SHAPED)]))
        off = float(np.median([row["median_residual"] for row in kept]))
        print(f"{machine}: {len(kept)} kernels and shapes, median residual {off:.2%}")


def curves(path: Path, machine: str) -> Iterator[dict[str, object]]:
    """Yield one row per kernel and shape of a table: the curves of all measured TP and EP degrees."""
    engine, version = path.parts[-3:-1]
    table = read(path).filter(polars.col("distribution").is_in(["power_law_1.01", "balanced", PLACED]))
    if "num_slots" in table.columns:
        placed = (polars.col("distribution") == PLACED) & (polars.col("num_slots") == polars.col("num_experts"))
        table = table.filter(placed & (polars.col("moe_dtype") == "fp8_block"))
    for dtype, shape, kernel, group in kernels(table):
        if any(word in kernel for word in UNLIKE) or shape[2] == 22 or shape[1] in (1856, 2688):
            continue
        measured, off, spread = [], [], spreads(group)
        for (tp, ep), own in sorted(group.group_by(DEGREES), key=lambda item: item[0]):
            wanted = "power_law_1.01" if ep == 1 else "balanced"
            even = PLACED not in own["distribution"]
            own = own.filter(polars.col("distribution") == (wanted if even else PLACED))
            own = own.group_by("num_tokens").agg(polars.col("latency").median())
            if (tp > 1 and ep > 1) or tp > 16 or len(own) < 20 or (ep > 1 and not spread):
                continue
            own = own.sort("num_tokens")
            tokens, milliseconds = own["num_tokens"].to_numpy(), own["latency"].to_numpy()
            later = np.minimum.accumulate(milliseconds[::-1])[::-1]
            plausible = milliseconds <= ARTEFACT * later
            points, errors = curve(tokens[plausible], milliseconds[plausible] * 1e3)
            if ep > 1 and even:
                points = points * fewer_hit(points, shape[3] / shape[2])
            points = np.maximum(points, uncached_microseconds(load_hardware(machine), DTYPES[dtype], shape, (tp, ep)))
            measured.append(f"{tp} {ep} " + " ".join(f"{point:.3g}" for point in points))
            off.append(errors)
        if measured and (measured[0].startswith("1 1 ") or PLACED in group["distribution"]):
            residual = float(np.median(np.abs(np.concatenate(off))))
            users_of = users(machine, engine, dtype)
            yield {
                "rank": (engine not in users_of[:1], preference(kernel, dtype)),
                "engines": users_of,
                "kernel": kernel,
                "version": f"{engine} {version}",
                "dtype": DTYPES[dtype],
                **dict(zip(SHAPED[1:], shape, strict=True)),
                "median_residual": round(residual, 3),
                "curves": ";".join(measured),
            }


def kernels(table: polars.DataFrame) -> Iterator[tuple[str, list[int], str, polars.DataFrame]]:
    """Yield dtype, shape, kernel and times: of one that takes whole experts on one rank, with what the engine runs
    in its place over several (vLLM's block-scaled FP8 on Hopper: Triton, and CUTLASS over EP), or of placed ones.
    """
    for (dtype, *shape), alike in table.group_by("moe_dtype", *SHAPE, maintain_order=True):
        own = {kernel: times for (kernel,), times in alike.group_by("kernel_source", maintain_order=True)}
        degrees = {kernel: set(times.select(DEGREES).iter_rows()) for kernel, times in own.items()}
        for kernel, times in own.items():
            if PLACED in times["distribution"]:
                yield dtype, shape, kernel, times
            elif (1, 1) in degrees[kernel]:
                more = [name for name in own if (1, 1) not in degrees[name] and not degrees[name] & degrees[kernel]]
                yield dtype, shape, " + ".join([kernel, *more]), polars.concat([times, *(own[name] for name in more)])


def curve(tokens: np.ndarray, microseconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points at powers of two by least squares in logarithms, and the relative error at each measurement."""
    place = np.log2(tokens)
    left = np.minimum(place.astype(int), POINTS - 2)
    design = np.zeros((len(tokens), POINTS))
    design[np.arange(len(tokens)), left] = 1 - (place - left)
    design[np.arange(len(tokens)), left + 1] += place - left
    straight = HOLD * np.diff(np.eye(POINTS), 2, axis=0)
    target = np.concatenate([np.log(microseconds), np.zeros(len(straight))])
    found = np.linalg.lstsq(np.concatenate([design, straight]), target, rcond=None)[0]
    return np.exp(found), np.exp(design @ found) / microseconds - 1


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
            kept = as_served(hw, COPIES * product.moved_bytes(key), product.moved_bytes(key), time)
            product = Product(1.0, rows[kept], columns[kept], depth[kept])
            seconds = partial(products, hw.device, key, product)
            yield fitted(family, version, hw.kernels.gemm[key], MATMUL, seconds, time[kept])


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
    kept = as_served(hw, shape.moved, shape.moved, time) if "decode" in family else np.ones(len(time), dtype=bool)
    flops, moved, keys, head, rows = (each[kept] for each in shape)
    outside = tuple(each[kept] for each in beyond or (np.zeros_like(time), np.zeros_like(time)))
    if np.mean(moved / time[kept] > hw.device.memory_bandwidth_bytes_per_second.value) > COLD:
        return  # TensorRT-LLM 1.0's on A100 reads 1.6 times what the memory gives

    def seconds(fit: AttentionFit) -> Number:
        more, read_too = ((fit.beyond_fraction + fit.again_fraction) * each for each in outside)
        seen = keys * (1.0 + more / flops)
        return attention_seconds(hw.device, fit, flops + more, moved + read_too, seen, head, rows)

    yield fitted(family, " ".join(path.parts[-3:-1]), hw.kernels.gqa_decode, bounds, seconds, time[kept])


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
