"""Measured expert loads under a manifest's placement: the imbalance that its steps are then timed with."""

import csv
import io
from pathlib import Path

import numpy as np

from planner.manifest.schema import Manifest
from podplan.errors import BadInput
from podplan.files import read_text
from runtime.simulate.faults import placement_balance


def measured_balance(manifest: Manifest, path: Path) -> dict[str, float]:
    """Return the busiest expert rank over the mean by role, averaged over layers, for token counts in a CSV.

    Rows are MoE layers in order (they repeat if there are fewer than the model has) and columns experts; a header of
    names is passed over.

    Raises BadInput naming the file, the line and what is wrong.
    """
    if manifest.model.spec.moe is None:
        raise BadInput(f"--expert-loads: {manifest.model.spec.name} has no experts; leave the flag out")
    loads = _read(path, manifest.model.spec.moe.experts)
    return {
        pool.role: placement_balance(pool.expert_map, loads, set())
        for pool in manifest.pools
        if pool.expert_map is not None
    }


def _read(path: Path, experts: int) -> np.ndarray:
    rows: list[list[float]] = []
    for number, cells in enumerate(csv.reader(io.StringIO(read_text(path))), start=1):
        if not cells:
            continue
        try:
            row = [float(cell) for cell in cells]
        except ValueError:
            if number == 1:
                continue
            raise BadInput(f"{path}, line {number}: must hold numbers only") from None
        if len(row) != experts or not all(0 <= value < float("inf") for value in row) or not sum(row):
            raise BadInput(f"{path}, line {number}: must hold {experts} counts from 0, not all of them 0")
        rows.append(row)
    if not rows:
        raise BadInput(f"{path}: holds no row; give a row of token counts per layer")
    return np.array(rows)
