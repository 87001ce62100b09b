"""Files in and out: read with one clear error, and several files written whole or not at all."""

import csv
import io
import json
import os
import select
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from ground.errors import BadInput
from ground.units import MEBI
from ground.yamldata import SIZE_LIMIT, parse_yaml as parse_yaml, to_yaml as to_yaml

MOST_ROWS = 1_000_000
MOST_FILES = 100_000
SIZE_LIMIT_BYTES = 64 * MEBI
WRITER_SECONDS = 5.0  # that a pipe is waited for
_numbers = count()

Row = tuple[str, dict[str, str]]  # where a row stands ("FILE, line 3"), and its cells by column


def csv_rows(text: str, where: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, cells without outer blanks) of every row that holds something; lines end as on any system.

    Raises BadInput naming the line that is none of a CSV file: an open quote, a field over 131,072 characters.
    """
    reader = csv.reader(io.StringIO(text, newline=None), strict=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield f"{where}, line {reader.line_num}", cells
    except csv.Error as error:
        raise BadInput(f"{where}, line {reader.line_num}: is not a line of a CSV file ({error})") from None


def csv_cells(line: str, where: str) -> list[str]:
    """Return the cells of one line, for files that are read as a stream; BadInput naming ``where``."""
    if '"' not in line and "\r" not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration):
        raise BadInput(f"{where}: is not a line of a CSV file; quote what holds commas, end lines with LF") from None


def csv_table(text: str, where: str, needed: tuple[str, ...] = ()) -> list[Row]:
    """Return the rows under a header, whose names are columns in any order; ``needed`` must be among them.

    Raises BadInput for no header, no row or over a million, a column that stands twice or is missing, and another
    number of cells.
    """
    rows = csv_rows(text, where)
    _, header = next(rows, ("", []))
    missing = next((name for name in needed if name not in header), None)
    if missing is not None or not header:
        raise BadInput(f"{where}: the first line must name the columns" + (f": {','.join(needed)}" if needed else ""))
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{where}: column {twice[:40]!r} stands twice; leave one of them out")
    found: list[Row] = []
    for place, cells in rows:
        if len(found) == MOST_ROWS:
            raise BadInput(f"{place}: a table has at most {MOST_ROWS} rows; leave some out")
        if len(cells) != len(header):
            raise BadInput(f"{place}: has {len(cells)} fields, the header has {len(header)}")
        found.append((place, dict(zip(header, cells, strict=True))))
    if not found:
        raise BadInput(f"{where}: names columns and has no row")
    return found


def read_bytes(path: Path, most_bytes: int = SIZE_LIMIT_BYTES) -> bytes:
    """Return the content of ``path``.

    Raises BadInput naming the file if it is absent, a directory, unreadable or over ``most_bytes``.
    """
    with checking(path), open(path, "rb", opener=_opened) as file:
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise BadInput(f"{path}: the file is larger than {most_bytes // MEBI} MiB, the most that is read")
    return raw


def _opened(path: str, flags: int) -> int:
    """Open a file; of a pipe that nobody writes to, which would be waited for without end, raise TimeoutError."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    try:
        if stat.S_ISFIFO(os.fstat(handle).st_mode) and not select.select([handle], [], [], WRITER_SECONDS)[0]:
            os.read(handle, 1)  # of a pipe that somebody has opened to write, BlockingIOError
            raise TimeoutError(f"nobody wrote to this pipe for {WRITER_SECONDS:g} s")
    except BlockingIOError:
        pass
    except OSError:
        os.close(handle)
        raise
    os.set_blocking(handle, True)
    return handle


