"""Request traces: who arrives when, with how many tokens in and out.

``ground.trace_formats`` holds the formats and ``ground.servegen`` client sets; this module makes arrays of rows, all
at once or in parts, and changes them: windows, rates, stamps on a grid.

Sessions of several turns: whose prompt begins with which text of the turns before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Floats
from ground.errors import BadInput
from ground.prefix_cache import POOL_BLOCK_TOKENS, PrefixCache
from ground.servegen import is_client_set, read_stream
from ground.trace_formats import FORMATS, FormatSpec, TraceFormat as TraceFormat, see_format
from ground.trace_lines import MOST_ROWS, Record, TraceRow, records

Integers = NDArray[np.int64]

FEWEST_FOR_A_RATE = 20
PLAUSIBLE_PER_SECOND = (1e-3, 4e3)
"""Mean rates that public traces have, 0.1 to 1,800 a second, and a margin; stamps read in a wrong unit lie outside."""
_APART = 1 << 24  # identifiers of a chain of blocks: more than the blocks of any prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival; arrays have one element per request.

    ``arrival_seconds`` counts from the first request, all 0 where ``timed`` is false (the file has lengths only).
    ``hash_ids`` are the prompt's block identifiers, None where the format has none; ``reused_tokens`` what it finds of
    them in a cache that was chosen. ``session`` numbers the conversation of a request and ``delay_seconds`` says how
    long after the end of its last turn it is sent (a number from the second turn on, below 0 for a request that goes
    with the one before it); both None where no request belongs to one. ``spread_seconds`` > 0 says that equal stamps
    were spread over so long, ``skipped`` holds what was wrong with rows that were left out, ``left_out`` counts
    requests that a model has no positions for (``ground.trace_lengths``), ``notes`` say what a reader should know.
    """

    name: str
    format: TraceFormat
    arrival_seconds: Floats
    input_tokens: Integers
    output_tokens: Integers
    hash_ids: tuple[Integers, ...] | None = None
    block_tokens: int = 0
    reused_tokens: Integers | None = None
    spread_seconds: float = 0.0
    timed: bool = True
    session: Integers | None = None
    delay_seconds: Floats | None = None
    skipped: tuple[str, ...] = ()
    left_out: int = 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_seconds)


def read_trace(
    path: Path,
    format: TraceFormat | None = None,
    *,
    dequantize_seed: int | None = None,
    skip_bad_rows: int = 0,
    seed: int = 0,
) -> Trace:
    """Return the trace in ``path``; the format is seen from the content unless it is declared.

    Requests are ordered by arrival, equal stamps stay in file order. With ``dequantize_seed``
    stamps that stand on a grid are spread (see ``dequantize``). ``seed`` draws the requests of a ServeGen client set.

    Raises BadInput: no readable file, no request, more than 5 million rows or 4 GiB unpacked, stamps whose unit cannot
    be the format's, or more than ``skip_bad_rows`` wrong rows, the first named with its line and field.
    """
    if format == "servegen" or (format is None and is_client_set(path)):
        arrivals, inputs, outputs = read_stream(path, seed)
        return Trace(
            name=path.name,
            format="servegen",
            arrival_seconds=arrivals,
            input_tokens=inputs,
            output_tokens=outputs,
            notes=("requests are drawn from the client set; inputs and outputs independently",),
        )
    reader = _Reader(path, format, skip_bad_rows)
    rows = list(reader.rows())
    if not rows:
        raise BadInput(f"{path}: has no request; a trace needs at least one row")
    trace = _check_unit(_assemble(reader, rows), path, declared=format is not None)
    return trace if dequantize_seed is None else dequantize(trace, dequantize_seed)


