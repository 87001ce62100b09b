"""Records of a trace file, one at a time: CSV, JSON lines, a JSON document or Parquet, plain or gzipped.

One request of a trace, and how its fields are read from what a file holds.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ground.archives import GZIP, unbroken
from ground.errors import BadInput
from ground.files import csv_cells, first_bytes
from ground.units import MEBI, number_of

MOST_ROWS = 5_000_000  # of a trace that is held whole; one that is read in parts may have twenty times as many
MOST_BYTES = 4096 * MEBI
MOST_LINE_BYTES = 4 * MEBI
MOST_DOCUMENT_BYTES = 256 * MEBI

Record = tuple[str, dict[str, Any] | BadInput]  # where it stands ("FILE, line 3"), its fields or what is wrong
Integers = NDArray[np.int64]
Fields = Mapping[str, Any]

MOST_TOKENS = 100_000_000
BYTES_PER_TOKEN_OF_TEXT = 4.0
_HUGE = 10**300
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d)?")


def records(path: Path, most_rows: int = MOST_ROWS) -> tuple[list[str] | None, Iterator[Record]]:
    """Return the header of a CSV file (None for others) and the records of ``path``, read as they are asked for.

    Raises BadInput, here or while reading: no readable file, nothing in it, not UTF-8, broken or too large.
    """
    if first_bytes(path, 4) == b"PAR1":
        return None, _parquet_records(path)
    lines = _numbered_lines(path, most_rows)
    first = next(lines, None)
    if first is None:
        raise BadInput(f"{path}: has no request; a trace needs at least one row")
    text = first[1]
    if text.startswith("["):
        return None, _document_records(path)
    if text.startswith("{"):
        whole = _json(text) is None
        return None, _document_records(path) if whole else _json_records(path, chain([first], lines))
    header = [name.strip() for name in csv_cells(text, f"{path}, line {first[0]}")]
    return header, _csv_records(path, header, lines)


def _csv_records(path: Path, header: list[str], lines: Iterator[tuple[int, str]]) -> Iterator[Record]:
    for number, text in lines:
        where = f"{path}, line {number}"
        try:
            cells = csv_cells(text, where)
        except BadInput as error:
            yield where, error
            continue
        if len(cells) != len(header):
            yield where, BadInput(f"{where}: has {len(cells)} fields, the header has {len(header)}")
        else:
            yield where, dict(zip(header, cells, strict=True))


def _json_records(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Record]:
    for number, text in lines:
        where, row = f"{path}, line {number}", _json(text)
        yield where, row if isinstance(row, dict) else BadInput(f"{where}: must be a JSON object")


def _document_records(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSON array, or a single object that spans lines."""
    try:
        with path.open("rb") as raw, _unpacked(raw) as file:
            content = file.read(MOST_DOCUMENT_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: cannot be read ({error})") from None
    if len(content) > MOST_DOCUMENT_BYTES:
        raise BadInput(
            f"{path}: is too large; a JSON document has at most {MOST_DOCUMENT_BYTES // MEBI} MiB, JSON lines may have "
            f"{MOST_BYTES // MEBI} MiB"
        )
    document = _json(content.decode("utf-8-sig", errors="replace"))
    if document is None:
        raise BadInput(f"{path}, line 1: must be a JSON object on each line, or one JSON document of requests")
    for number, row in enumerate(document if isinstance(document, list) else [document], start=1):
        where = f"{path}, item {number}"
        yield where, row if isinstance(row, dict) else BadInput(f"{where}: must be a JSON object")


def _parquet_records(path: Path) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise BadInput(f"{path}: is a Parquet file; install pyarrow to read it, or convert it to JSON lines") from None
    number = 0
    with unbroken(f"{path}: is a broken Parquet file, or one of values that are no plain data", ArrowException):
        for batch in ParquetFile(path).iter_batches(batch_size=4096):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row


def _json(text: str) -> Any:
    """Return what JSON text holds, None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _numbered_lines(path: Path, most_rows: int) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of lines that are not blank, within the limits on rows and bytes."""
    number = total = 0
    try:
        with path.open("rb") as raw, _unpacked(raw) as file:
            while line := file.readline(MOST_LINE_BYTES):
                number, total = number + 1, total + len(line)
                if len(line) == MOST_LINE_BYTES or number > most_rows + 1 or total > MOST_BYTES:
                    raise BadInput(
                        f"{path}, line {number}: is too large; a trace has at most {most_rows} rows, "
                        f"{MOST_BYTES // MEBI} MiB unpacked and {MOST_LINE_BYTES // MEBI} MiB in a line"
                    )
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield number, text
    except UnicodeDecodeError:
        raise BadInput(f"{path}, line {number}: is not UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{path}: is a broken gzip file ({error})") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _unpacked(raw: io.BufferedReader) -> io.BufferedReader | gzip.GzipFile:
    """Return a reader of the content: unpacked where the file starts like gzip."""
    return gzip.GzipFile(fileobj=raw) if raw.peek(len(GZIP)).startswith(GZIP) else raw


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A request: ``seconds`` None where the file has no arrival, ``delay_seconds`` after the session's last turn."""

    seconds: float | None
    input_tokens: int
    output_tokens: int
    hash_ids: Integers | None = None
    session: str | None = None
    delay_seconds: float | None = None
    whole_seconds: int = 0  # added to ``seconds``: since 1970 where stamps are dates, so that doubles keep their 100 ns


def first_of(row: Fields, names: tuple[str, ...], where: str) -> tuple[str, Any]:
    """Return (name, value) of the first field of ``names`` that the row has; BadInput where it has none."""
    for name in names:
        if row.get(name) not in (None, ""):
            return name, row[name]
    raise BadInput(f"{where}: {names[0]} is missing")


def read_number(value: object, where: str) -> float:
    """Return a finite number from JSON or text."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        number = number_of(value) if isinstance(value, str) else float(min(max(value, -_HUGE), _HUGE))
        if -_HUGE < number < _HUGE:
            return number
    raise BadInput(f"{where}: {str(value)[:40]!r} must be a finite number")


def read_tokens(value: object, where: str) -> int:
    """Return a count of tokens, at least 1."""
    number = read_number(value, where)
    if number != int(number) or not 1 <= number <= MOST_TOKENS:
        raise BadInput(f"{where}: {number:g} must be a whole number of tokens from 1 to {MOST_TOKENS}")
    return int(number)


def read_time(value: object, unit_seconds: float, unit_name: str, where: str) -> float:
    """Return a stamp in seconds: a number of units from 0 on."""
    seconds = read_number(value, where) * unit_seconds
    if not 0 <= seconds < 1e12:
        raise BadInput(f"{where}: {str(value)[:40]!r} must be {unit_name} from 0")
    return seconds


def read_delay(row: Fields, names: tuple[str, ...], unit_seconds: float, where: str) -> float | None:
    """Return the seconds after the last turn, None where the row states none."""
    for name in names:
        if row.get(name) not in (None, ""):
            seconds = read_number(row[name], f"{where}: {name}") * unit_seconds
            if not 0 <= seconds < 1e9:
                raise BadInput(f"{where}: {name}: {str(row[name])[:40]!r} must not be negative")
            return seconds
    return None


def read_session(row: Fields, name: str, where: str) -> str | None:
    """Return the session that a turn belongs to, None for a request of its own."""
    value = row.get(name)
    if value in (None, ""):
        return None
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise BadInput(f"{where}: {name}: must be a text or a whole number")
    return str(value)


def read_hash_ids(value: Any, where: str) -> Integers:
    """Return the block identifiers of a prompt."""
    if not isinstance(value, list) or not all(type(item) is int and abs(item) < 2**63 for item in value):
        raise BadInput(f"{where}: must be a list of integers")
    return np.array(value, dtype=np.int64)


def read_stamp(text: object, where: str) -> tuple[datetime, float]:
    """Return the whole second and the fraction of a stamp like 2023-11-16 18:15:46.6805900."""
    if text is None:
        raise BadInput(f"{where} is missing")
    match = _STAMP.fullmatch(str(text).strip())
    try:
        if match:
            return datetime.fromisoformat(match[1]), float(f"0.{match[2] or 0}")
    except ValueError:
        pass
    raise BadInput(f"{where}: {str(text)[:40]!r} must look like 2023-11-16 18:15:46.6805900")


def estimate_tokens(text: object, where: str) -> int:
    """Return the tokens of a text as its UTF-8 bytes over 4, at least 1: an estimate, for files without counts."""
    if not isinstance(text, str):
        raise BadInput(f"{where}: must be a text")
    return max(round(len(text.encode("utf-8", errors="replace")) / BYTES_PER_TOKEN_OF_TEXT), 1)
