"""Request traces: who arrives when, with how many tokens in and out.

Azure LLM inference CSV (``TIMESTAMP,ContextTokens,GeneratedTokens``,
github.com/Azure/AzurePublicDataset) and Mooncake JSON lines (``timestamp`` in milliseconds,
``input_length``, ``output_length``, ``hash_ids`` of 512-token blocks,
github.com/kvcache-ai/Mooncake, FAST25-release), plain or gzipped.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from podplan.errors import BadInput
from podplan.units import MEBI, MILLI

TraceFormat = Literal["azure", "mooncake"]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_ROWS = 5_000_000
MOST_BYTES = 512 * MEBI
MOST_LINE_BYTES = 4 * MEBI
MOST_TOKENS = 100_000_000
MOONCAKE_BLOCK_TOKENS = 512

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival; arrays have one element per request.

    ``arrival_seconds`` counts from the first request. ``hash_ids`` are the prompt's block
    identifiers, None where the format has none. ``spread_seconds`` > 0 says that equal stamps were
    spread over so long.
    """

    name: str
    format: TraceFormat
    arrival_seconds: Floats
    input_tokens: Integers
    output_tokens: Integers
    hash_ids: tuple[Integers, ...] | None = None
    block_tokens: int = 0
    spread_seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.arrival_seconds)


@dataclass(frozen=True, slots=True)
class _Row:
    seconds: float
    input_tokens: int
    output_tokens: int
    hash_ids: Integers | None = None


def read_trace(path: Path, format: TraceFormat | None = None, *, dequantize_seed: int | None = None) -> Trace:
    """Return the trace in ``path``; the format is seen from the content unless it is declared.

    Requests are ordered by arrival, equal stamps stay in file order. With ``dequantize_seed``
    stamps that stand on a grid are spread (see ``dequantize``).

    Raises:
        BadInput: no readable file, no request, more than 5 million rows or 512 MiB unpacked, or a
            wrong field, named with its line.
    """
    lines = _numbered_lines(path)
    first = next(lines, None)
    if first is None:
        raise BadInput(f"{path}: has no request; a trace needs at least one row")
    seen = format or ("mooncake" if first[1].startswith("{") else "azure")
    if seen not in get_args(TraceFormat):
        raise BadInput(f"{path}: trace format {seen!r} is not known; use azure or mooncake")
    read = _mooncake_rows if seen == "mooncake" else _azure_rows
    rows = list(read(path, first, lines))
    if not rows:
        raise BadInput(f"{path}: has no request; a trace needs at least one row")
    trace = _assemble(path, seen, rows)
    return trace if dequantize_seed is None else dequantize(trace, dequantize_seed)


def _assemble(path: Path, format: TraceFormat, rows: list[_Row]) -> Trace:
    """Return rows as arrays in order of arrival."""
    seconds = np.array([row.seconds for row in rows])
    order = np.argsort(seconds, kind="stable")
    ids = [rows[i].hash_ids for i in order]
    known = tuple(value for value in ids if value is not None)
    if known and len(known) < len(ids):
        raise BadInput(f"{path}: hash_ids stand in {len(known)} of {len(ids)} rows; give them in all or in none")
    return Trace(
        name=path.name,
        format=format,
        arrival_seconds=seconds[order] - seconds.min(),
        input_tokens=np.array([rows[i].input_tokens for i in order], dtype=np.int64),
        output_tokens=np.array([rows[i].output_tokens for i in order], dtype=np.int64),
        hash_ids=known or None,
        block_tokens=MOONCAKE_BLOCK_TOKENS if known else 0,
    )


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of lines that are not blank, within the limits on rows and bytes."""
    number = total = 0
    try:
        with path.open("rb") as raw, _unpacked(raw) as file:
            while line := file.readline(MOST_LINE_BYTES):
                number, total = number + 1, total + len(line)
                if len(line) == MOST_LINE_BYTES or number > MOST_ROWS + 1 or total > MOST_BYTES:
                    raise BadInput(
                        f"{path}, line {number}: is too large; a trace has at most {MOST_ROWS} rows, "
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
    packed = raw.peek(2)[:2] == b"\x1f\x8b"
    return gzip.GzipFile(fileobj=raw) if packed else raw


def _azure_rows(path: Path, first: tuple[int, str], lines: Iterator[tuple[int, str]]) -> Iterator[_Row]:
    """Yield the rows of an Azure CSV; seven digits of a second count from the first row's whole second."""
    header = next(csv.reader([first[1]]))
    missing = [name for name in _AZURE_COLUMNS if name not in header]
    if missing:
        raise BadInput(
            f"{path}, line {first[0]}: column {missing[0]} is missing; an Azure trace has {','.join(_AZURE_COLUMNS)} "
            "and a Mooncake trace has a JSON object per line"
        )
    stamp, inputs, outputs = (header.index(name) for name in _AZURE_COLUMNS)
    origin: datetime | None = None
    for number, text in lines:
        where, cells = f"{path}, line {number}", text.split(",")
        if len(cells) != len(header):
            raise BadInput(f"{where}: has {len(cells)} fields, the header has {len(header)}")
        whole, fraction = _parse_stamp(cells[stamp], where)
        origin = origin or whole
        yield _Row(
            (whole - origin).total_seconds() + fraction,
            _tokens(_number(cells[inputs], f"{where}: ContextTokens"), f"{where}: ContextTokens"),
            _tokens(_number(cells[outputs], f"{where}: GeneratedTokens"), f"{where}: GeneratedTokens"),
        )


