"""What commands write: JSON, text and tables on stdout, progress and hints on stderr."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, TextIO, TypeVar

from cli.tables import GAP, TextTable, folded
from ground.errors import BadInput
from ground.files import check_file, check_folder, write_files
from ground.units import MICRO, format_duration
from ground.workers import Executor
from podplan.result import Result, as_json

if TYPE_CHECKING:
    from cli.plots import Plot

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