def first_bytes(path: Path, count: int) -> bytes:
    """Return how a file begins that is to be read again.

    Raises BadInput naming the file as ``read_bytes``, and for what cannot be read twice.
    """
    with checking(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BadInput(f"{path}: is a pipe or a device, which cannot be read twice; give a file")
        with path.open("rb") as file:
            return file.read(count)


def read_text(path: Path, most_bytes: int = SIZE_LIMIT_BYTES) -> str:
    """Return the UTF-8 text of ``path``, without a byte order mark; BadInput as ``read_bytes`` and for other text."""
    raw = read_bytes(path, most_bytes)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{path}, line {line}: this is not UTF-8 text") from None


def files_below(folder: Path) -> list[Path]:
    """Return the files of a folder and of the folders in it, in order; BadInput for over 100,000, as a disk has."""
    found: list[Path] = []
    for place, _, names in os.walk(folder):
        found += [Path(place, name) for name in names]
        if len(found) > MOST_FILES:
            raise BadInput(f"{folder}: holds over {MOST_FILES} files; give a folder that has what is meant alone")
    return sorted(found)


def parse_json(text: str, where: str) -> Any:
    """Return the value of JSON text. Raises BadInput naming ``where`` and the fault, such as a duplicate key."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a key twice, a number of thousands of digits, brackets without end
        raise BadInput(f"{where}: not an acceptable JSON file: {error}") from None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = sorted(key for key, _ in pairs)
        raise ValueError(f"the key {next(a for a, b in pairwise(twice) if a == b)[:40]} stands twice")
    return values


def read_yaml(path: Path) -> object:
    """Return the YAML document in ``path`` as plain data, read as ``ground.yamldata.parse_yaml`` says.

    Raises BadInput naming the file, and the line where there is one.
    """
    return parse_yaml(read_text(path, SIZE_LIMIT + 3), str(path))  # a byte order mark is none of it


@contextmanager
def checking(path: Path) -> Iterator[None]:
    """Turn errors of reading ``path`` into a BadInput of one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except IsADirectoryError:
        raise BadInput(f"{path}: this is a directory; give a file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise BadInput(f"{path}: cannot be read: {_reason(error)}") from None


def check_file(path: Path, *, force: bool, flag: str | None = None) -> None:
    """Raise BadInput where ``path`` is no regular file, or is there already and ``force`` is false; ``flag`` named it.

    A link is there whatever it leads to; with ``force`` the file that it leads to is written.
    """
    told = f"{flag}: {path}" if flag else f"{path}"
    with writing(path):
        there, special = os.path.lexists(path), path.exists() and not path.is_file()
    if path.is_dir():
        raise BadInput(f"{told} is a folder; give the name of a file")
    if special:
        raise BadInput(f"{told} is a device, a pipe or a socket; give the name of a file")
    if there and not force:
        raise BadInput(f"{told} exists already; give --force to replace it")


def check_folder(folder: Path, names: Iterable[str], *, force: bool, flag: str) -> None:
    """Raise BadInput where ``folder`` is a file, or one of the names is there already and ``force`` is false."""
    with writing(folder):
        there = os.path.lexists(folder)
    if there and not folder.is_dir():
        raise BadInput(f"{flag}: {folder} is a file, or a link to nothing; give a folder")
    for name in names:
        check_file(folder / name, force=force, flag=flag)


def write_files(files: Mapping[Path, str] | Mapping[Path, str | bytes], *, force: bool) -> None:
    """Write every text to its path, or none.

    Raises BadInput naming the file, before anything is written, if one exists and ``force`` is false; and if
    a folder cannot be made or written.
    """
    for path in files:
        check_file(path, force=force)
    with staging(force=force) as beside:
        for path, text in files.items():
            with writing(path):
                beside(path).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))


@contextmanager
def staging(*, force: bool) -> Iterator[Callable[[Path], Path]]:
    """Yield a function that names a temporary file beside a path; when the block ends well, all replace their paths.

    Otherwise no temporary file is left, nor a folder that was made for one, also where SIGTERM or SIGHUP ends the
    process.

    Raises BadInput naming the file if a folder cannot be made, or a file not be renamed; without ``force`` also if one
    has come meanwhile, as from the same command beside this one.
    """
    staged: dict[Path, Path] = {}
    made: list[Path] = []

    def beside(path: Path) -> Path:
        with writing(path):
            target = Path(os.path.realpath(path))
            _make_folder(target.parent, made)
            # Named by number: a name that just fits into the file system leaves no room for more.
            return staged.setdefault(target, target.with_name(f".podplan-{os.getpid()}-{next(_numbers)}.tmp"))

    done = False
    with _cleaned_up():
        try:
            yield beside
            for path in staged:
                check_file(path, force=force)
            for path, temporary in staged.items():
                with writing(path):
                    temporary.replace(path)
            done = True
        finally:
            for temporary in staged.values():
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
            for folder in () if done else reversed(made):
                with suppress(OSError):  # others have put something there
                    folder.rmdir()


class _Ended(BaseException):
    """A signal that ends the process; its number."""


@contextmanager
def _cleaned_up() -> Iterator[None]:
    """Let the block clean up before a signal that ends the process does so."""

    def end(number: int, _: object) -> None:
        for each in usual:
            signal.signal(each, signal.SIG_IGN)  # one is enough
        raise _Ended(number)

    usual = [number for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)) if _ends(number)]
    for number in usual:
        signal.signal(number, end)
    try:
        yield
    except _Ended as ended:
        signal.signal(ended.args[0], signal.SIG_DFL)
        os.kill(os.getpid(), ended.args[0])
    finally:
        for number in usual:
            signal.signal(number, signal.SIG_DFL)


def _ends(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL and threading.current_thread() is threading.main_thread()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing ``path`` into a BadInput of one sentence."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be written: {_reason(error)}") from None


def _make_folder(folder: Path, made: list[Path]) -> None:
    """Make a folder and its missing parents, the outermost first, and add each that was made to ``made``."""
    for part in (*reversed(folder.parents), folder):
        if not part.is_dir():
            with suppress(FileExistsError):  # a file, or a folder that another process has made meanwhile
                part.mkdir()
                made.append(part)
        if not part.is_dir():
            raise BadInput(f"{part}: this is a file where a folder must be; give another path")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
