"""Least squares of a kernel's form on its measured times, and how tables of measured operators are read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars
from numpy.typing import NDArray
from scipy.optimize import least_squares

from hardware.spec import Number
from scripts.served import COLD

Array = NDArray[np.float64]
Row = dict[str, object]
Bounds = dict[str, tuple[float, float, float, float]]
"""Lowest, highest, start and size of a typical change of each parameter."""
Seconds = Callable[..., Number]
NONE: Bounds = {}
CONSTANT = {"window_size": 0, "kv_cache_dtype": "bfloat16", "attn_dtype": "bfloat16", "quant_dtype": "fp8", "step": 0}
LATENT, VALUE = 576, 512
"""Elements of a latent with its rotary key, and of what a head takes from it."""
ARTEFACT = 1.8
"""A time that is longer than this many times that of a larger batch is left out: a batch can be padded."""
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
WORTH = 0.05
"""Share of the loss that further parameters of a form take away where they are kept."""
FEWEST = 8
"""Heads of latent attention that a device has at least: models have 64 or 128, and TP is 8 or less."""


def read(path: Path) -> polars.DataFrame:
    """Return a table with the columns that were dropped where they are constant."""
    table = polars.read_parquet(path)
    missing = {name: value for name, value in CONSTANT.items() if name not in table.columns}
    return table.with_columns(**{name: polars.lit(value) for name, value in missing.items()})


class Measured(NamedTuple):
    """Seconds of a kernel, and the longest that each may be in a server (``scripts.served.as_served``)."""

    least: Array
    most: Array

    @property
    def told(self) -> NDArray[np.bool_]:
        """Which of them say what a server sees."""
        return np.asarray(self.most <= (1.0 + COLD) * self.least)

    def errors(self, seconds: Array) -> Array:
        """Relative errors of predictions; none between both."""
        return seconds / np.clip(seconds, self.least, self.most) - 1.0


def fitted(
    family: str, version: str, fit: object, bounds: Bounds, seconds: Seconds, measured: Measured, more: Bounds = NONE
) -> Row:
    """Return a row with the parameters that minimise the relative errors, outliers cut (soft L1 at a tenth).

    Parameters beyond the form's are kept where they lower the loss by ``WORTH``.
    """

    def errors(values: dict[str, float]) -> Array:
        return measured.errors(np.asarray(seconds(replace(fit, **values))))  # type: ignore[type-var]

    values, loss = _least(bounds, errors)
    if more:
        wider, lower = _least(bounds | more, errors)
        values = wider if lower < (1.0 - WORTH) * loss else values
    told = measured.told
    residual = float(np.median(np.abs(errors(values)[told])))
    return {
        "family": family,
        "version": version,
        "rows": int(told.sum()),
        "median_residual": f"{residual:.3f}",
        "parameters": " ".join(f"{name}={value:g}" for name, value in values.items()),
    }


def _least(bounds: Bounds, errors: Callable[[dict[str, float]], Array]) -> tuple[dict[str, float], float]:
    low, high, start, size = (np.array(column, dtype=float) for column in zip(*bounds.values(), strict=True))

    def scaled(values: Array) -> Array:
        return errors(dict(zip(bounds, (values * size).tolist(), strict=True)))

    found = least_squares(scaled, start / size, bounds=(low / size, high / size), loss="soft_l1", f_scale=0.1)
    values = {name: float(f"{value:.3g}") for name, value in zip(bounds, found.x * size, strict=True)}
    return values, float(found.cost)


def within(table: polars.DataFrame, kind: str) -> tuple[Array, Array]:
    """Query-key pairs and cached tokens read of each row whose queries see a window."""
    batch, new, before, window = columns(table, "batch_size", "isl", "step", "window_size")
    if kind == "generation":
        near = batch * np.minimum(before + 1, window)
        return near, near
    full = np.clip(window - before, 0, new)  # queries that see everything before them
    pairs = full * before + full * (full + 1) / 2 + (new - full) * window
    return batch * pairs, batch * (np.minimum(before, window) + new)


def work(table: polars.DataFrame, kind: str) -> tuple[Array, Array, Array]:
    """Queries, query-key pairs and cached tokens read of each row."""
    batch, new, before = columns(table, "batch_size", "isl", "step")
    if kind == "generation":
        return batch, batch * (before + 1), batch * (before + 1)
    return batch * new, batch * (new * before + new * (new + 1) / 2), batch * (before + new)


def columns(table: polars.DataFrame, *names: str) -> list[Array]:
    """Columns as arrays of floats; keys and values of as many heads as queries are stated as 0."""
    found = [table[name].to_numpy().astype(float) for name in names]
    if "num_key_value_heads" in names:
        place = names.index("num_key_value_heads")
        found[place] = np.where(found[place] > 0, found[place], table["num_heads"].to_numpy())
    return found
