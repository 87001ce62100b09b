"""What commands write: JSON, text and tables on stdout, progress and hints on stderr.

Tables lose no digit: cells fold at words, columns drop whole, rows turn to columns or become records.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple, TextIO, TypeVar

from ground.errors import BadInput
from ground.files import check_file, check_folder, write_files
from ground.units import MICRO, format_duration
from ground.workers import Executor
from podplan.result import Result, as_json

if TYPE_CHECKING:
    from cli.plots import Plot

GAP = "   "
MOST_TURNED = 4  # rows that rather become columns than have folded cells
MOST_FOLDED = 3  # lines of a cell, where dropping a spare column makes room
CELL_WIDTH = 80  # of words in a cell, however wide the terminal or the file is
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:s|ms|us|min|h|B|KB|MB|GB|TB)\b|[×%])|(?<=×) ")
"""Between a number and its unit, or what it counts."""


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in lines of whole words, a number and its unit together; a word longer than a line stands alone."""
    lines = wrap(_bound(text), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] or [""]


def _bound(text: str) -> str:
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def _longest(text: str) -> int:
    return max(map(len, _bound(text).split(" ")))


class TextTable(NamedTuple):
    """Columns and rows of cells; the columns named in ``right`` hold numbers, which never fold.

    ``spare`` names columns that may be dropped, the last first, ``left_out`` those that were.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None
    right: Sequence[str] = ()
    spare: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def fitted(self, width: int) -> "tuple[TextTable, list[int] | None]":
        """Return the grid, turned or without some ``spare`` columns, and widths in all at most ``width``.

        Without widths where whole words and numbers take more.
        """
        if (widths := self._unfolded(width)) is not None:
            return self, widths
        turned = TextTable(columns=[self.columns[0], *(row[0] for row in self.rows)], rows=self._cells()[1:])
        if self.rows and len(self.rows) <= MOST_TURNED and (widths := turned._unfolded(width)) is not None:
            return turned, widths
        for dropped in range(len(self.spare) + 1):
            grid = self.without(self.spare[len(self.spare) - dropped :])
            widths = grid._folding(width)
            if widths is not None and max(grid._heights(widths), default=1) <= MOST_FOLDED:
                return grid, widths
        other = turned._folding(width) if self.rows else None
        if widths is None or (other is not None and sum(turned._heights(other)) < sum(grid._heights(widths))):
            return (turned if self.rows else self), other
        return grid, widths

    def without(self, names: Sequence[str]) -> "TextTable":
        """Return the grid without some columns."""
        places = [place for place, name in enumerate(self.columns) if name not in names]
        rows = [[row[place] for place in places] for row in self.rows]
        kept = [self.columns[place] for place in places]
        return TextTable(columns=kept, rows=rows, right=self.right, left_out=names)

    def _cells(self) -> list[list[str]]:
        """Return each column's name and cells."""
        return [[name, *(row[place] for row in self.rows)] for place, name in enumerate(self.columns)]

    def _most(self) -> list[int]:
        """Return the widths that all cells take in one line, those that are as long as sentences in several."""
        most = []
        for name, *own in self._cells():
            long = max((max(min(len(cell), CELL_WIDTH), _longest(cell)) for cell in own), default=1)
            most.append(max(1, len(name), *map(len, own)) if name in self.right else max(1, len(name), long))
        return most

    def _unfolded(self, width: int) -> list[int] | None:
        """Return the widths at which only cells as long as sentences fold; None where they take more."""
        most = self._most()
        return most if self._all(most) <= width else None

    def _folding(self, width: int) -> list[int] | None:
        """Return widths at which cells fold at words, the widest columns most."""
        most, least = self._most(), []
        for place, (name, *own) in enumerate(self._cells()):
            whole = name in self.right or place == 0  # a row's name stays in one piece
            least.append(max([1, _longest(name), *(len(cell) if whole else _longest(cell) for cell in own)]))
        if self._all(least) > width:
            return None
        while self._all(most) > width:
            widest = max((at for at in range(len(most)) if most[at] > least[at]), key=lambda at: most[at])
            most[widest] -= 1
        return most

    def _heights(self, widths: Sequence[int]) -> list[int]:
        """Return the lines that each row takes."""
        return [max(len(folded(cell, width)) for cell, width in zip(row, widths, strict=True)) for row in self.rows]

    def _all(self, widths: Sequence[int]) -> int:
        return sum(widths) + len(GAP) * (len(widths) - 1)

    def head(self, widths: Sequence[int]) -> list[str]:
        """Return the lines of the names, which stand at the foot of theirs."""
        return list(self._lines(self.columns, widths, bottom=True))

    def body(self, widths: Sequence[int]) -> list[str]:
        """Return a rule and the lines of the rows."""
        return ["─" * self._all(widths), *(line for row in self.rows for line in self._lines(row, widths))]

    def _lines(self, cells: Sequence[str], widths: Sequence[int], *, bottom: bool = False) -> Iterator[str]:
        texts = [folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
        height = max(map(len, texts))
        for number in range(height):
            parts = []
            for name, own, width in zip(self.columns, texts, widths, strict=True):
                at = number - (height - len(own) if bottom else 0)
                part = own[at] if 0 <= at < len(own) else ""
                parts.append(part.rjust(width) if name in self.right else part.ljust(width))
            yield GAP.join(parts).rstrip()

    def records(self, width: int) -> Iterator[list[str]]:
        """Yield a block per row: its first cell, and a line for each other one that is not empty."""
        name_width = max(map(len, self.columns[1:]), default=0)
        for first, *others in self.rows:
            block = folded(first or self.columns[0], width)
            for name, cell in zip(self.columns[1:], others, strict=True):
                start = f"  {name:<{name_width}}{GAP}"
                block += folded(start + cell, width, " " * len(start)) if cell else []
            yield block


LINE_WIDTH = 118  # of sentences, however wide the terminal is
PAIRS_WIDTH = 200  # of the few lines that each begin with a name
UNFOLDED_WIDTH = 1000  # of tables that go to a file or a pipe, unless COLUMNS says otherwise
PATIENCE_SECONDS = 1.0

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
            self.lines(*folded(each, min(self.width, LINE_WIDTH), "  "))

    def pairs(self, *rows: tuple[str, str]) -> None:
        """Write what each name stands for, the texts in one column."""
        indent = " " * (max(len(name) for name, _ in rows) + len(GAP))
        for name, told in rows:
            first, *rest = folded(f"{name:<{len(indent)}}{told}", min(self.width, PAIRS_WIDTH), indent)
            self.lines(first, *rest)

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
        ``spare`` columns, the last named first, and says so; then its rows turn to columns or become records.
        """
        self.show(TextTable(columns=columns, rows=rows, title=title, right=right, spare=spare))

    def grid(
        self,
        things: Iterable[Item],
        columns: Mapping[str, Callable[[Item], str]],
        title: str | None = None,
        spare: Sequence[str] = (),
    ) -> None:
        """Write a table with a row per thing, told by each column; a name behind ``>`` is of a column of numbers."""
        right = [name.removeprefix(">") for name in columns if name.startswith(">")]
        names = [name.removeprefix(">") for name in columns]
        self.table(names, cells(things, columns), title=title, right=right, spare=spare)

    def show(self, table: TextTable) -> None:
        """Write a table that is put together."""
        shown, widths = table.fitted(self.width)
        if table.title:
            self._strong(table.title)
        if widths is None:
            for name, *cells in table.records(self.width):
                self._strong(name)
                self.lines(*cells)
        else:
            self._strong(*shown.head(widths))
            self.lines(*shown.body(widths))
        if shown.left_out:
            self.text(f"({self.width} columns leave out {', '.join(shown.left_out)}.)")
        self.lines("")

    def _strong(self, *lines: str) -> None:
        self.lines(*(f"\x1b[1m{line.rstrip()}\x1b[0m" if self._bold else line for line in lines))


def cells(things: Iterable[Item], columns: Mapping[str, Callable[[Item], str]]) -> list[list[str]]:
    """Return what each column tells of each thing."""
    return [[tell(each) for tell in columns.values()] for each in things]


def short_duration(seconds: float) -> str:
    """Return a duration for a first screen, where nobody weighs nanoseconds."""
    return "< 1 us" if 0 < seconds < MICRO else format_duration(seconds)


def print_json(data: Mapping[str, object]) -> None:
    """Write ``data`` as one JSON object on stdout."""
    sys.stdout.write(as_json(data))


def note(text: str) -> None:
    """Write a hint on stderr."""
    sys.stderr.write(f"{text}\n")


class Outputs:
    """The files that a command is asked to write: checked before it works, written together when it is done."""

    def __init__(
        self, force: bool, given: Mapping[str, str | Path | None], names: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Take paths by their flags, such as ``--out DIR``; ``names`` are those of the files that a folder will hold.

        Raises BadInput where a file cannot be written or is there already, and where ``--force`` replaces nothing.
        """
        if force and all(path is None for path in given.values()):
            *others, last = (flag.split()[0] for flag in given)
            listed = f"{', '.join(others)} and {last}" if others else last
            needed = "one of them" if others else next(iter(given))
            raise BadInput(f"--force replaces files of {listed}; give {needed} with it or leave it out")
        self.force = force
        self.paths = {flag.split()[0]: Path(path) for flag, path in given.items() if path is not None}
        for flag, path in self.paths.items():
            if names is not None and flag in names:
                check_folder(path, names[flag], force=force, flag=flag)
                continue
            check_file(path, force=force, flag=flag)
            if flag == "--plot":
                from cli.plots import check_plot  # few commands draw

                check_plot(path)

    def write(
        self, found: Result, plot: "Callable[[], Plot] | None" = None, more: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        """Write the files of a result and ``more`` beside them, its rows as CSV, and a picture, where asked for."""
        files: dict[Path, str | bytes] = {}
        out, texts = self.paths.get("--out"), dict[str, str]()
        if out is not None:
            texts = {**found.files(), **more()}
            files |= {out / name: text for name, text in texts.items()}
        if (csv := self.paths.get("--csv")) is not None:
            files[csv] = found.to_csv()
        if (picture := self.paths.get("--plot")) is not None and plot is not None:
            from cli.plots import plotted

            files[picture] = plotted(plot(), picture)
        if files:
            write_files(files, force=self.force)
        if out is not None:
            note(f"wrote {', '.join(texts)} to {out}")


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
    """Return an executor that shows on stderr how far it is and how long it may take, where that is a terminal."""
    if not sys.stderr.isatty():
        return executor

    def shown(work: Callable[[Item], object], items: Sequence[Item], **given: object) -> Iterator[object]:
        from rich.console import Console
        from rich.progress import Progress

        bar = Progress(console=Console(stderr=True), transient=True)
        task = bar.add_task(what, total=len(items))
        found = executor(work, items, done=lambda: bar.advance(task))  # begins before the bar starts a thread
        with bar:
            yield from found

    return shown  # type: ignore[return-value]  # results are passed on as they are
