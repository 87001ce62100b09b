"""What commands write: JSON or tables on stdout, everything else on stderr."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ground.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNFOLDED_WIDTH = 1000  # of tables that go to a file or a pipe, unless COLUMNS says otherwise


def check_force(force: bool, outputs: Mapping[str, object]) -> None:
    """Raise BadInput where ``--force`` stands alone; ``outputs`` are the flags that write files, None if not given."""
    if force and all(given is None for given in outputs.values()):
        *others, last = (flag.split()[0] for flag in outputs)
        names = f"{', '.join(others)} and {last}" if others else last
        needed = "one of them" if others else next(iter(outputs))
        raise BadInput(f"--force replaces files of {names}; give {needed} with it or leave it out")


def print_json(data: Mapping[str, object]) -> None:
    """Write ``data`` as one JSON object on stdout; ValueError for NaN and infinity, which JSON does not have."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None, right: Sequence[str] = ()
) -> None:
    """Write a table on stdout, with the columns named in ``right`` aligned to the right."""
    stdout_console().print(table(columns, rows, title=title, right=right))


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    right: Sequence[str] = (),
    tight: bool = False,
) -> "Table":
    """Return a table for a console, with the columns named in ``right`` aligned to the right.

    ``tight`` leaves out the blank lines around it.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, title_style="bold")
    table.show_edge = not tight
    for position, column in enumerate(columns):
        align: Literal["left", "right"] = "right" if column in right else "left"
        # A name stays in one piece, and so do the words of a heading.
        longest = max(map(len, column.split()), default=0)
        table.add_column(column, justify=align, overflow="fold", no_wrap=position == 0, min_width=longest)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def print_lines(lines: Sequence[str]) -> None:
    """Write plain lines on stdout."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def stdout_console() -> "Console":
    """Return a rich console on stdout, without colour under NO_COLOR; lines fold on a terminal only."""
    from cli.rich_console import PipedConsole

    folds = sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))
    return PipedConsole(width=None if folds else UNFOLDED_WIDTH, highlight=False)


def stderr_console() -> "Console":
    """Return a rich console on stderr, for progress and hints."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)
