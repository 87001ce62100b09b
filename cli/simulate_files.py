"""Files that `plan simulate` writes while it runs: whole at the end, or not at all."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from cli.flags import flag_name
from cli.simulate_flags import SimulateFlags
from ground.errors import BadInput
from ground.files import check_file, staging, writing
from ground.units import format_count, format_duration, parse_duration
from runtime.simulate.observe import Observer

SHOWN_EVERY_SECONDS = 0.5


@contextmanager
def observing(flags: SimulateFlags) -> Iterator[Observer]:
    """Yield an observer with the files that were asked for; they take their places when the block ends well.

    Raises BadInput naming the file before anything runs: it is there and --force is not given, or cannot be written.
    """
    asked = {"requests": flags.requests_csv, "series": flags.timeseries, "timeline": flags.timeline}
    _check_apart(flags)
    for path in filter(None, asked.values()):
        check_file(path, force=flags.force)
    step = 1.0 if flags.timeseries_step is None else parse_duration(flags.timeseries_step, "--timeseries-step")
    try:
        with staging() as beside, ExitStack() as stack:
            files = {name: stack.enter_context(_opened(path, beside)) for name, path in asked.items() if path}
            yield Observer(**files, series_seconds=step, progress=_progress())
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r" + " " * 78 + "\r")


def _check_apart(flags: SimulateFlags) -> None:
    """Raise BadInput where two flags name one file."""
    taken: dict[Path, str] = {}
    for name in ("requests_csv", "timeseries", "timeline"):
        path = getattr(flags, name)
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), name)
        if other != name:
            raise BadInput(f"{flag_name(other)} and {flag_name(name)} both name {path}; give each a file of its own")


def _opened(path: Path, beside: Callable[[Path], Path]) -> IO[str]:
    with writing(path):
        return beside(path).open("w", encoding="utf-8", newline="\n")


def _progress() -> Callable[[float, int, int], None] | None:
    """Return what tells virtual time and requests on stderr twice a second, None where that is no terminal."""
    if not sys.stderr.isatty():
        return None
    last = time.monotonic()

    def show(seconds: float, arrived: int, completed: int) -> None:
        nonlocal last
        if time.monotonic() - last >= SHOWN_EVERY_SECONDS:
            last = time.monotonic()
            told = f"{format_duration(seconds)} simulated: {format_count(arrived)} came, {format_count(completed)} done"
            sys.stderr.write(f"\r{told:<78}")
            sys.stderr.flush()

    return show
