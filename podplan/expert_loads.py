"""Measured expert loads under a manifest's placement: the imbalance that its steps are then timed with."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from ground.files import read_text
from ground.tables import csv_rows
from ground.units import number_of, parse_duration
from planner.manifest.schema import Manifest
from runtime.simulate.engine import generator
from runtime.simulate.faults import placement_balance

Loads = Callable[[int], NDArray[np.float64]]
"""Popularity of every expert in the n-th stretch of a drift, [layers, experts]."""


def read_loads(manifest: Manifest, text: str, seed: int) -> tuple[Loads, float | None]:
    """Return the popularity of experts, and after how many seconds it changes; None: never.

    ``lognormal:SIGMA`` and ``zipf:S`` draw the popularity of each layer's experts, with ``@5min`` anew every 5 min;
    anything else is a CSV. Rows are MoE layers in order (they repeat if there are fewer than the model has) and columns
    experts; a header of names is passed over.

    Raises BadInput naming the file, the line and what is wrong.
    """
    if manifest.model.spec.moe is None:
        raise BadInput(f"--expert-loads: {manifest.model.spec.name} has no experts; leave the flag out")
    experts, layers = manifest.model.spec.moe.experts, manifest.model.spec.layers
    name, _, every = text.partition("@")
    if _drawn(name, experts, layers, seed) is None:
        read = _read(Path(text), experts)
        return lambda number: read, None

    def loads(number: int) -> NDArray[np.float64]:
        drawn = _drawn(name, experts, layers, seed + 7919 * number)
        assert drawn is not None, "the name was tried"
        return drawn

    return loads, parse_duration(every, "--expert-loads") if every else None


def measured_balance(manifest: Manifest, text: str, seed: int) -> dict[str, float]:
    """Return the busiest expert rank over the mean by role, averaged over layers; ``text`` as in ``read_loads``."""
    loads = read_loads(manifest, text, seed)[0](0)
    return {
        pool.role: placement_balance(pool.expert_map, loads, set())
        for pool in manifest.pools
        if pool.expert_map is not None
    }


def _drawn(text: str, experts: int, layers: int, seed: int) -> np.ndarray | None:
    """Return popularities [layers, experts] of a named distribution, None where ``text`` names none."""
    name, colon, number = text.partition(":")
    if not colon or name not in ("lognormal", "zipf"):
        return None
    width = number_of(number)
    if not 0 <= width <= 5:
        raise BadInput(f"--expert-loads: {text[:40]!r} needs a number from 0 to 5, such as lognormal:0.5 or zipf:1")
    random = generator(seed, "expert loads")
    if name == "lognormal":
        return np.exp(width * random.standard_normal((layers, experts)))
    return np.stack([random.permutation(np.arange(1.0, experts + 1) ** -width) for _ in range(layers)])


def _read(path: Path, experts: int) -> np.ndarray:
    rows: list[list[float]] = []
    for number, (where, cells) in enumerate(csv_rows(read_text(path), str(path))):
        row = [number_of(cell) for cell in cells]
        if number == 0 and np.isnan(row).any():
            continue  # names of the columns
        if len(row) != experts or not all(value >= 0 for value in row) or not 0 < sum(row) < np.inf:
            raise BadInput(f"{where}: must hold {experts} counts from 0, not all of them 0")
        rows.append(row)
    if not rows:
        raise BadInput(f"{path}: holds no row; give a row of token counts per layer")
    return np.array(rows)
