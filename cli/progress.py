"""A word on stderr while something takes long, on a terminal only."""

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

PATIENCE_SECONDS = 1.0

Item = TypeVar("Item")


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


def bar(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield ``items`` with a progress bar on stderr; nothing is shown where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.progress import track

    from cli.output import stderr_console

    yield from track(items, what, total=total, console=stderr_console(), transient=True)
