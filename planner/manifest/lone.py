"""Stacked terms of one instance at many loads: all its linear forms by one product with a matrix.

What takes time with arrays of some hundred loads is not arithmetic but the number of array operations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.manifest.runs import Block, Place
from planner.manifest.terms import Form, Number, Stage

Array = NDArray[np.float64]


@dataclass(slots=True)
class Rows:
    """Where the forms of a stage stand: of its kernels, their sums, and each of the protocols of its transfers."""

    compute: slice
    moved: slice
    compute_sum: int | None
    memory: int
    fixed: int
    demand: int
    fastest: list[slice]


@dataclass(slots=True)
class Matrix:
    """Forms of all stages, [forms, variables]."""

    names: list[str]
    forms: Array
    stages: dict[Stage, Rows]

    def product(self, values: Mapping[str, Number], shape: tuple[int, ...]) -> Array:
        """Return the forms at variables that broadcast to a shape, [forms, *shape]."""
        given = np.empty((len(self.names), *shape))
        for place, name in enumerate(self.names):
            given[place] = values[name]
        found: Array = self.forms @ given.reshape(len(self.names), -1)
        return found.reshape(-1, *shape)


def matrix_of(blocks: Sequence[Block], places: Mapping[Stage, Place], at_work: Sequence[bool]) -> Matrix:
    """Return the forms of one instance whose blocks have work or not."""
    running = [block for block, works in zip(blocks, at_work, strict=True) if works]
    names = list(dict.fromkeys(["one", *_names(running, places)]))
    column = {name: place for place, name in enumerate(names)}
    kernels = np.zeros((2, blocks[-1].rows.stop if blocks else 0, len(names)))
    sums = np.zeros((2, blocks[-1].runs.stop if blocks else 0, len(names)))
    floors = np.zeros(sums.shape[1])
    for block in running:
        floors[block.runs] = block.floors
        for out, forms in ((kernels[:, block.rows], block.kernels), (sums[:, block.runs], block.sums)):
            for name, coefficients in forms.items():
                out[..., column[name]] = coefficients[..., 0]
    table, stages = [*kernels[0], *kernels[1]], dict[Stage, Rows]()
    for stage, place in places.items():
        compute_sum, memory = sums[:, place.runs].sum(axis=1)
        fixed = _row(place.transfers.only, column)
        fixed[column["one"]] += floors[place.runs].sum()
        start, moved = len(table), slice(kernels.shape[1] + place.rows.start, kernels.shape[1] + place.rows.stop)
        table += [compute_sum, memory, fixed, memory + kernels[1, place.rows].sum(axis=0)]
        fastest = []
        for protocols in place.transfers.fastest:
            fastest.append(slice(len(table), len(table) + len(protocols)))
            table += [_row(protocol, column) for protocol in protocols]
        numbers = start if compute_sum.any() else None, start + 1, start + 2, start + 3
        stages[stage] = Rows(place.rows, moved, *numbers, fastest)
    return Matrix(names, np.array(table).reshape(len(table), len(names)), stages)


def _names(blocks: Sequence[Block], places: Mapping[Stage, Place]) -> list[str]:
    """Variables that the forms are of."""
    forms: list[Mapping[str, object]] = [form for block in blocks for form in (block.kernels, block.sums)]
    for place in places.values():
        forms += [place.transfers.only, *(protocol for each in place.transfers.fastest for protocol in each)]
    return [name for form in forms for name in form]


def _row(form: Form, column: Mapping[str, int]) -> Array:
    row = np.zeros(len(column))
    for name, coefficient in form.items():
        row[column[name]] = np.ravel(coefficient)[0]
    return row
