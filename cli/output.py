"""What commands write: JSON, text and tables on stdout, progress and hints on stderr."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TextIO, TypeVar

from ground.errors import BadInput
from ground.files import check_file, write_files
from ground.units import MICRO, format_duration
from podplan.workers import Executor

LINE_WIDTH = 118
"""Of sentences, however wide the terminal is."""
UNFOLDED_WIDTH = 1000
"""Of tables that go to a file or a pipe, unless COLUMNS says otherwise."""
GAP = "   "
PATIENCE_SECONDS = 1.0

_UNIT = re.compile(r"(?<=[0-9]) (?=(?:s|ms|us|min|h|B|KB|MB|GB|TB|%)\b)")
"""Between a number and its unit."""

Item = TypeVar("Item")


class Screen:
    """Where an answer is shown: stdout, or a stream of a given width."""

    def __init__(self, stream: TextIO | None = None, width: int | None = None) -> None:
        """Show on ``stream``; lines fold at the terminal's width, in a file or a pipe at COLUMNS or not at all."""
        self._stream = stream or sys.stdout
        terminal = self._stream.isatty()
        folds = terminal or os.environ.get("COLUMNS")
        self.width = width or (get_terminal_size().columns if folds else UNFOLDED_WIDTH)
        self._bold = terminal and not os.environ.get("NO_COLOR")

    def lines(self, *lines: str) -> None:
        """Write lines as they are."""
        self._stream.write("".join(f"{line.rstrip()}\n" for line in lines))

    def text(self, *sentences: str) -> None:
        """Write each text from the margin, folded at words, the lines after its first indented."""
        for each in sentences:
            self.lines(*_folded(each, min(self.width, LINE_WIDTH), "  "))

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        title: str | None = None,
        right: Sequence[str] = (),
        spare: Sequence[str] = (),
    ) -> None:
        """Write a table, and an empty line behind it.

        Cells fold at words; columns named in ``right`` hold numbers, which never do. What still is too wide loses the
        ``spare`` columns, the last named first, and says so; then it is
        turned, a row to a column, or its rows become records, a line per cell.
        """
        left_out: list[str] = []
        kept = list(columns)
        while (widths := _widths(kept, _of(columns, kept, rows), right, self.width)) is None and len(left_out) < len(
            spare
        ):
            left_out.insert(0, spare[len(spare) - 1 - len(left_out)])
            kept = [name for name in columns if name not in left_out]
        if title:
            self._strong(title)
        if widths is not None:
            self._grid(kept, _of(columns, kept, rows), right, widths)
        else:
            turned = list(zip(columns, *rows, strict=True))
            fitting = _widths(turned[0], turned[1:], (), self.width)
            self._records(columns, rows) if fitting is None else self._grid(turned[0], turned[1:], (), fitting)
        if left_out and widths is not None:
            self.text(f"({self.width} columns leave out {', '.join(left_out)}.)")
        self.lines("")

    def _grid(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], widths: Sequence[int]
    ) -> None:
        for line in _row(columns, columns, right, widths, bottom=True):
            self._strong(line)
        self.lines("─" * (sum(widths) + len(GAP) * (len(widths) - 1)))
        for row in rows:
            self.lines(*_row(columns, row, right, widths))

    def _records(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a block per row: the first cell, then a line for each other one that is not empty."""
        name_width = max(map(len, columns[1:]), default=0)
        for row in rows:
            self._strong(row[0] or columns[0])
            for name, cell in zip(columns[1:], row[1:], strict=True):
                if cell:
                    start = f"  {name:<{name_width}}{GAP}"
                    self.lines(*_folded(start + cell, self.width, " " * len(start)))

    def _strong(self, line: str) -> None:
        self.lines(f"\x1b[1m{line.rstrip()}\x1b[0m" if self._bold else line)


def _of(columns: Sequence[str], kept: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the cells of the columns that are kept."""
    places = [place for place, name in enumerate(columns) if name in kept]
    return [[row[place] for place in places] for row in rows]


def _folded(text: str, width: int, indent: str) -> list[str]:
    """Return a text in lines of whole words, a number and its unit together; a word longer than a line stands alone."""
    bound = _UNIT.sub("\N{NO-BREAK SPACE}", text)
    folded = wrap(bound, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in folded] or [""]


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], width: int
) -> list[int] | None:
    """Return a width for each column, in all at most ``width``; None where whole words and numbers take more."""
    cells = [[row[place] for row in rows] for place in range(len(columns))]
    most = [max([len(name), *map(len, own)]) for name, own in zip(columns, cells, strict=True)]
    least = [
        max([_longest(name), *(len(cell) if name in right else _longest(cell) for cell in own)])
        for name, own in zip(columns, cells, strict=True)
    ]
    if least:
        least[0] = max([_longest(columns[0]), *map(len, cells[0])])  # a row's name stays in one piece
    room = width - len(GAP) * (len(columns) - 1)
    if sum(least) > room:
        return None
    while sum(most) > room:
        widest = max((place for place in range(len(most)) if most[place] > least[place]), key=lambda place: most[place])
        most[widest] -= 1
    return most


