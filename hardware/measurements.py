"""Measured kernels, collectives and exchanges as rows of a CSV file: what ``plan calibrate`` reads.

One row is one measured time. Which columns it needs follows from what it measures:

    gemm, grouped_gemm, feed_forward                 kernel, dtype, groups, rows, columns, depth
    mla_decode, gqa_decode, prefill_attention        kernel, flops, bytes, mean_keys
    memory_copy (bytes read and written)             kernel, bytes
    eager_launch, graph_launch                       kernel
    all_reduce, all_gather, reduce_scatter, ...      op, scope, in_graph, ranks, message_bytes
    dispatch, combine                                direction, mode, degree, payload_bytes

and ``seconds`` always. ``version`` and ``source`` say what was measured and where it is written down;
``used_by``, where there is such a column, names the catalogue entries that a row is for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ground.errors import BadInput
from ground.files import csv_table, read_text
from ground.records import LEAST_SOURCE
from ground.units import number_of
from hardware.fits import INPUT_BYTES
from hardware.spec import CollectiveOp, ScopeName

MATMULS = ("gemm", "grouped_gemm", "feed_forward")
ATTENTIONS = ("mla_decode", "gqa_decode", "prefill_attention")
DIRECTIONS = ("dispatch", "combine")
MODES = ("low_latency", "normal")

NUMBERS = {
    **dict.fromkeys(MATMULS, ("groups", "rows", "columns", "depth")),
    **dict.fromkeys(ATTENTIONS, ("flops", "bytes", "mean_keys")),
    "memory_copy": ("bytes",),
    "eager_launch": (),
    "graph_launch": (),
    **dict.fromkeys(get_args(CollectiveOp), ("ranks", "message_bytes")),
    **dict.fromkeys(DIRECTIONS, ("degree", "payload_bytes")),
}
"""The columns with numbers that a row of each kind needs, ``seconds`` aside."""

WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    **{kernel: {"dtype": tuple(INPUT_BYTES)} for kernel in MATMULS},
    **{op: {"scope": get_args(ScopeName), "in_graph": ("yes", "no")} for op in get_args(CollectiveOp)},
    **{direction: {"mode": MODES} for direction in DIRECTIONS},
}
"""The columns with words, and the words that they may hold."""

KIND_COLUMNS = ("kernel", "op", "direction")
MAY_BE_ZERO = ("flops", "bytes")
SECONDS = (1e-9, 1e5)
"""The times that a measurement can have: what lies outside was written in another unit."""
MOST = 1e24
"""The largest number of any other column: fits multiply several of them."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured time: what it is of, its shape, and where it comes from."""

    what: str
    words: dict[str, str]
    shape: dict[str, float]
    seconds: float
    version: str
    source: str

    @property
    def family(self) -> str:
        """The fit that the row is for: measurements of one family are fitted together."""
        if self.what in MATMULS:
            return f"{'gemm' if self.what == 'gemm' else 'grouped_gemm'} {self.words['dtype']}"
        if self.what in get_args(CollectiveOp):
            return f"{self.what} {self.words['scope']}{' in graph' if self.words['in_graph'] == 'yes' else ''}"
        if self.what in DIRECTIONS:
            return f"{self.what} {self.words['mode']}"
        return self.what

    @property
    def text(self) -> str:
        """The shape in words, for reports."""
        return ", ".join(f"{name} {value:g}" for name, value in self.shape.items())


def read_measurements(paths: Iterable[Path], name: str) -> list[Measurement]:
    """Return the rows of the files that are for the catalogue entry ``name``, in order.

    Raises BadInput naming the file, the line and the column.
    """
    return [row for path in paths for row in _file(path, name)]


def _file(path: Path, name: str) -> list[Measurement]:
    table = csv_table(read_text(path), str(path), ("seconds",))
    if not any(column in table[0][1] for column in KIND_COLUMNS):
        raise BadInput(f"{path}: the first line must name the columns, among them one of {', '.join(KIND_COLUMNS)}")
    return [_row(row, where) for where, row in table if "used_by" not in row or name in row["used_by"].split()]


def _row(row: dict[str, str], where: str) -> Measurement:
    what = next(
        (value.strip() for value in (row.get(column) for column in KIND_COLUMNS) if value and value.strip()), ""
    )
    if what not in NUMBERS:
        raise BadInput(f"{where}: {what[:40]!r} is no kernel, op or direction; known are {', '.join(NUMBERS)}")
    words = {column: _word(row.get(column), column, known, where) for column, known in WORDS.get(what, {}).items()}
    shape = {column: _number(row.get(column), column, where) for column in NUMBERS[what]}
    if what in ATTENTIONS and not shape["flops"] and not shape["bytes"]:
        raise BadInput(f"{where}: flops and bytes are both 0; an attention kernel does one of them")
    return Measurement(
        what=what,
        words=words,
        shape=shape,
        seconds=_number(row.get("seconds"), "seconds", where),
        version=(row.get("version") or "").strip() or "not stated",
        source=_source(row.get("source"), where),
    )


def _source(text: str | None, where: str) -> str:
    """Return where a time comes from, in as many words as an entry asks of its sources."""
    source = (text or "").strip() or "own measurement"
    if len(source) < LEAST_SOURCE:
        raise BadInput(
            f"{where}: source is {source!r}; say in {LEAST_SOURCE} characters or more where the time is from"
        )
    return source


def _word(text: str | None, column: str, known: Sequence[str], where: str) -> str:
    word = (text or "").strip().lower()
    if word not in known:
        raise BadInput(f"{where}: {column} is {word[:40]!r}; use one of {', '.join(known)}")
    return word


def _number(text: str | None, column: str, where: str) -> float:
    number = number_of(text or "")
    if not number >= 0 or (number == 0 and column not in MAY_BE_ZERO):
        raise BadInput(f"{where}: {column} is {str(text)[:40]!r}; it must be a positive number")
    least, most = SECONDS if column == "seconds" else (0.0, MOST)
    if not least <= number <= most:
        raise BadInput(f"{where}: {column} is {str(text)[:40]!r}; it must be from {least:g} to {most:g}")
    return number
