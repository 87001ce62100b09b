"""What commands write: JSON, text and tables on stdout, progress and hints on stderr."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import NamedTuple, TextIO, TypeVar

from cli.plots import check_plot
from cli.tables import GAP, TextTable, folded
from ground.errors import BadInput
from ground.files import check_file, write_files
from ground.units import MICRO, format_duration
from podplan.result import as_json
from podplan.workers import Executor

LINE_WIDTH = 118
"""Of sentences, however wide the terminal is."""
PAIRS_WIDTH = 200
"""Of the few lines that each begin with a name."""
UNFOLDED_WIDTH = 1000
"""Of tables that go to a file or a pipe, unless COLUMNS says otherwise."""
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


def check_force(force: bool, outputs: Mapping[str, object]) -> None:
    """Raise BadInput where ``--force`` stands alone; ``outputs`` are the flags that write files, None if not given."""
    if force and all(given is None for given in outputs.values()):
        *others, last = (flag.split()[0] for flag in outputs)
        names = f"{', '.join(others)} and {last}" if others else last
        needed = "one of them" if others else next(iter(outputs))
        raise BadInput(f"--force replaces files of {names}; give {needed} with it or leave it out")


class Outputs(NamedTuple):
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


def bounded_text(confidence: float) -> str:
    """Return a confidence in words where it lies beyond what is told apart."""
    if confidence >= 1:
        return "> 0.998"
    return "< 0.002" if confidence <= 0 else f"{confidence:.2g}"