def _longest(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _row(
    columns: Sequence[str], cells: Sequence[str], right: Sequence[str], widths: Sequence[int], *, bottom: bool = False
) -> Iterator[str]:
    """Yield the lines of a row, whose cells fold; ``bottom`` aligns short ones with the end of long ones."""
    folded = [_folded(cell, width, "") for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, folded))
    for number in range(height):
        parts = []
        for name, own, width in zip(columns, folded, widths, strict=True):
            place = number - (height - len(own) if bottom else 0)
            part = own[place] if 0 <= place < len(own) else ""
            parts.append(part.rjust(width) if name in right else part.ljust(width))
        yield GAP.join(parts)


def short_duration(seconds: float) -> str:
    """Return a duration for a first screen, where nobody weighs nanoseconds."""
    return "< 1 us" if 0 < seconds < MICRO else format_duration(seconds)


def print_json(data: Mapping[str, object]) -> None:
    """Write ``data`` as one JSON object on stdout; ValueError for NaN and infinity, which JSON does not have."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def note(text: str) -> None:
    """Write a hint on stderr."""
    sys.stderr.write(f"{text}\n")


def check_force(force: bool, outputs: Mapping[str, object]) -> None:
    """Raise BadInput where ``--force`` stands alone; ``outputs`` are the flags that write files, None if not given."""
    if force and all(given is None for given in outputs.values()):
        *others, last = (flag.split()[0] for flag in outputs)
        names = f"{', '.join(others)} and {last}" if others else last
        needed = "one of them" if others else next(iter(outputs))
        raise BadInput(f"--force replaces files of {names}; give {needed} with it or leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files that rows are wanted in; checked before the work begins, written at once."""

    csv: Path | None = None
    plot: Path | None = None
    force: bool = False

    def write(self, csv: Callable[[], str], plot: Callable[[Path], bytes] | None = None) -> None:
        """Write the files that were asked for, made only then."""
        files: dict[Path, str | bytes] = {}
        if self.csv is not None:
            files[self.csv] = csv()
        if self.plot is not None and plot is not None:
            files[self.plot] = plot(self.plot)
        if files:
            write_files(files, force=self.force)


def read_outputs(csv: str | None, plot: str | None, force: bool) -> Outputs:
    """Return the files to write; BadInput where one cannot be or is there already."""
    outputs = Outputs(csv=Path(csv) if csv else None, plot=Path(plot) if plot else None, force=force)
    for flag, path in (("--csv", outputs.csv), ("--plot", outputs.plot)):
        if path is not None:
            check_file(path, force=force, flag=flag)
    if outputs.plot is not None:
        from cli.plots import check_plot  # looks for matplotlib

        check_plot(outputs.plot)
    return outputs


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show ``what`` on stderr from one second on until the block ends; nothing where stderr is no terminal.

    An alarm shows it and no thread, for a process with threads cannot be copied to another core; so nothing is shown
    where there are no alarms.
    """
    if not sys.stderr.isatty() or not hasattr(signal, "setitimer"):
        yield
        return
    shown = []

    def show(*_: object) -> None:
        shown.append(what)
        sys.stderr.write(what)
        sys.stderr.flush()

    before = signal.signal(signal.SIGALRM, show)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if shown:
            sys.stderr.write("\r" + " " * len(what) + "\r")
            sys.stderr.flush()


def with_bar(what: str, executor: Executor) -> Executor:
    """Return an executor that shows on stderr how far it is, where that is a terminal."""
    if not sys.stderr.isatty():
        return executor

    def shown(work: Callable[[Item], object], items: Sequence[Item]) -> Iterator[object]:
        return _barred(executor(work, items), what, len(items))

    return shown  # type: ignore[return-value]  # results are passed on as they are


def _barred(found: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    from rich.console import Console
    from rich.progress import track

    yield from track(found, what, total=total, console=Console(stderr=True), transient=True)
