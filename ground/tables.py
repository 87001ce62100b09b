"""Tables of text: every CSV file is read here, each row with the place that a message names."""

import csv
import io
from collections.abc import Iterator

from ground.errors import BadInput

MOST_ROWS = 1_000_000

Row = tuple[str, dict[str, str]]
"""Where a row stands ("FILE, line 3"), and its cells by column."""


def csv_rows(text: str, where: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, cells without outer blanks) of every row that holds something; lines end as on any system.

    Raises BadInput naming the line that is none of a CSV file: an open quote, a field over 131,072 characters.
    """
    reader = csv.reader(io.StringIO(text, newline=None), strict=True)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield f"{where}, line {reader.line_num}", cells
    except csv.Error as error:
        raise BadInput(f"{where}, line {reader.line_num}: is not a line of a CSV file ({error})") from None


def csv_cells(line: str, where: str) -> list[str]:
    """Return the cells of one line, for files that are read as a stream; BadInput naming ``where``."""
    if '"' not in line and "\r" not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration):
        raise BadInput(f"{where}: is not a line of a CSV file; quote what holds commas, end lines with LF") from None


def csv_table(text: str, where: str, needed: tuple[str, ...] = ()) -> list[Row]:
    """Return the rows under a header, whose names are columns in any order; ``needed`` must be among them.

    Raises BadInput for no header, no row or over a million, a column that stands twice or is missing, and another
    number of cells.
    """
    rows = csv_rows(text, where)
    _, header = next(rows, ("", []))
    missing = next((name for name in needed if name not in header), None)
    if missing is not None or not header:
        raise BadInput(f"{where}: the first line must name the columns" + (f": {','.join(needed)}" if needed else ""))
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{where}: column {twice[:40]!r} stands twice; leave one of them out")
    found: list[Row] = []
    for place, cells in rows:
        if len(found) == MOST_ROWS:
            raise BadInput(f"{place}: a table has at most {MOST_ROWS} rows; leave some out")
        if len(cells) != len(header):
            raise BadInput(f"{place}: has {len(cells)} fields, the header has {len(header)}")
        found.append((place, dict(zip(header, cells, strict=True))))
    if not found:
        raise BadInput(f"{where}: names columns and has no row")
    return found