def stream_trace(
    path: Path, format: TraceFormat | None = None, *, skip_bad_rows: int = 0, rows_per_part: int = 16384
) -> Iterator[Trace]:
    """Yield the trace in parts of about ``rows_per_part`` requests, so that memory does not grow with the file.

    Arrivals count from the first request of the file. Rows may be out of order by less than a part; stamps on a grid
    stay on it, and sessions and client sets need the whole file (``read_trace``).

    Raises BadInput as ``read_trace``, and where a row lies further back in time.
    """
    reader = _Reader(path, format, skip_bad_rows, 20 * MOST_ROWS)
    rows, held, last = reader.rows(), list[TraceRow](), -np.inf
    origin: tuple[int, float] | None = None
    while True:
        held += islice(rows, rows_per_part)
        if not held:
            return
        if any(row.session is not None or row.seconds is None for row in held):
            raise BadInput(f"{path}: sessions and rows without arrivals need the whole file at once; it is too long")
        whole = held[0].whole_seconds if origin is None else origin[0]
        held.sort(key=lambda row: row.whole_seconds - whole + (row.seconds or 0.0))
        ready = held if len(held) < rows_per_part else held[: rows_per_part // 2]
        held = [] if ready is held else held[rows_per_part // 2 :]
        part = _assemble(reader, ready)
        first = ready[0].whole_seconds - whole + (ready[0].seconds or 0.0)
        if origin is None:
            origin = (whole, first)
            _check_unit(part, path, declared=format is not None)
        if first < last:
            raise BadInput(
                f"{path}: a row lies more than {rows_per_part // 2} rows back in time; sort the file by time"
            )
        last = ready[-1].whole_seconds - whole + (ready[-1].seconds or 0.0)
        yield replace(part, arrival_seconds=part.arrival_seconds + (first - origin[1]))


class _Reader:
    """Rows of one file, wrong ones counted and left out while they are few enough."""

    def __init__(self, path: Path, format: TraceFormat | None, skip_bad_rows: int, most_rows: int = MOST_ROWS) -> None:
        if format is not None and format not in get_args(TraceFormat):
            raise BadInput(
                f"{path}: trace format {format!r} is not known; use one of {', '.join(get_args(TraceFormat))}"
            )
        self.path, self._most_bad = path, skip_bad_rows
        self.skipped: list[str] = []
        header, found = records(path, most_rows)
        first = next(found, None)
        if first is None:
            raise BadInput(f"{path}: has no request; a trace needs at least one row")
        self._records = chain([first], found)
        self.format = format or self._see(header, first)
        if header is not None:
            self._check_header(header)

    @property
    def spec(self) -> FormatSpec:
        """The format's fields."""
        return FORMATS[self.format]

    def _see(self, header: list[str] | None, first: Record) -> TraceFormat:
        """Return the format whose fields the header or the first record has."""
        fields = dict.fromkeys(header) if header is not None else first[1]
        if isinstance(fields, BadInput):
            raise fields
        seen = see_format(fields, header is not None)
        if seen is None:
            if header is not None:
                raise BadInput(
                    f"{self.path}, line 1: column TIMESTAMP is missing; an Azure trace has "
                    "TIMESTAMP,ContextTokens,GeneratedTokens; name another format with --format"
                )
            names = ", ".join(sorted(map(str, fields))[:8])
            raise BadInput(f"{first[0]}: input_length is missing, and no known format has the fields {names}")
        return seen

    def _check_header(self, header: list[str]) -> None:
        for choices in (self.spec.inputs, self.spec.outputs):
            if not any(name in header for name in choices):
                raise BadInput(f"{self.path}, line 1: column {choices[0]} is missing for the format {self.format}")
        if self.spec.time and self.format != "vidur" and not any(name in header for name in self.spec.time):
            raise BadInput(f"{self.path}, line 1: column {self.spec.time[0]} is missing for the format {self.format}")
        self.timed = any(name in header for name in self.spec.time)

    def rows(self) -> Iterator[TraceRow]:
        """Yield requests in file order."""
        spec = self.spec
        if self.format == "vidur" and not getattr(self, "timed", True):
            spec = replace(spec, time=())
        for where, fields in self._records:
            try:
                if isinstance(fields, BadInput):
                    raise fields
                yield from spec.read(fields, where)
            except BadInput as error:
                if len(self.skipped) >= self._most_bad:
                    raise
                self.skipped.append(str(error))


def _assemble(reader: _Reader, rows: list[TraceRow]) -> Trace:
    """Return rows as arrays in order of arrival."""
    path, (seconds, session, delay) = reader.path, _times(rows, reader.path)
    timed = seconds is not None
    seconds = np.zeros(len(rows)) if seconds is None else seconds
    order = np.argsort(seconds, kind="stable")
    ids = [rows[i].hash_ids for i in order]
    known = tuple(value for value in ids if value is not None)
    if known and len(known) < len(ids):
        raise BadInput(f"{path}: hash_ids stand in {len(known)} of {len(ids)} rows; give them in all or in none")
    notes = ["token counts are estimated from texts at 4 bytes a token"] if reader.spec.estimated else []
    if not timed:
        notes.append("the file has lengths only; arrivals are drawn")
    return Trace(
        name=path.name,
        format=reader.format,
        arrival_seconds=seconds[order] - seconds.min(),
        input_tokens=np.array([rows[i].input_tokens for i in order], dtype=np.int64),
        output_tokens=np.array([rows[i].output_tokens for i in order], dtype=np.int64),
        hash_ids=known or None,
        block_tokens=reader.spec.block_tokens if known else 0,
        timed=timed,
        session=None if session is None else session[order],
        delay_seconds=None if delay is None else delay[order],
        skipped=tuple(reader.skipped),
        notes=tuple(notes),
    )


def _times(rows: list[TraceRow], path: Path) -> tuple[Floats | None, Integers | None, Floats | None]:
    """Return arrivals, sessions and delays; a turn without a stamp counts as sent its delay after the turn before."""
    if all(row.seconds is None and row.session is None for row in rows):
        return None, None, None
    origin = next((row.whole_seconds for row in rows if row.seconds is not None), 0)
    seconds = np.zeros(len(rows))
    session, delay = np.full(len(rows), -1, dtype=np.int64), np.full(len(rows), np.nan)
    numbers: dict[str, int] = {}
    last: dict[str, float] = {}
    for index, row in enumerate(rows):
        before = None if row.session is None else last.get(row.session)
        if row.seconds is not None:
            seconds[index] = row.whole_seconds - origin + row.seconds
        elif before is not None:
            seconds[index] = before + (row.delay_seconds or 0.0)
        elif row.session is None:
            raise BadInput(f"{path}: request {index + 1} has no arrival although others have; give it in all rows")
        if row.session is not None:
            session[index] = numbers.setdefault(row.session, len(numbers))
            if before is not None:
                gap = seconds[index] - before if row.delay_seconds is None else row.delay_seconds
                delay[index] = max(gap, 0.0)
            last[row.session] = seconds[index]
    return (seconds, session, delay) if numbers else (seconds, None, None)


def _check_unit(trace: Trace, path: Path, declared: bool) -> Trace:
    """Refuse a detected format whose unit implies a rate that no service has; note it for a declared one."""
    rate = requests_per_second(trace)
    least, most = PLAUSIBLE_PER_SECOND
    if len(trace) < FEWEST_FOR_A_RATE or not rate or least <= rate <= most:
        return trace
    unit = FORMATS[trace.format].unit_name
    told = f"stamps in {unit}, as {trace.format} has them, mean {rate:.3g} requests per second"
    if not declared:
        raise BadInput(f"{path}: {told}; name the format with --format (guidellm has seconds, mooncake milliseconds)")
    return replace(trace, notes=(*trace.notes, f"{told}; is that the unit?"))


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
    return select(moved, np.argsort(moved.arrival_seconds, kind="stable"))


def window(trace: Trace, start_seconds: float, end_seconds: float) -> Trace:
    """Return the requests that arrive from ``start_seconds`` to before ``end_seconds``, counted from the start.

    Raises BadInput if there is none.
    """
    inside = np.flatnonzero((trace.arrival_seconds >= start_seconds) & (trace.arrival_seconds < end_seconds))
    if not inside.size:
        raise BadInput(f"{trace.name}: no request arrives from {start_seconds:g} s to {end_seconds:g} s")
    return select(trace, inside)


def first_requests(trace: Trace, count: int) -> Trace:
    """Return the first ``count`` requests, all of them if there are fewer."""
    return select(trace, np.arange(min(count, len(trace))))


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Return the trace played ``factor`` times as fast."""
    if not factor > 0 or not np.isfinite(factor):
        raise BadInput(f"{trace.name}: rate factor {factor:g} must be positive")
    return replace(trace, arrival_seconds=trace.arrival_seconds / factor)


def requests_per_second(trace: Trace) -> float:
    """Return the mean rate: (n - 1) arrivals after the first over the span; 0 for a span of 0."""
    span = float(trace.arrival_seconds[-1] - trace.arrival_seconds[0])
    return (len(trace) - 1) / span if span > 0 else 0.0


def reused_tokens(trace: Trace, cache: PrefixCache | None = None) -> Integers:
    """Return the prompt tokens of each request whose blocks stood at the head of earlier ones, at most all but one.

    In the cache that is given; else those that the trace states, or those of a cache without limit.
    """
    if cache is None and trace.reused_tokens is not None:
        return trace.reused_tokens
    cache = PrefixCache(trace.block_tokens) if cache is None else cache
    counts = np.zeros(len(trace), dtype=np.int64)
    for index, (ids, prompt) in enumerate(zip(trace.hash_ids or (), trace.input_tokens.tolist(), strict=False)):
        blocks = ids.tolist()
        found = cache.look_up(blocks, prompt)
        counts[index] = found.tokens
        cache.count(found, prompt)
        cache.insert(blocks)
    return counts


def select(trace: Trace, index: Integers) -> Trace:
    """Return the requests at ``index``, arrivals counted from the first of them.

    The first turn of a session that is kept follows none, whatever came before it.
    """
    arrival, session, delay = trace.arrival_seconds[index], trace.session, trace.delay_seconds
    if session is not None and delay is not None:
        session, delay = session[index], delay[index]
        known, first = np.unique(session, return_index=True)
        delay[first[known >= 0]] = np.nan
    return replace(
        trace,
        arrival_seconds=arrival - arrival[0],
        input_tokens=trace.input_tokens[index],
        output_tokens=trace.output_tokens[index],
        hash_ids=tuple(trace.hash_ids[i] for i in index) if trace.hash_ids else None,
        reused_tokens=None if trace.reused_tokens is None else trace.reused_tokens[index],
        session=session,
        delay_seconds=delay,
    )


def with_arrivals(trace: Trace, requests_per_second: float, squared_cv: float, seed: int) -> Trace:
    """Return the trace with drawn arrivals: Gamma gaps at a mean rate (a squared variation of 1 is Poisson)."""
    mean = 1.0 / requests_per_second
    random = np.random.default_rng(seed)
    gaps = random.gamma(1 / squared_cv, mean * squared_cv, len(trace)) if squared_cv else np.full(len(trace), mean)
    return replace(trace, arrival_seconds=np.cumsum(gaps) - gaps[0], timed=True)


def repeat(trace: Trace, times: int) -> Trace:
    """Return the trace played so often, one after the other a mean gap apart; block identifiers stay the same."""
    rate = requests_per_second(trace)
    period = float(trace.arrival_seconds[-1]) + (1 / rate if rate else 0.0)
    session = trace.session
    if session is not None:
        count = int(session.max()) + 1
        session = np.concatenate([np.where(session >= 0, session + turn * count, -1) for turn in range(times)])
    return replace(
        trace,
        arrival_seconds=(np.arange(times)[:, None] * period + trace.arrival_seconds).ravel(),
        input_tokens=np.tile(trace.input_tokens, times),
        output_tokens=np.tile(trace.output_tokens, times),
        hash_ids=trace.hash_ids * times if trace.hash_ids else None,
        reused_tokens=None,
        session=session,
        delay_seconds=None if trace.delay_seconds is None else np.tile(trace.delay_seconds, times),
    )


def with_blocks(trace: Trace, block_tokens: int = POOL_BLOCK_TOKENS, *, keeps_answers: bool = True) -> Trace:
    """Return a trace of sessions with the identifiers of its blocks, full ones alone; as it is where it has some.

    A turn's prompt begins with the prompt and the answer of the turn before, unless it is shorter than both: then it
    begins anew. Turns beside another one (a delay below 0) share what that began with. Where answers are kept, their
    blocks stand behind the prompt's.
    """
    if trace.session is None or trace.delay_seconds is None or trace.hash_ids is not None:
        return trace
    chains, told = count(1), dict[int, tuple[int, int, int]]()
    ids: list[Integers] = []
    columns = (trace.session, trace.input_tokens, trace.output_tokens, trace.delay_seconds)
    for session, prompt, answer, delay in zip(*(column.tolist() for column in columns), strict=True):
        kept = (prompt + (answer if keeps_answers else 0)) // block_tokens
        chain, before, held = told.get(session, (0, 0, 0))
        if session < 0 or not chain or (prompt < held and not delay < 0):
            chain, held = next(chains), 0
        own = chain * _APART + np.arange(kept)
        if delay < 0 and session in told:
            own[before // block_tokens :] += (next(chains) - chain) * _APART
        else:
            told[session] = chain, held, prompt + answer
        ids.append(own)
    return replace(trace, hash_ids=tuple(ids), block_tokens=block_tokens)
