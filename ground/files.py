"""Files in and out: read with one clear error, and several files written whole or not at all."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ground.errors import BadInput
from ground.units import MEBI
from ground.yamldata import parse_yaml, to_yaml

__all__ = [
    "check_file",
    "check_folder",
    "parse_yaml",
    "read_text",
    "read_yaml",
    "staging",
    "to_yaml",
    "write_files",
    "writing",
]

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
    """Return the YAML document in ``path`` as plain data, read as ``ground.yamldata.parse_yaml`` says.

    Raises BadInput naming the file, and the line where there is one.
    """
    return parse_yaml(read_text(path), str(path))


def check_file(path: Path, *, force: bool, flag: str | None = None) -> None:
    """Raise BadInput where ``path`` is a folder, or is there already and ``force`` is false; ``flag`` named it."""
    told = f"{flag}: {path}" if flag else f"{path}"
    with writing(path):
        there = path.exists()
    if path.is_dir():
        raise BadInput(f"{told} is a folder; give the name of a file")
    if there and not force:
        raise BadInput(f"{told} exists already; give --force to replace it")


def check_folder(folder: Path, names: Iterable[str], *, force: bool, flag: str) -> None:
    """Raise BadInput where ``folder`` is a file, or one of the names is there already and ``force`` is false."""
    with writing(folder):
        there = folder.exists()
    if there and not folder.is_dir():
        raise BadInput(f"{flag}: {folder} is a file; give a folder")
    for name in names:
        check_file(folder / name, force=force, flag=flag)


def write_files(files: Mapping[Path, str] | Mapping[Path, str | bytes], *, force: bool) -> None:
    """Write every text to its path, or none.

    Raises BadInput naming the file, before anything is written, if one exists and ``force`` is false; and if
    a folder cannot be made or written.
    """
    for path in files:
        check_file(path, force=force)
    with staging() as beside:
        for path, text in files.items():
            with writing(path):
                beside(path).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))


@contextmanager
def staging() -> Iterator[Callable[[Path], Path]]:
    """Yield what names a file to write beside a path: all take their places when the block ends well, or none is left.

    Raises BadInput naming the file if a folder cannot be made, or a file not be renamed.
    """
    staged: dict[Path, Path] = {}

    def beside(path: Path) -> Path:
        with writing(path):
            _make_folder(path.parent)
        return staged.setdefault(path, path.with_name(f".{path.name}.{os.getpid()}.tmp"))

    try:
        yield beside
        for path, temporary in staged.items():
            with writing(path):
                temporary.replace(path)
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one sentence what keeps ``path`` from being written, as BadInput."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be written: {_reason(error)}") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(part for part in (folder, *folder.parents) if part.exists() and not part.is_dir())
        raise BadInput(f"{file}: this is a file where a folder must be; give another path") from None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
