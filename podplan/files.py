"""Files in and out: read with one clear error, and several files written whole or not at all."""

import os
from collections.abc import Mapping
from pathlib import Path

from podplan.errors import BadInput
from podplan.units import MEBI
from podplan.yamldata import parse_yaml, to_yaml

__all__ = ["parse_yaml", "read_text", "read_yaml", "to_yaml", "write_files"]

SIZE_LIMIT_BYTES = 64 * MEBI


def read_text(path: Path) -> str:
    """Return the UTF-8 text of ``path``, without a byte order mark.

    Raises BadInput naming the file if it is absent, a directory, unreadable, over 64 MiB or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except IsADirectoryError:
        raise BadInput(f"{path}: this is a directory; give a file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise BadInput(f"{path}: cannot be read: {_reason(error)}") from None
    if len(raw) > SIZE_LIMIT_BYTES:
        raise BadInput(f"{path}: the file is larger than {SIZE_LIMIT_BYTES // MEBI} MiB, the most that is read")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{path}, line {line}: this is not UTF-8 text") from None


def read_yaml(path: Path) -> object:
    """Return the YAML document in ``path`` as plain data, read as ``podplan.yamldata.parse_yaml`` says.

    Raises BadInput naming the file, and the line where there is one.
    """
    return parse_yaml(read_text(path), str(path))


def write_files(files: Mapping[Path, str] | Mapping[Path, str | bytes], *, force: bool) -> None:
    """Write every text to its path, or none: all are written beside their targets first, then renamed over them.

    Raises BadInput naming the file, before anything is written, if one exists and ``force`` is false; and if
    a folder cannot be made or written.
    """
    for path in files:
        if path.is_dir():
            raise BadInput(f"{path}: this is a directory; give the name of a file")
        if path.exists() and not force:
            raise BadInput(f"{path}: the file exists already; give --force to replace it")
    staged: dict[Path, Path] = {}
    try:
        for path, text in files.items():
            _make_folder(path.parent)
            staged[path] = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            staged[path].write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        for path, temporary in staged.items():
            temporary.replace(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {_reason(error)}") from None
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(part for part in (folder, *folder.parents) if part.exists() and not part.is_dir())
        raise BadInput(f"{file}: this is a file where a folder must be; give another path") from None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
