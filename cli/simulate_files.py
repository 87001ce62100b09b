"""Files that `plan simulate` writes while it runs: whole at the end, or not at all."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from cli.flags import flag_name
from cli.simulate_flags import SimulateFlags
from podplan.errors import BadInput
from podplan.units import format_count, format_duration, parse_duration
from runtime.simulate.observe import Observer

SHOWN_EVERY_SECONDS = 0.5


@contextmanager
def observing(flags: SimulateFlags) -> Iterator[Observer]:
    """Yield an observer with the files that were asked for; they take their places when the block ends well.

    Raises BadInput naming the file before anything runs: it is there and --force is not given, or cannot be written.
    """
    asked = {"requests": flags.requests_csv, "series": flags.timeseries, "timeline": flags.timeline}
    _check_apart(flags)
    for path in asked.values():
        if path is not None and path.is_dir():
            raise BadInput(f"{path}: this is a directory; give the name of a file")
        if path is not None and path.exists() and not flags.force:
            raise BadInput(f"{path}: the file exists already; give --force to replace it")
    step = 1.0 if flags.timeseries_step is None else parse_duration(flags.timeseries_step, "--timeseries-step")
    staged: dict[Path, Path] = {}
    try:
        with ExitStack() as stack:
            files = {name: stack.enter_context(_staged(path, staged)) for name, path in asked.items() if path}
            yield Observer(**files, series_seconds=step, progress=_progress())
        for path, temporary in staged.items():
            temporary.replace(path)
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)
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


def _staged(path: Path, staged: dict[Path, Path]) -> IO[str]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = temporary.open("w", encoding="utf-8", newline="\n")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
    staged[path] = temporary
    return file


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