def _parse_stamp(text: str, where: str) -> tuple[datetime, float]:
    """Return the whole second and the fraction of a stamp like 2023-11-16 18:15:46.6805900."""
    match = _STAMP.fullmatch(text.strip())
    try:
        if match:
            return datetime.fromisoformat(match[1]), float(f"0.{match[2] or 0}")
    except ValueError:
        pass
    raise BadInput(f"{where}: TIMESTAMP: {text[:40]!r} must look like 2023-11-16 18:15:46.6805900")


def _mooncake_rows(path: Path, first: tuple[int, str], lines: Iterator[tuple[int, str]]) -> Iterator[_Row]:
    """Yield the rows of Mooncake JSON lines; stamps are milliseconds."""
    for number, text in chain([first], lines):
        where = f"{path}, line {number}"
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise BadInput(f"{where}: must be a JSON object with timestamp, input_length and output_length")
        for field in ("timestamp", "input_length", "output_length"):
            if field not in row:
                raise BadInput(f"{where}: {field} is missing")
        seconds = _number(row["timestamp"], f"{where}: timestamp") * MILLI
        if not 0 <= seconds < 1e12:
            raise BadInput(f"{where}: timestamp: {row['timestamp']!r} must be milliseconds from 0")
        yield _Row(
            seconds,
            _tokens(_number(row["input_length"], f"{where}: input_length"), f"{where}: input_length"),
            _tokens(_number(row["output_length"], f"{where}: output_length"), f"{where}: output_length"),
            _hash_ids(row["hash_ids"], f"{where}: hash_ids") if "hash_ids" in row else None,
        )


def _number(value: object, where: str) -> float:
    """Return a finite number from JSON or text."""
    try:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            number = float(value)
            if np.isfinite(number):
                return number
    except (ValueError, OverflowError):
        pass
    raise BadInput(f"{where}: {str(value)[:40]!r} must be a finite number")


def _tokens(number: float, where: str) -> int:
    """Return a count of tokens, at least 1."""
    if number != int(number) or not 1 <= number <= MOST_TOKENS:
        raise BadInput(f"{where}: {number:g} must be a whole number of tokens from 1 to {MOST_TOKENS}")
    return int(number)


def _hash_ids(value: Any, where: str) -> Integers:
    """Return the block identifiers of a prompt."""
    if not isinstance(value, list) or not all(type(item) is int and abs(item) < 2**63 for item in value):
        raise BadInput(f"{where}: must be a list of integers")
    return np.array(value, dtype=np.int64)


def stamp_grid_seconds(trace: Trace) -> float:
    """Return the spacing of stamps that stand on a grid, 0 where they do not.

    A grid is seen where more than half of the gaps are 0 and every other one is a multiple of the
    smallest: Mooncake's conversation trace has about 10 requests per 3-second stamp, an artefact
    that would be read as bursts.
    """
    gaps = np.diff(trace.arrival_seconds)
    positive = gaps[gaps > 0]
    if not positive.size or positive.size > gaps.size / 2:
        return 0.0
    step = float(positive.min())
    ratio = positive / step
    return step if np.allclose(ratio, np.round(ratio), atol=1e-3) else 0.0


def dequantize(trace: Trace, seed: int) -> Trace:
    """Return ``trace`` with stamps on a grid spread uniformly over the grid's step; others unchanged."""
    step = stamp_grid_seconds(trace)
    if not step:
        return trace
    jitter = np.random.default_rng(seed).uniform(0.0, step, len(trace))
    moved = replace(trace, arrival_seconds=trace.arrival_seconds + jitter, spread_seconds=step)
    return _select(moved, np.argsort(moved.arrival_seconds, kind="stable"))


def window(trace: Trace, start_seconds: float, end_seconds: float) -> Trace:
    """Return the requests that arrive from ``start_seconds`` to before ``end_seconds``, counted from the start.

    Raises BadInput if there is none.
    """
    inside = np.flatnonzero((trace.arrival_seconds >= start_seconds) & (trace.arrival_seconds < end_seconds))
    if not inside.size:
        raise BadInput(f"{trace.name}: no request arrives from {start_seconds:g} s to {end_seconds:g} s")
    return _select(trace, inside)


def first_requests(trace: Trace, count: int) -> Trace:
    """Return the first ``count`` requests, all of them if there are fewer."""
    return _select(trace, np.arange(min(count, len(trace))))


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Return the trace played ``factor`` times as fast."""
    if not factor > 0 or not np.isfinite(factor):
        raise BadInput(f"{trace.name}: rate factor {factor:g} must be positive")
    return replace(trace, arrival_seconds=trace.arrival_seconds / factor)


def requests_per_second(trace: Trace) -> float:
    """Return the mean rate: (n - 1) arrivals after the first over the span; 0 for a span of 0."""
    span = float(trace.arrival_seconds[-1] - trace.arrival_seconds[0])
    return (len(trace) - 1) / span if span > 0 else 0.0


def reused_tokens(trace: Trace) -> Integers:
    """Return the prompt tokens of each request whose blocks stood at the head of an earlier prompt.

    Unlimited cache; block identifiers are chained, so a known block implies known ones before it.
    """
    counts = np.zeros(len(trace), dtype=np.int64)
    seen: set[int] = set()
    for index, ids in enumerate(trace.hash_ids or ()):
        values = ids.tolist()
        hits = next((i for i, value in enumerate(values) if value not in seen), len(values))
        counts[index] = min(hits * trace.block_tokens, int(trace.input_tokens[index]))
        seen.update(values)
    return counts


def _select(trace: Trace, index: Integers) -> Trace:
    """Return the requests at ``index``, arrivals counted from the first of them."""
    arrival = trace.arrival_seconds[index]
    return replace(
        trace,
        arrival_seconds=arrival - arrival[0],
        input_tokens=trace.input_tokens[index],
        output_tokens=trace.output_tokens[index],
        hash_ids=tuple(trace.hash_ids[i] for i in index) if trace.hash_ids else None,
    )
