"""Fit attention of prompts over keys that an indexer picked (DSA): modules less what the model says of the rest."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars

from hardware.engines import SOURCE, with_engine
from hardware.fits import attention_seconds
from hardware.formats import ELEMENT_BYTES, KvDtype
from hardware.spec import Dtype, HardwareSpec, Number, SparseFit
from models.loader import load_model
from models.spec import MLA
from planner.costs.attention_operators import attention_terms
from planner.costs.deployment import Deployment
from planner.costs.sparse_attention import SCORE_BYTES
from planner.manifest.curves import choices, pairs_within
from planner.manifest.terms import ComputeTerm, timing
from planner.strategy import Strategy
from scripts.fitting import FEWEST, LATENT, VALUE, Array, Bounds, Measured, Row, columns, fitted, read, work

MODELS = {"deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2", "zai-org/GLM-5": "glm-5", "zai-org/GLM-5-FP8": "glm-5"}
GEMMS: dict[str, Dtype] = {"bfloat16": "bf16", "fp8_block": "fp8"}
CACHES: dict[str, KvDtype] = {"bfloat16": "bf16", "fp8": "fp8"}
NOT_IT = {"attention_norm", "prefill_attention"}
"""Terms that the modules do not have, and the one that is sought."""
TILES = (64, 128)
"""Heads that kernels may multiply at least: FlashMLA 64 on Hopper and 128 on Blackwell."""
LEAST_TOKENS, MOST_TOKENS, LEAST_ROWS = 4096, 65536, 60
"""Tokens of a module below which its host's time may show (SGLang's takes 1.5 ms), and above which clocks fall."""
SPARSE: Bounds = {
    "peak_fraction": (0.01, 1.0, 0.4, 0.2),
    "memory_fraction": (0.05, 4.0, 1.0, 0.5),
    "serial_fraction": (0.0, 1.0, 0.2, 0.3),
}
CHOICE: Bounds = {"choice_seconds": (0.0, 1e-6, 6e-8, 5e-8)}
PADDED: Bounds = {"padded_fraction": (0.0, 1.0, 0.3, 0.3)}
UNCOMPILED: Bounds = {"token_seconds": (0.0, 1e-6, 1e-7, 1e-7), "head_seconds": (0.0, 1e-8, 1e-9, 1e-9)}


@dataclass(frozen=True, kw_only=True)
class ModuleFit(SparseFit):
    """A kernel within a module: what small kernels that a server compiles take more, for a token and for each head."""

    token_seconds: float = 0.0
    head_seconds: float = 0.0


class Modules(NamedTuple):
    """Measured modules, one per place of the arrays: their seconds, what is not the kernel's, and the kernel's work."""

    seconds: Array
    rest: Array
    heads: Array
    queries: Array
    within: Array
    top_k: Array
    chosen: Array
    """Queries of modules in which some have more keys than are kept."""


def sparse(folder: Path, engine: str, hw: HardwareSpec) -> Iterator[Row]:
    """Yield the fit for each type of the cache.

    SGLang runs prompts within the keys that are kept as dense attention, so nothing tells what its kernel pads, but its
    choice was timed alone; vLLM's modules were not compiled.
    """
    for path in folder.glob(f"sparse_attention/{engine}/*/dsa_context_module_perf.parquet"):
        table = read(path).filter(polars.col("model").is_in(list(MODELS)) & (polars.col("isl") >= 127))
        if "op_name" in table.columns:
            table = table.filter(polars.col("op_name") == "dsa_context_module")
        tokens = polars.col("isl") * polars.col("batch_size")
        dense = polars.col("kernel_source").str.contains("dense_mha")
        table = table.filter(tokens.is_between(LEAST_TOKENS, MOST_TOKENS) & ~dense)
        own_choice = list(path.parent.glob("glm5_topk_module_perf.parquet"))
        bounds = SPARSE if own_choice else SPARSE | CHOICE | PADDED
        bounds = bounds | UNCOMPILED if engine == "vllm" else bounds
        form = replace(FORM, choice_seconds=choice_seconds(own_choice[0], hw) if own_choice else 0.0)
        for cache, kept in CACHES.items():
            own = modules(table.filter(polars.col("kv_cache_dtype") == cache), with_engine(hw, engine), engine, kept)
            if own is not None:
                tried = (kernel(path, hw, own, replace(form, tile_heads=tile), kept, bounds) for tile in TILES)
                family = "sparse_prefill" + ("_fp8" if kept == "fp8" else "")
                yield {**min(tried, key=lambda row: float(str(row["median_residual"]))), "family": family}


def modules(table: polars.DataFrame, hw: HardwareSpec, engine: str, cache: KvDtype) -> Modules | None:
    """Measured modules of all models, heads and types of weights; None where too few ran."""
    found = []
    for (name, heads, weights), own in table.group_by("model", "num_heads", "gemm_type", maintain_order=True):
        model, dtype = load_model(MODELS[str(name)]), GEMMS.get(str(weights))
        assert isinstance(model.attention, MLA) and model.attention.indexer is not None, "DSA alone"
        if heads < FEWEST or heads > model.attention.heads or dtype not in hw.kernels.gemm:
            continue
        tp, top_k = model.attention.heads // heads, model.attention.indexer.top_k
        strategy = Strategy(attention_tp=tp, attention_dp=1, moe_tp=tp, moe_ep=1)
        hw = replace(hw, device=replace(hw.device, sustained_fraction=None))
        own_kernels = replace(hw.kernels, sparse_prefill=replace(FORM, choice_seconds=0.0), sparse_prefill_fp8=None)
        deployment = Deployment(
            model=model,
            hardware=replace(hw, kernels=own_kernels),
            strategy=strategy,
            phase="prefill",
            weights=dtype,
            kv_dtype=cache,
            engine=engine,
        )
        queries, pairs, _ = work(own, "context")
        (batch, before) = columns(own, "batch_size", "step")
        within = pairs_within(queries, batch * before, pairs, top_k)
        values = {"one": 1.0, "tokens": queries, "chunk": queries, "context": batch * before, "decode": 0.0}
        values |= {"pairs": pairs, "pairs_within": within, "kv": 0.0, "kv_within": 0.0}
        values |= choices(values)
        terms = (term for term in attention_terms(deployment) if isinstance(term, ComputeTerm))
        rest = sum(timing(term, values).seconds() for term in terms if term.name not in NOT_IT)
        same = np.ones_like(queries)
        time = own["latency"].to_numpy().astype(float) / 1e3
        found.append(Modules(time, rest, heads * same, queries, within, top_k * same, values["chunk_chosen"]))
    if sum(len(each.seconds) for each in found) < LEAST_ROWS:
        return None
    return Modules(*(np.concatenate(column) for column in zip(*found, strict=True)))


def choice_seconds(path: Path, hw: HardwareSpec) -> float:
    """What the choice takes a query beside the reading of its scores, where it was timed alone: the median."""
    table = read(path).filter((polars.col("score_mode") == "flat") & (polars.col("step") >= 2048))
    table = table.filter(polars.col("isl") * polars.col("batch_size") >= LEAST_TOKENS)
    queries, pairs, _ = work(table, "context")
    rate = hw.device.memory_bandwidth_bytes_per_second.value * hw.kernels.vector.memory_fraction
    return float(np.median((table["latency"].to_numpy() / 1e3 - 2 * SCORE_BYTES * pairs / rate) / queries))


def kernel(path: Path, hw: HardwareSpec, own: Modules, form: ModuleFit, cache: KvDtype, bounds: Bounds) -> Row:
    """The fit that starts from a form with one size of tiles."""

    def seconds(fit: ModuleFit) -> Number:
        heads = np.maximum(own.heads, form.tile_heads)
        pairs = (1 - fit.padded_fraction) * own.within + fit.padded_fraction * own.top_k * own.queries
        read = pairs * LATENT * ELEMENT_BYTES[cache] + own.queries * heads * (LATENT + VALUE) * 2
        flops = pairs * 2 * heads * (LATENT + VALUE)
        more = own.queries * (fit.token_seconds + fit.head_seconds * own.heads) + own.chosen * fit.choice_seconds
        return own.rest + more + attention_seconds(hw.device, fit, flops, read, np.inf)

    row = fitted("", " ".join(path.parts[-3:-1]), form, bounds, seconds, Measured(own.seconds, own.seconds))
    found = [pair for pair in str(row["parameters"]).split() if pair.partition("=")[0] not in UNCOMPILED]
    stated = (name for name in ("choice_seconds", "tile_heads", "floor_seconds") if name not in bounds)
    return row | {"parameters": " ".join([*found, *(f"{name}={getattr(form, name):.3g}" for name in stated)])}


FORM = ModuleFit(kind="fitted", source=SOURCE, version="", peak_fraction=1.0, memory_fraction=1.0, floor_seconds=1e-5)
"""A start-up of 10 us, as other attention kernels have, for none shows in prompts so long."""
