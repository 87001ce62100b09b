"""Tables as lines of text that lose no digit: cells fold at words, columns drop whole, rows turn or become records."""

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

GAP = "   "
MOST_TURNED = 4  # rows that rather become columns than have folded cells
MOST_FOLDED = 3  # lines of a cell, where dropping a spare column makes room
CELL_WIDTH = 80  # of words in a cell, however wide the terminal or the file is
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:s|ms|us|min|h|B|KB|MB|GB|TB)\b|[×%])|(?<=×) ")
"""Between a number and its unit, or what it counts."""


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in lines of whole words, a number and its unit together; a word longer than a line stands alone."""
    lines = wrap(_bound(text), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] or [""]


def _bound(text: str) -> str:
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def _longest(text: str) -> int:
    return max(map(len, _bound(text).split(" ")))


class TextTable(NamedTuple):
    """Columns and rows of cells; the columns named in ``right`` hold numbers, which never fold.

    ``spare`` names columns that may be dropped, the last first, ``left_out`` those that were.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None
    right: Sequence[str] = ()
    spare: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def fitted(self, width: int) -> "tuple[TextTable, list[int] | None]":
        """Return the grid, turned or without some ``spare`` columns, and widths in all at most ``width``.

        Without widths where whole words and numbers take more.
        """
        if (widths := self._unfolded(width)) is not None:
            return self, widths
        turned = TextTable(columns=[self.columns[0], *(row[0] for row in self.rows)], rows=self._cells()[1:])
        if self.rows and len(self.rows) <= MOST_TURNED and (widths := turned._unfolded(width)) is not None:
            return turned, widths
        for dropped in range(len(self.spare) + 1):
            grid = self.without(self.spare[len(self.spare) - dropped :])
            widths = grid._folding(width)
            if widths is not None and max(grid._heights(widths), default=1) <= MOST_FOLDED:
                return grid, widths
        other = turned._folding(width) if self.rows else None
        if widths is None or (other is not None and sum(turned._heights(other)) < sum(grid._heights(widths))):
            return (turned if self.rows else self), other
        return grid, widths

    def without(self, names: Sequence[str]) -> "TextTable":
        """Return the grid without some columns."""
        places = [place for place, name in enumerate(self.columns) if name not in names]
        rows = [[row[place] for place in places] for row in self.rows]
        kept = [self.columns[place] for place in places]
        return TextTable(columns=kept, rows=rows, right=self.right, left_out=names)

    def _cells(self) -> list[list[str]]:
        """Return each column's name and cells."""
        return [[name, *(row[place] for row in self.rows)] for place, name in enumerate(self.columns)]

    def _most(self) -> list[int]:
        """Return the widths that all cells take in one line, those that are as long as sentences in several."""
        most = []
        for name, *own in self._cells():
            long = max((max(min(len(cell), CELL_WIDTH), _longest(cell)) for cell in own), default=1)
            most.append(max(1, len(name), *map(len, own)) if name in self.right else max(1, len(name), long))
        return most

    def _unfolded(self, width: int) -> list[int] | None:
        """Return the widths at which only cells as long as sentences fold; None where they take more."""
        most = self._most()
        return most if self._all(most) <= width else None

    def _folding(self, width: int) -> list[int] | None:
        """Return widths at which cells fold at words, the widest columns most."""
        most, least = self._most(), []
        for place, (name, *own) in enumerate(self._cells()):
            whole = name in self.right or place == 0  # a row's name stays in one piece
            least.append(max([1, _longest(name), *(len(cell) if whole else _longest(cell) for cell in own)]))
        if self._all(least) > width:
            return None
        while self._all(most) > width:
            widest = max((at for at in range(len(most)) if most[at] > least[at]), key=lambda at: most[at])
            most[widest] -= 1
        return most

    def _heights(self, widths: Sequence[int]) -> list[int]:
        """Return the lines that each row takes."""
        return [max(len(folded(cell, width)) for cell, width in zip(row, widths, strict=True)) for row in self.rows]

    def _all(self, widths: Sequence[int]) -> int:
        return sum(widths) + len(GAP) * (len(widths) - 1)

    def head(self, widths: Sequence[int]) -> list[str]:
        """Return the lines of the names, which stand at the foot of theirs."""
        return list(self._lines(self.columns, widths, bottom=True))

    def body(self, widths: Sequence[int]) -> list[str]:
        """Return a rule and the lines of the rows."""
        return ["─" * self._all(widths), *(line for row in self.rows for line in self._lines(row, widths))]

    def _lines(self, cells: Sequence[str], widths: Sequence[int], *, bottom: bool = False) -> Iterator[str]:
        texts = [folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
        height = max(map(len, texts))
        for number in range(height):
            parts = []
            for name, own, width in zip(self.columns, texts, widths, strict=True):
                at = number - (height - len(own) if bottom else 0)
                part = own[at] if 0 <= at < len(own) else ""
                parts.append(part.rjust(width) if name in self.right else part.ljust(width))
            yield GAP.join(parts).rstrip()

    def records(self, width: int) -> Iterator[list[str]]:
        """Yield a block per row: its first cell, and a line for each other one that is not empty."""
        name_width = max(map(len, self.columns[1:]), default=0)
        for first, *others in self.rows:
            block = folded(first or self.columns[0], width)
            for name, cell in zip(self.columns[1:], others, strict=True):
                start = f"  {name:<{name_width}}{GAP}"
                block += folded(start + cell, width, " " * len(start)) if cell else []
            yield block
