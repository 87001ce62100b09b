"""Archives and NumPy arrays of strangers: sizes are checked before anything is unpacked, and nothing is run."""

import io
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ground.errors import BadInput
from ground.files import first_bytes, read_bytes
from ground.units import MEBI

_BROKEN: tuple[type[Exception], ...] = (  # exceptions that readers raise on broken archives, headers and pickles
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError),
    *(TypeError, ValueError, TokenError, struct.error, zlib.error, LZMAError, zipfile.BadZipFile, tarfile.TarError),
)
GZIP = b"\x1f\x8b"  # first bytes of a gzip file
_PACKINGS: dict[bytes, Literal["r:gz", "r:bz2", "r:xz", "r:"]] = {
    GZIP: "r:gz",
    b"BZh": "r:bz2",
    b"\xfd7zXZ\0": "r:xz",
    b"": "r:",
}
"""How tar files are packed, by their first bytes: left to find out, tarfile takes zeros for endless LZMA streams."""


@contextmanager
def unbroken(what: str, *more: type[Exception]) -> Iterator[None]:
    """Raise BadInput saying ``what`` is wrong for whatever a reader of a broken file raises, ``more`` included."""
    try:
        yield
    except (*_BROKEN, *more):
        raise BadInput(what) from None


def read_members(path: Path, wanted: Callable[[str], bool], most_bytes: int, what: str) -> dict[str, bytes]:
    """Return the content of the files in a ZIP or tar archive whose names are wanted, in their order.

    Raises BadInput: no readable file, all members together over ``most_bytes`` unpacked, or, told as ``what``, no
    whole archive.
    """
    begin = first_bytes(path, 6)
    _check_size(path, path.stat().st_size, most_bytes)
    packing = next(mode for magic, mode in _PACKINGS.items() if begin.startswith(magic))
    with unbroken(f"{path}: {what}"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                _check_size(path, sum(member.file_size for member in packed.infolist()), most_bytes)
                return {name: packed.read(name) for name in packed.namelist() if wanted(name)}
        found, size = {}, 0
        with tarfile.open(path, packing) as archive:
            for entry in archive:
                size += entry.size
                _check_size(path, size, most_bytes)
                content = archive.extractfile(entry) if entry.isreg() and wanted(entry.name) else None
                if content is not None:
                    found[entry.name] = content.read()
        return found


def _check_size(path: Path, size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise BadInput(f"{path}: holds more than {most_bytes // MEBI} MiB, the most that is read")


def read_arrays(path: Path, most_bytes: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of plain numbers in an NPZ file by name, or that of an NPY file under an empty name.

    Raises BadInput: no readable file, too large, or not such a file.
    """
    what = "is not a NumPy file of plain numbers, or not a whole one; write it with numpy.save"
    if path.suffix.lower() != ".npz":
        return {"": _array(read_bytes(path, most_bytes), f"{path}: {what}")}
    members = read_members(path, lambda name: name.endswith(".npy"), most_bytes, what)
    return {name.removesuffix(".npy"): _array(content, f"{path}: {what}") for name, content in members.items()}


def _array(content: bytes, what: str) -> NDArray[Any]:
    """Return the array of an NPY file (numpy.org/doc/stable/reference/generated/numpy.lib.format.html)."""
    file = io.BytesIO(content)
    with unbroken(what):
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(file)
        if dtype.kind not in "buif" or min(shape, default=0) < 0:
            raise ValueError
        array: NDArray[Any] = np.frombuffer(content, dtype, math.prod(shape), file.tell())
        return array.reshape(shape, order="F" if columns_first else "C")
