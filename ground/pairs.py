"""Small CSV files of two named columns: read whole, each row with the place that a message names."""

import csv
from pathlib import Path

from ground.errors import BadInput
from ground.files import read_text

MOST_PAIRS = 100_000


def read_pairs(path: Path, first: str, second: str) -> list[tuple[str, str, str]]:
    """Return (place, first cell, second cell) of every row; the header names both columns, in either order.

    Blank lines do not count.

    Raises:
        BadInput: no readable file, another header, a row without two cells, no row, or more than 100,000.
    """
    lines = [(number, line) for number, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    header = [cell.lower() for cell in _cells(lines[0][1], f"{path}, line {lines[0][0]}")] if lines else []
    if sorted(header) != sorted((first, second)):
        raise BadInput(f"{path}: the first line must name the columns: {first},{second}")
    if not 1 < len(lines) <= MOST_PAIRS + 1:
        raise BadInput(f"{path}: has {len(lines) - 1} rows behind its header; give 1 to {MOST_PAIRS}")
    found = []
    for number, line in lines[1:]:
        where = f"{path}, line {number}"
        cells = _cells(line, where)
        if len(cells) != 2:
            raise BadInput(f"{where}: has {len(cells)} fields, the header has 2")
        row = dict(zip(header, cells, strict=True))
        found.append((where, row[first], row[second]))
    return found


def _cells(line: str, where: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error:
        raise BadInput(f"{where}: this is not a line of a CSV file") from None
