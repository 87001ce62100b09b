"""Records of a trace file, one at a time: CSV, JSON lines, a JSON document or Parquet, plain or gzipped."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ground.archives import GZIP, unbroken
from ground.errors import BadInput
from ground.files import csv_cells, first_bytes
from ground.units import MEBI

MOST_ROWS = 5_000_000
"""Of a trace that is held whole; one that is read in parts may have twenty times as many."""
MOST_BYTES = 4096 * MEBI
MOST_LINE_BYTES = 4 * MEBI
MOST_DOCUMENT_BYTES = 256 * MEBI

Record = tuple[str, dict[str, Any] | BadInput]
"""Where a record stands ("FILE, line 3"), and its fields or what is wrong with it."""


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
        return None, _json_records(path, first, lines) if _json(text) is not None else _document_records(path)
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


def _json_records(path: Path, first: tuple[int, str], lines: Iterator[tuple[int, str]]) -> Iterator[Record]:
    number, text = first
    while True:
        where, row = f"{path}, line {number}", _json(text)
        yield where, row if isinstance(row, dict) else BadInput(f"{where}: must be a JSON object")
        following = next(lines, None)
        if following is None:
            return
        number, text = following


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
