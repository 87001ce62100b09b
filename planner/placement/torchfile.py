"""Tensors from a PyTorch file without PyTorch, and without running what a pickle could run.

A ``.pt`` file is a ZIP archive: ``data.pkl`` describes dicts, lists and tensors, ``data/<key>`` holds the numbers of
one storage each. Only what plain tensors need is let through; any other class in the pickle is refused.

Ref: pytorch.org/docs/stable/notes/serialization.html, "Saved file format".
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from ground.units import MEBI

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
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > most_bytes:
                raise BadInput(f"{path}: holds more than {most_bytes // MEBI} MiB, the most that is read")
            return _load(archive, path)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except (OSError, zipfile.BadZipFile, KeyError, EOFError, RuntimeError, NotImplementedError):
        raise BadInput(f"{path}: is not a file that PyTorch saved; save the counts as NPY instead") from None


def _load(archive: zipfile.ZipFile, path: Path) -> object:
    names = [name for name in archive.namelist() if name.endswith("data.pkl")]
    if len(names) != 1:
        raise BadInput(f"{path}: is not a file that PyTorch saved; save the counts as NPY instead")
    folder = names[0].removesuffix("data.pkl")
    try:
        return _Tensors(archive, folder).load()
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    # Whatever a broken pickle makes the unpickler raise.
    except (pickle.UnpicklingError, AttributeError, IndexError, TypeError, ValueError, MemoryError, RecursionError):
        raise BadInput(f"{path}: its pickle is broken; save the counts as NPY instead") from None


class _Tensors(pickle.Unpickler):
    """An unpickler that knows tensors and nothing else."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{folder}data.pkl")))
        self._archive, self._folder = archive, folder

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
        return np.frombuffer(self._archive.read(f"{self._folder}data/{key}"), dtype=dtype, count=int(count))


def _tensor(storage: NDArray[Any], offset: int, size: Any, stride: Any, *_: object) -> NDArray[Any]:
    """A tensor as an array: element (i, j, …) stands at offset + i * stride[0] + j * stride[1] + …"""
    if np.prod([float(length) for length in size]) > max(len(storage), 1):
        raise pickle.UnpicklingError  # an expanded view repeats numbers; counts do not
    at = np.full(tuple(size), offset, dtype=np.int64)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = length
        at = at + np.arange(length).reshape(shape) * step
    return np.asarray(storage[at])
