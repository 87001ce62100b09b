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

Time kernels on a local accelerator through PyTorch: the rows that ``plan calibrate`` fits.

PyTorch is handed in, never imported here, so the rest of podplan does without it. Every time is the
median of several runs between device synchronisations, after warm-up; a run repeats the kernel
often enough to last past the clock's resolution. On a CPU the figures are worth nothing but show
that the script runs.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import matmul
from pathlib import Path
from typing import Any, get_args

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

NUMBERS = {  # the columns with numbers that a row of each kind needs, ``seconds`` aside
    **dict.fromkeys(MATMULS, ("groups", "rows", "columns", "depth")),
    **dict.fromkeys(ATTENTIONS, ("flops", "bytes", "mean_keys")),
    "memory_copy": ("bytes",),
    "eager_launch": (),
    "graph_launch": (),
    **dict.fromkeys(get_args(CollectiveOp), ("ranks", "message_bytes")),
    **dict.fromkeys(DIRECTIONS, ("degree", "payload_bytes")),
}

WORDS: dict[str, dict[str, tuple[str, ...]]] = {  # the columns with words, and the words that they may hold
    **{kernel: {"dtype": tuple(INPUT_BYTES)} for kernel in MATMULS},
    **{op: {"scope": get_args(ScopeName), "in_graph": ("yes", "no")} for op in get_args(CollectiveOp)},
    **{direction: {"mode": MODES} for direction in DIRECTIONS},
}

KIND_COLUMNS = ("kernel", "op", "direction")
MAY_BE_ZERO = ("flops", "bytes")
SECONDS = (1e-9, 1e5)  # the times that a measurement can have: what lies outside was written in another unit
MOST = 1e24  # the largest number of any other column: fits multiply several of them
Kernel = Callable[[], object]

# Rows, columns and depth of products as inference has them: few rows stream the weights, many fill the device.
GEMMS = [(rows, 8192, 8192) for rows in (1, 16, 64, 256, 1024, 4096)] + [
    (rows, columns, depth) for rows in (64, 512, 4096) for columns, depth in ((2112, 7168), (7168, 2048))
]
GROUPED = [(8, rows, 4096, 7168) for rows in (4, 32, 128, 512, 2048)]
DECODES = [(8, 1024), (32, 4096), (128, 4096)]  # requests, cached tokens of each
PREFILLS = [1024, 4096, 8192]
COPIES = [2**20, 2**26, 2**30]
HEADS, WIDTH = 32, 128


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
        return f"{self.what} {self.words['mode']}" if self.what in DIRECTIONS else self.what

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
        told = f"is {text[:40]!r}" if text else "is missing"
        raise BadInput(f"{where}: {column} {told}; it must be a positive number")
    least, most = SECONDS if column == "seconds" else (0.0, MOST)
    if not least <= number <= most:
        raise BadInput(f"{where}: {column} is {str(text)[:40]!r}; it must be from {least:g} to {most:g}")
    return number


