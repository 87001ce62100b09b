"""Expert loads from files: CSV, NPY, NPZ, JSON and SGLang's recorder dumps.

CSV: a row per layer and a column per expert, with or without a header; with a header that has a column ``layer``, every
combination of the other key columns (``slice``, ``domain``, …) is a time slice. NPY and NPZ: layers x experts, or
layers x experts x time slices. SGLang (``/dump_expert_distribution_record`` in mode ``stat``): ``logical_count``, steps
x layers x experts, in a ``.pt`` file or as JSON; its rows are model layers, so leading layers without load are dense.
"""

import csv
import io
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from ground.files import read_text
from ground.units import MEBI
from planner.placement.problem import check_loads
from planner.placement.torchfile import read_torch_file

Floats = NDArray[np.float64]

MOST_BYTES = 512 * MEBI
MOST_ELEMENTS = 64 * MEBI
_EXPERT_COLUMN = re.compile(r"(?:e|expert)?[_ ]?(\d+)\Z", re.IGNORECASE)
_NOT_KEYS = {"layer", "tokens", "total"}
_NPZ_NAMES = ("loads", "counts", "logical_count", "tokens_per_expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFile:
    """Loads as a file has them: [layers, experts] or [layers, experts, slices], and how to tell the slices apart."""

    loads: Floats
    slice_names: tuple[str, ...] = ()
    dense_layers: int = 0
    """Leading layers without load that were left out (SGLang counts model layers)."""


def read_loads(path: Path) -> LoadFile:
    """Read expert loads; the format is seen from the name's ending and the content.

    Raises:
        BadInput: naming the file and what is wrong with it.
    """
    ending = path.suffix.lower()
    if ending in (".npy", ".npz"):
        read = LoadFile(loads=_read_numpy(path))
    elif ending in (".pt", ".pth"):
        read = _from_dump(read_torch_file(path, MOST_BYTES), path)
    elif ending == ".json":
        read = _from_dump(_parse_json(path), path)
    else:
        read = _read_csv(path)
    try:
        check_loads(read.loads)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return read


def _read_numpy(path: Path) -> Floats:
    """Return the array of an NPY file, or the one of an NPZ file that holds loads."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput(f"{path}: the file is larger than {MOST_BYTES // MEBI} MiB, the most that is read")
        if path.suffix.lower() == ".npz":
            with zipfile.ZipFile(path) as archive:
                if sum(member.file_size for member in archive.infolist()) > MOST_BYTES:
                    raise BadInput(f"{path}: holds more than {MOST_BYTES // MEBI} MiB, the most that is read")
            with np.load(path, allow_pickle=False) as arrays:
                return as_floats(arrays[_array_name(list(arrays.files), path)], str(path))
        return as_floats(np.load(path, allow_pickle=False), str(path))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, MemoryError):
        raise BadInput(
            f"{path}: is not a NumPy file of plain numbers, or not a whole one; write it with numpy.save"
        ) from None


def _array_name(names: list[str], path: Path) -> str:
    for name in _NPZ_NAMES:
        if name in names:
            return name
    if len(names) == 1 and names[0] != "topk":
        return names[0]
    raise BadInput(
        f"{path}: has the arrays {', '.join(names[:8]) or 'none'}; name the one with layers x experts token counts "
        f"{_NPZ_NAMES[0]}"
    )


def as_floats(values: Any, what: str) -> Floats:
    """Return numbers as an array; BadInput where they are not numbers or of ragged shape."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise BadInput(f"{what}: rows have different lengths; every layer needs one number per expert") from None
    if array.dtype.kind not in "buif":
        raise BadInput(f"{what}: holds something else than numbers; token counts per layer and expert are expected")
    if array.size > MOST_ELEMENTS:
        raise BadInput(f"{what}: has {array.size} numbers, more than the {MOST_ELEMENTS} that are read; add slices up")
    return array.astype(np.float64)


def _parse_json(path: Path) -> object:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise BadInput(f"{path}: is not JSON") from None


def _from_dump(data: object, path: Path) -> LoadFile:
    """Read what SGLang records, or a plain list of layers."""
    if isinstance(data, dict):
        if "layer_list" in data or "physical_to_logical_map" in data:
            raise BadInput(f"{path}: says where experts stand, not what load they have; give it as --current")
        if "logical_count" not in data:
            hint = "record with mode stat" if "records" in data else "expected is logical_count"
            raise BadInput(f"{path}: has the keys {', '.join(map(str, list(data)[:6])) or 'none'}, no loads; {hint}")
        counts = as_floats(data["logical_count"], f"{path}: logical_count")
        if counts.ndim == 3:  # [steps, layers, experts]
            counts = np.ascontiguousarray(counts.transpose(1, 2, 0))
        return _without_dense(counts)
    return LoadFile(loads=as_floats(data, str(path)))


def _without_dense(counts: Floats) -> LoadFile:
    """Leave out leading layers without any load: model layers that have no experts."""
    if counts.ndim not in (2, 3) or not np.isfinite(counts).all():
        return LoadFile(loads=counts)  # refused with its place
    active = np.flatnonzero(np.abs(counts).reshape(len(counts), -1).sum(axis=1) > 0)
    first = int(active[0]) if active.size else 0
    counts = counts[first:]
    if counts.ndim == 3:  # steps in which nothing was recorded say nothing
        counts = counts[:, :, counts.sum(axis=(0, 1)) > 0]
    return LoadFile(loads=counts, dense_layers=first)


def _read_csv(path: Path) -> LoadFile:
    rows = [row for row in csv.reader(io.StringIO(read_text(path))) if any(cell.strip() for cell in row)]
    if not rows:
        raise BadInput(f"{path}: is empty; expected is a row per layer and a column per expert")
    header = [cell.strip() for cell in rows[0]]
    if all(_is_number(cell) for cell in header):
        return LoadFile(loads=_numbers(rows, path, first_line=1))
    if len(rows) == 1:
        raise BadInput(f"{path}: has a header and no rows; expected is a row per layer")
    if "layer" in [name.lower() for name in header]:
        return _keyed_rows(header, rows[1:], path)
    return LoadFile(loads=_numbers(rows[1:], path, first_line=2))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(rows: list[list[str]], path: Path, first_line: int) -> Floats:
    """Rows of equal length as numbers, [rows, columns]."""
    for line, row in enumerate(rows, start=first_line):
        if len(row) != len(rows[0]):
            raise BadInput(f"{path}, row {line}: has {len(row)} columns and the rows before it {len(rows[0])}")
        for column, cell in enumerate(row):
            if not _is_number(cell):
                raise BadInput(f"{path}, row {line}, column {column + 1}: {cell.strip()[:20]!r} is not a number")
    return as_floats([[float(cell) for cell in row] for row in rows], str(path))


def _keyed_rows(header: list[str], rows: list[list[str]], path: Path) -> LoadFile:
    """Rows that name their layer and, by the other key columns, their time slice."""
    lower = [name.lower() for name in header]
    experts = [(int(found[1]), at) for at, name in enumerate(header) if (found := _EXPERT_COLUMN.match(name))]
    order = [at for _, at in sorted(experts)]
    if not experts or sorted(number for number, _ in experts) != list(range(len(experts))):
        raise BadInput(f"{path}: the header needs a column e0, e1, … for every expert beside the column layer")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise BadInput(f"{path}, row {line}: has {len(row)} columns and the header {len(header)}")
    values = _numbers([[row[at] for at in order] for row in rows], path, first_line=2)
    keys = [at for at in range(len(header)) if at not in order and lower[at] not in _NOT_KEYS]
    names = [" ".join(row[at].strip() for at in keys) for row in rows]
    layers = [row[lower.index("layer")].strip() for row in rows]
    slices = {name: position for position, name in enumerate(dict.fromkeys(names))}
    numbers = {name: position for position, name in enumerate(sorted(set(layers), key=_layer_order))}
    loads = np.zeros((len(numbers), len(order), len(slices)))
    seen = np.zeros((len(numbers), len(slices)), dtype=bool)
    for layer, name, row in zip(layers, names, values, strict=True):
        at = numbers[layer], slices[name]
        if seen[at]:
            raise BadInput(f"{path}: layer {layer} stands twice{' for ' + name if name else ''}")
        seen[at] = True
        loads[at[0], :, at[1]] = row
    absent = np.argwhere(~seen)
    if absent.size:
        layer, name = list(numbers)[absent[0][0]], list(slices)[absent[0][1]]
        raise BadInput(f"{path}: layer {layer} has no row for {name}; every slice needs every layer")
    if len(slices) == 1:
        return LoadFile(loads=loads[:, :, 0])
    return LoadFile(loads=loads, slice_names=tuple(slices))


def _layer_order(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (-1, text)
