"""Make `hardware/operators/*.csv` from measured operators of serving engines: one curve per kernel and model shape.

    python scripts/fit_operators.py DATA

DATA is a folder of Parquet files `system/table/engine/version/` as NVIDIA's AIConfigurator publishes them
(aiconfigurator-core 0.12.0, Apache-2.0), `latency` in milliseconds. Needs polars, which podplan does not.

A curve is a power law between points at 1, 2, 4, ... 16,384 tokens, by least squares of its relative error over all
measured token counts. Experts of a rank were timed with every expert on it under a power-law load (exponent 1.01,
which is closest to loads that were served), and with experts spread by EP under an even one, for what the busiest
rank gets is `planner.balance`'s to say.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars

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
BLACKWELL = ("b200", "b300", "gb200", "gb300")
HOPPER = ("h100", "h200")
POINTS = 15
HOLD = 0.02
"""Weight of a straight line through neighbouring points beside that of a measurement: it places what none does."""
ARTEFACT = 1.8
"""A time that is longer than this many times that of a larger batch is left out: a batch can be padded."""
WHAT = ["engines", "kernel", "version"]
SHAPED = ["dtype", "hidden", "intermediate", "experts_per_token", "experts"]
COLUMNS = [*WHAT, *SHAPED, "median_residual", "curves"]
DTYPES = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "int4_wo": "int4",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
UNLIKE = ("nongated", "situ_as_silu")
"""Kernels of other activations than SwiGLU."""
SHAPE = ["hidden_size", "inter_size", "topk", "num_experts"]
DEGREES = ["moe_tp_size", "moe_ep_size"]


def users(machine: str, engine: str, dtype: str) -> list[str]:
    """Engines that run an engine's kernel for a dtype, or whose own was not measured and is closest to it.

    TensorRT-LLM's kernels on Blackwell are those that FlashInfer brings to SGLang and vLLM. On Hopper it runs MXFP4 by
    OpenAI's Triton kernels, as vLLM does, and block-scaled FP8 by CUTLASS, as vLLM through FlashInfer. vLLM runs MXFP4
    with MXFP8 activations on Blackwell, which was measured under SGLang alone.
    """
    if engine == "trtllm":
        return ["trtllm"]
    if machine in BLACKWELL and dtype.endswith("mxfp8"):
        return [engine, *({"sglang": ["vllm", "trtllm"], "vllm": ["trtllm"]}[engine])]
    lender = "sglang" if machine in BLACKWELL else "vllm"
    return [engine, "trtllm"] if engine == lender else [engine]


def preference(kernel: str, dtype: str) -> tuple[bool, bool, bool]:
    """Order of kernels that one engine has for a shape: the one that it prefers comes first."""
    return not dtype.startswith(("fp8_block", "w4a8")), "trtllm" not in kernel, "triton" in kernel


def main(data: Path) -> None:
    """Write the curves of every machine."""
    OUT.mkdir(exist_ok=True)
    for system, machine in MACHINES.items():
        paths = sorted(data.glob(f"{system}/moe/*/*/moe_perf.parquet"))
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
    table = polars.read_parquet(path).filter(polars.col("distribution").is_in(["power_law_1.01", "balanced"]))
    for (kernel, dtype, *shape), group in table.group_by("kernel_source", "moe_dtype", *SHAPE, maintain_order=True):
        if any(word in kernel for word in UNLIKE) or shape[2] == 22 or shape[1] in (1856, 2688):
            continue
        measured, off = [], []
        for (tp, ep), own in sorted(group.group_by(DEGREES), key=lambda item: item[0]):
            wanted = "power_law_1.01" if ep == 1 else "balanced"
            own = own.filter(polars.col("distribution") == wanted)
            own = own.group_by("num_tokens").agg(polars.col("latency").median())
            if (tp > 1 and ep > 1) or tp > 16 or len(own) < 20:
                continue
            own = own.sort("num_tokens")
            tokens, milliseconds = own["num_tokens"].to_numpy(), own["latency"].to_numpy()
            later = np.minimum.accumulate(milliseconds[::-1])[::-1]
            plausible = milliseconds <= ARTEFACT * later
            points, errors = curve(tokens[plausible], milliseconds[plausible] * 1e3)
            measured.append(f"{tp} {ep} " + " ".join(f"{point:.3g}" for point in points))
            off.append(errors)
        if any(each.startswith("1 1 ") for each in measured):
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
