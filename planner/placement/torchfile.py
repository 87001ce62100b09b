"""Tensors from a PyTorch file without PyTorch, and without running what a pickle could run.

A ``.pt`` file is a ZIP archive: ``data.pkl`` describes dicts, lists and tensors, ``data/<key>`` holds the numbers of
one storage each. Only what plain tensors need is let through; any other class in the pickle is refused.

Ref: pytorch.org/docs/stable/notes/serialization.html, "Saved file format".
"""

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.archives import read_members, unbroken
from ground.errors import BadInput

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


def read_torch_file(path: Path, most_bytes: int) -> object:
    """Return what a ``.pt`` file holds, tensors as NumPy arrays.

    Raises:
        BadInput: no such file, too large, not of this format, or anything in it that is not plain data.
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
