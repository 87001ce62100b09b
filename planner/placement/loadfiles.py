"""Expert loads from files: CSV, NPY, NPZ, JSON and SGLang's recorder dumps.

CSV: a row per layer and a column per expert, with or without a header; with a header that has a column ``layer``, every
combination of the other key columns (``slice``, ``domain``, …) is a time slice. NPY and NPZ: layers x experts, or
layers x experts x time slices. SGLang (``/dump_expert_distribution_record`` in mode ``stat``): ``logical_count``, steps
x layers x experts, in a ``.pt`` file or as JSON; its rows are model layers, so leading layers without load are dense.
"""

import io
import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.archives import read_arrays, read_members, unbroken
from ground.arrays import Floats
from ground.errors import BadInput
from ground.files import csv_rows, parse_json, read_text
from ground.units import MEBI, number_of, read_index
from planner.placement.problem import check_loads

MOST_BYTES = 512 * MEBI
MOST_ELEMENTS = 64 * MEBI
_EXPERT_COLUMN = re.compile(r"(?:e|expert)?[_ ]?([0-9]{1,9})\Z", re.IGNORECASE)
_NOT_KEYS = {"layer", "tokens", "total"}
_NPZ_NAMES = ("loads", "counts", "logical_count", "tokens_per_expert")
_DTYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFile:
    """Loads as a file has them: [layers, experts] or [layers, experts, slices]."""

    loads: Floats
    dense_layers: int = 0  # leading layers without load that were left out (SGLang counts model layers)


def read_loads(path: Path) -> LoadFile:
    """Read expert loads; the format is seen from the name's ending and the content.

    Raises BadInput: naming the file and what is wrong with it.
    """
    ending = path.suffix.lower()
    if ending in (".npy", ".npz"):
        arrays = read_arrays(path, MOST_BYTES)
        read = LoadFile(loads=as_floats(arrays[_array_name(list(arrays), path)], str(path)))
    elif ending in (".pt", ".pth"):
        read = _from_dump(read_torch_file(path, MOST_BYTES), path)
    elif ending == ".json":
        read = _from_dump(parse_json(read_text(path), str(path)), path)
    else:
        read = _read_csv(path)
    try:
        check_loads(read.loads)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return read


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
    rows = list(csv_rows(read_text(path), str(path)))
    if not rows:
        raise BadInput(f"{path}: is empty; expected is a row per layer and a column per expert")
    _, header = rows[0]
    if not any(isnan(number_of(cell)) for cell in header):
        return LoadFile(loads=_numbers(rows, path))
    if len(rows) == 1:
        raise BadInput(f"{path}: has a header and no rows; expected is a row per layer")
    if "layer" in [name.lower() for name in header]:
        return _keyed_rows(header, rows[1:], path)
    return LoadFile(loads=_numbers(rows[1:], path))


def _numbers(rows: list[tuple[str, list[str]]], path: Path) -> Floats:
    """Rows of equal length as numbers, [rows, columns]."""
    values = []
    for where, row in rows:
        if len(row) != len(rows[0][1]):
            raise BadInput(f"{where}: has {len(row)} columns and the rows before it {len(rows[0][1])}")
        values.append([number_of(cell) for cell in row])
        wrong = next((column for column, value in enumerate(values[-1]) if isnan(value)), None)
        if wrong is not None:
            raise BadInput(f"{where}, column {wrong + 1}: {row[wrong][:20]!r} is not a number")
    return as_floats(values, str(path))


def _keyed_rows(header: list[str], rows: list[tuple[str, list[str]]], path: Path) -> LoadFile:
    """Rows that name their layer and, by the other key columns, their time slice."""
    lower = [name.lower() for name in header]
    experts = sorted((int(found[1]), at) for at, name in enumerate(header) if (found := _EXPERT_COLUMN.match(name)))
    order = [at for _, at in experts]
    if not experts or [number for number, _ in experts] != list(range(len(experts))):
        raise BadInput(f"{path}: the header needs a column e0, e1, … for every expert beside the column layer")
    for where, row in rows:
        if len(row) != len(header):
            raise BadInput(f"{where}: has {len(row)} columns and the header {len(header)}")
    values = _numbers([(where, [row[at] for at in order]) for where, row in rows], path)
    keys = [at for at in range(len(header)) if at not in order and lower[at] not in _NOT_KEYS]
    names = [" ".join(row[at] for at in keys) for _, row in rows]
    layers = [row[lower.index("layer")] for _, row in rows]
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
    return LoadFile(loads=loads[:, :, 0] if len(slices) == 1 else loads)


def _layer_order(text: str) -> tuple[int, str]:
    number = read_index(text)
    return (-1, text) if number is None else (number, "")


def read_torch_file(path: Path, most_bytes: int) -> object:
    """Return what a ``.pt`` file holds, tensors as NumPy arrays, without PyTorch and what a pickle could run.

    It is a ZIP archive: ``data.pkl`` describes dicts, lists and tensors, ``data/<key>`` holds the numbers of a storage
    (pytorch.org/docs/stable/notes/serialization.html). Only what plain tensors need is let through.

    Raises BadInput: no such file, too large, not of this format, or anything in it that is not plain data.
    """
    what = "is not a file that PyTorch saved; save the counts as NPY instead"
    members = read_members(path, lambda name: True, most_bytes, what)
    names = [name for name in members if name.endswith("data.pkl")]
    if len(names) != 1:
        raise BadInput(f"{path}: {what}")
    try:
        with unbroken("its pickle is broken; save the counts as NPY instead", pickle.UnpicklingError):
            return _Tensors(members, names[0].removesuffix("data.pkl")).load()
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


class _Tensors(pickle.Unpickler):
    """An unpickler that knows tensors and nothing else."""

    def __init__(self, members: Mapping[str, bytes], folder: str) -> None:
        super().__init__(io.BytesIO(members[f"{folder}data.pkl"]))
        self._members, self._folder = members, folder

    def find_class(self, module: str, name: str) -> Any:
        """Return a builder of plain data; BadInput for every other class."""
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise BadInput(f"holds {module}.{name}, which is not plain data; save the counts as NPY instead")

    def persistent_load(self, pid: Any) -> Any:
        """Return the numbers of one storage."""
        kind, dtype, key, _location, count = pid
        if kind != "storage" or not isinstance(dtype, str) or not isinstance(key, str):
            raise pickle.UnpicklingError
        return np.frombuffer(self._members[f"{self._folder}data/{key}"], dtype=dtype, count=int(count))


def _tensor(storage: NDArray[Any], offset: int, size: Any, stride: Any, *_: object) -> NDArray[Any]:
    """A tensor as an array: element (i, j, …) stands at offset + i * stride[0] + j * stride[1] + …"""
    if math.prod(max(length, 1) for length in size) > max(len(storage), 1):
        raise pickle.UnpicklingError  # an expanded view repeats numbers; counts do not
    at = np.full(tuple(size), offset, dtype=np.int64)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = length
        at = at + np.arange(length).reshape(shape) * step
    return np.asarray(storage[at])