@dataclass(frozen=True, slots=True)
class Timer:
    """PyTorch, a device of it, and how much is measured; ``quick`` divides the shapes for a smoke test."""

    torch: Any
    device: str
    quick: bool = False
    runs: int = 5
    least_seconds: float = 0.02

    def shrunk(self, number: int, least: int = 1) -> int:
        """Return a dimension as it is measured."""
        return max(number // 64, least) if self.quick else number

    def tensor(self, *shape: int) -> Any:
        """Return random numbers on the device, in BF16."""
        return self.torch.randn(*shape, device=self.device).to(self.torch.bfloat16)

    def synchronise(self) -> None:
        """Wait until the device is done."""
        backend = getattr(self.torch, self.device.partition(":")[0], None)
        if backend is not None and hasattr(backend, "synchronize"):
            backend.synchronize()

    def seconds(self, kernel: Kernel) -> float:
        """Return the median seconds of one call."""
        kernel()
        self.synchronise()
        alone = max(self._once(kernel, 1), 1e-7)
        repeats = max(1, min(1000, round(self.least_seconds / alone)))
        return statistics.median(self._once(kernel, repeats) for _ in range(self.runs))

    def _once(self, kernel: Kernel, repeats: int) -> float:
        self.synchronise()
        start = time.perf_counter()
        for _ in range(repeats):
            kernel()
        self.synchronise()
        return (time.perf_counter() - start) / repeats


def row(kernel: str, seconds: float, **shape: object) -> dict[str, object]:
    """Return a measured time of a kernel with the columns of its kind."""
    return {"kernel": kernel, **shape, "seconds": seconds}


def measure_all(timer: Timer) -> Iterator[dict[str, object]]:
    """Yield a row per measured kernel, with the columns that ``hardware.measurements`` reads."""
    for measured in (gemms, grouped_gemms, decode_attention, prefill_attention, copies, launches):
        for own in measured(timer):
            yield {**own, "version": f"PyTorch {timer.torch.__version__}", "source": f"plan measure on {timer.device}"}


def gemms(timer: Timer) -> Iterator[dict[str, object]]:
    """BF16 products of rows x depth by depth x columns."""
    for shape in GEMMS:
        rows, columns, depth = (timer.shrunk(number) for number in shape)
        left, right = timer.tensor(rows, depth), timer.tensor(depth, columns)
        seconds = timer.seconds(partial(matmul, left, right))
        yield row("gemm", seconds, dtype="bf16", groups=1, rows=rows, columns=columns, depth=depth)


def grouped_gemms(timer: Timer) -> Iterator[dict[str, object]]:
    """BF16 products of several groups, one batched product: the best that a grouped kernel can do."""
    for groups, *shape in GROUPED:
        rows, columns, depth = (timer.shrunk(number) for number in shape)
        left, right = timer.tensor(groups, rows, depth), timer.tensor(groups, depth, columns)
        seconds = timer.seconds(partial(timer.torch.bmm, left, right))
        yield row("grouped_gemm", seconds, dtype="bf16", groups=groups, rows=rows, columns=columns, depth=depth)


def decode_attention(timer: Timer) -> Iterator[dict[str, object]]:
    """One query token per request over its cached keys and values, each head with its own: that is what is moved."""
    for requests, cached in DECODES:
        batch, keys = timer.shrunk(requests), timer.shrunk(cached, 16)
        query = timer.tensor(batch, HEADS, 1, WIDTH)
        key, value = (timer.tensor(batch, HEADS, keys, WIDTH) for _ in range(2))
        seconds = timer.seconds(partial(_attend, timer, query, key, value, causal=False))
        flops, moved = 4.0 * batch * HEADS * WIDTH * keys, 2.0 * 2 * batch * HEADS * WIDTH * (keys + 1)
        yield row("gqa_decode", seconds, flops=flops, mean_keys=keys, bytes=moved)


def prefill_attention(timer: Timer) -> Iterator[dict[str, object]]:
    """A prompt's causal attention over itself."""
    for tokens in PREFILLS:
        length = timer.shrunk(tokens, 16)
        query, key, value = (timer.tensor(1, HEADS, length, WIDTH) for _ in range(3))
        seconds = timer.seconds(partial(_attend, timer, query, key, value, causal=True))
        flops, moved = 4.0 * HEADS * WIDTH * length * (length + 1) / 2, 4.0 * 2 * HEADS * WIDTH * length
        yield row("prefill_attention", seconds, flops=flops, mean_keys=(length + 1) / 2, bytes=moved)


def _attend(timer: Timer, query: Any, key: Any, value: Any, *, causal: bool) -> object:
    return timer.torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)


def copies(timer: Timer) -> Iterator[dict[str, object]]:
    """Bytes read and written by a copy inside the device's memory."""
    for size in COPIES:
        elements = timer.shrunk(size, 64) // 2
        source = timer.tensor(elements)
        target = timer.torch.empty_like(source)
        seconds = timer.seconds(partial(target.copy_, source))
        yield row("memory_copy", seconds, bytes=2.0 * 2 * elements)


def launches(timer: Timer) -> Iterator[dict[str, object]]:
    """Host seconds to launch one tiny kernel, launched one by one."""
    small = timer.tensor(16)
    count = 10 if timer.quick else 1000

    def many() -> None:
        for _ in range(count):
            small.add_(1)

    yield row("eager_launch", timer.seconds(many) / count)
