"""A word on stderr while something takes long, on a terminal only."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TypeVar

PATIENCE_SECONDS = 1.0

Item = TypeVar("Item")


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show ``what`` on stderr from one second on until the block ends; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    shown = []

    def show() -> None:
        shown.append(what)
        sys.stderr.write(what)
        sys.stderr.flush()

    timer = Timer(PATIENCE_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
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
