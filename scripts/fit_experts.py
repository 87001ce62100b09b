"""Curves of expert kernels of serving engines, as `scripts.fit_operators` writes them.

A curve is a power law between points at 1, 2, 4, ... 16,384 tokens, by least squares of its relative error over all
measured token counts. It is that of a rank with its share of a power-law load (exponent 1.01, which is closest to loads
that were served). With every expert on one rank that was timed; with experts spread by EP the busiest rank was timed
under that load, whose share is `planner.balance`'s to say, and each rank under an even one. So a curve over EP is that
of the even load times what the power law changes where one rank has all experts, and no more than the busiest rank
takes. What the busiest rank of two takes for its tokens is met within 3 % (`scripts.served.skewed`); the even load
alone is 12 % too slow at 32 to 128 tokens and 7 % too quick from 2,048.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars

from hardware.loader import load_hardware
from scripts.fitting import ARTEFACT, DTYPES, read
from scripts.served import BLACKWELL, POINTS, skewed, spreads, uncached_microseconds

HOLD = 0.02
"""Weight of a straight line through neighbouring points beside that of a measurement: it places what none does."""
WHAT = ["engines", "kernel", "version"]
SHAPED = ["dtype", "hidden", "intermediate", "experts_per_token", "experts"]
COLUMNS = [*WHAT, *SHAPED, "median_residual", "curves"]
LAW, EVEN, PLACED = "power_law_1.01", "balanced", "power_law_1.01_eplb"
"""Loads; the last is a power law whose experts are placed so that ranks have alike, as TensorRT-LLM timed EP ranks."""
UNLIKE = ("nongated", "situ_as_silu")
"""Kernels of other activations than SwiGLU."""
SHAPE = ["hidden_size", "inter_size", "topk", "num_experts"]
DEGREES = ["moe_tp_size", "moe_ep_size"]


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


def write_curves(data: Path, system: str, machine: str, out: Path) -> None:
    """Write the curves of a machine, of each engine and shape those of the kernel that it prefers."""
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
    with (out / f"{machine}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(kept, key=lambda row: [str(row[name]) for name in ("engines", *SHAPED)]))
    off = float(np.median([row["median_residual"] for row in kept]))
    print(f"{machine}: {len(kept)} kernels and shapes, median residual {off:.2%}")


def curves(path: Path, machine: str) -> Iterator[dict[str, object]]:
    """Yield one row per kernel and shape of a table: the curves of all measured TP and EP degrees."""
    engine, version = path.parts[-3:-1]
    table = read(path).filter(polars.col("distribution").is_in([LAW, EVEN, PLACED]))
    if "num_slots" in table.columns:
        placed = (polars.col("distribution") == PLACED) & (polars.col("num_slots") == polars.col("num_experts"))
        table = table.filter(placed & (polars.col("moe_dtype") == "fp8_block"))
    for dtype, shape, kernel, group in kernels(table):
        if any(word in kernel for word in UNLIKE) or shape[2] == 22 or shape[1] in (1856, 2688):
            continue
        measured, off, spread, whole = [], [], spreads(group), {}
        for (tp, ep), own in sorted(group.group_by(DEGREES), key=lambda item: item[0]):
            timed = {load: found for load in (LAW, EVEN, PLACED) if (found := timed_under(own, load)) is not None}
            if (tp > 1 and ep > 1) or tp > 16 or timed.keys() <= {EVEN} or (ep > 1 and not spread):
                continue
            points, errors = timed.get(PLACED) or timed[LAW]
            whole = whole or {load: found for load, (found, _) in timed.items()}
            if ep > 1 and EVEN in timed:
                even, errors = timed[EVEN]
                points = skewed((even, points), (whole.get(EVEN), whole.get(LAW)), shape[3] / shape[2])
            elif ep > 1 and PLACED not in timed:
                continue
            points = np.maximum(points, uncached_microseconds(load_hardware(machine), DTYPES[dtype], shape, (tp, ep)))
            measured.append(f"{tp} {ep} " + " ".join(f"{point:.3g}" for point in rising(points)))
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


def timed_under(own: polars.DataFrame, load: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the curve of the times under a load and its relative errors; None where too few tokens were timed."""
    times = own.filter(polars.col("distribution") == load).group_by("num_tokens").agg(polars.col("latency").median())
    if len(times) < 20:
        return None
    times = times.sort("num_tokens")
    tokens, milliseconds = times["num_tokens"].to_numpy(), times["latency"].to_numpy()
    later = np.minimum.accumulate(milliseconds[::-1])[::-1]
    plausible = milliseconds <= ARTEFACT * later
    return curve(tokens[plausible], milliseconds[plausible] * 1e3)


def rising(points: np.ndarray) -> np.ndarray:
    """Return the curve that never falls and is at most as far from any point as one must be: more tokens are no less
    work, but each count of tokens was timed on one random load, for which kernels choose their tiles.
    """
    return (np.maximum.accumulate(points) + np.minimum.accumulate(points[::-1])[::-1]) / 2


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
