"""A word on stderr while something takes long, on a terminal only."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

PATIENCE_SECONDS = 1.0


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
