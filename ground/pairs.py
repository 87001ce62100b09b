"""Small CSV files of two named columns."""

from pathlib import Path

from ground.files import read_text
from ground.tables import csv_table


def read_pairs(path: Path, first: str, second: str) -> list[tuple[str, str, str]]:
    """Return (place, first cell, second cell) of every row; the header names both columns, in either order.

    Raises BadInput as ``csv_table``.
    """
    rows = csv_table(read_text(path), str(path), (first, second))
    return [(where, row[first], row[second]) for where, row in rows]
