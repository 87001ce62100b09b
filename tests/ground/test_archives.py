"""Archives and arrays of strangers: read, or refused in one sentence and in bounded memory."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.archives import read_arrays, read_members
from ground.errors import BadInput
from ground.units import MEBI

NUMBERS = np.arange(6.0).reshape(2, 3)


def npy(array: np.ndarray) -> bytes:
    """Return the array as a file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def headed(header: str) -> bytes:
    """Return an NPY file of a header of one's own."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


def test_arrays_come_back(tmp_path: Path) -> None:
    """Rows first, columns first, one file or several in an archive."""
    np.save(tmp_path / "a.npy", np.asfortranarray(NUMBERS))
    np.savez_compressed(tmp_path / "a.npz", loads=NUMBERS, other=np.arange(3))
    assert (read_arrays(tmp_path / "a.npy", MEBI)[""] == NUMBERS).all()
    found = read_arrays(tmp_path / "a.npz", MEBI)
    assert list(found) == ["loads", "other"] and (found["loads"] == NUMBERS).all()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        npy(NUMBERS)[:-1],
        npy(np.array([{}], dtype=object)),
        headed("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}"),
        headed("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1)}"),
        headed("(" * 4000),
        headed("{'descr': 'O', 'fortran_order': False, 'shape': ()}"),
    ],
)
def test_a_broken_array_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    """Cut short, of objects, with a header that lies or nests: nothing is allocated for it and nothing run."""
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"a\.npy: is not a NumPy file"):
        read_arrays(path, MEBI)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from([".npz", ".tar.gz"]))
def test_a_flipped_byte_is_read_or_refused(tmp_path_factory: object, place: int, value: int, ending: str) -> None:
    """Whatever byte is wrong, the archive is read or refused."""
    packed = io.BytesIO()
    if ending == ".npz":
        np.savez_compressed(packed, loads=NUMBERS)
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            entry = tarfile.TarInfo("loads.npy")
            entry.size = len(npy(NUMBERS))
            archive.addfile(entry, io.BytesIO(npy(NUMBERS)))
    content = bytearray(packed.getvalue())
    content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / f"flipped{ending}"  # type: ignore[attr-defined]
    path.write_bytes(content)
    try:
        read_members(path, lambda name: True, MEBI, "is broken")
        read_arrays(path, MEBI)
    except BadInput as error:
        assert path.name in str(error)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """Its members say how large they are."""
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("loads.npy", bytes(2 * MEBI))
    with pytest.raises(BadInput, match="holds more than 1 MiB"):
        read_arrays(tmp_path / "bomb.npz", MEBI)


def test_a_large_file_of_zeros_is_refused_unread(tmp_path: Path) -> None:
    """10 GiB that take no space on disk, told by their size; fewer are no archive, nor LZMA without end."""
    path = tmp_path / "zeros.npz"
    path.touch()
    os.truncate(path, 10 * 1024 * MEBI)
    with pytest.raises(BadInput, match="more than 512 MiB"):
        read_arrays(path, 512 * MEBI)
    os.truncate(path, 512 * MEBI)
    assert read_arrays(path, 512 * MEBI) == {}


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz", ""])
def test_packed_tar_files_are_known_by_their_first_bytes(packing: str, tmp_path: Path) -> None:
    """Whatever they are called."""
    path = tmp_path / "loads"
    with tarfile.open(path, f"w:{packing}") as archive:
        entry = tarfile.TarInfo("loads.npy")
        entry.size = len(npy(NUMBERS))
        archive.addfile(entry, io.BytesIO(npy(NUMBERS)))
    assert read_members(path, lambda name: True, MEBI, "is broken") == {"loads.npy": npy(NUMBERS)}
