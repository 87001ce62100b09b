"""Least squares of a kernel's form on its measured times, and how tables of measured operators are read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars
from numpy.typing import NDArray
from scipy.optimize import least_squares

from hardware.spec import Number

Array = NDArray[np.float64]
Row = dict[str, object]
Bounds = dict[str, tuple[float, float, float, float]]
"""Lowest, highest, start and size of a typical change of each parameter."""
Seconds = Callable[..., Number]
CONSTANT = {"window_size": 0, "kv_cache_dtype": "bfloat16", "attn_dtype": "bfloat16", "quant_dtype": "fp8", "step": 0}


def read(path: Path) -> polars.DataFrame:
    """Return a table with the columns that were dropped where they are constant."""
    table = polars.read_parquet(path)
    missing = {name: value for name, value in CONSTANT.items() if name not in table.columns}
    return table.with_columns(**{name: polars.lit(value) for name, value in missing.items()})


def fitted(family: str, version: str, fit: object, bounds: Bounds, seconds: Seconds, measured: Array) -> Row:
    """Return a row with the parameters that minimise the relative errors, outliers cut (soft L1 at a tenth)."""
    names = list(bounds)
    low, high, start, size = (np.array(column, dtype=float) for column in zip(*bounds.values(), strict=True))

    def errors(scaled: Array) -> Array:
        tried = replace(fit, **dict(zip(names, (scaled * size).tolist(), strict=True)))  # type: ignore[type-var]
        return np.asarray(seconds(tried)) / measured - 1.0

    found = least_squares(errors, start / size, bounds=(low / size, high / size), loss="soft_l1", f_scale=0.1)
    values = {name: float(f"{value:.3g}") for name, value in zip(names, found.x * size, strict=True)}
    residual = float(np.median(np.abs(errors(np.array(list(values.values())) / size))))
    told = " ".join(f"{name}={value:g}" for name, value in values.items())
    return {"family": family, "version": version, "rows": len(measured), "median_residual": f"{residual:.3f}"} | {
        "parameters": told
    }
