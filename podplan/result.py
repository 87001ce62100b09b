"""What every call returns: a data class that is JSON, a table, and a cell of a notebook."""

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from html import escape
from io import StringIO
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ground.files import check_folder, write_files

if TYPE_CHECKING:
    import pandas

Cell = str | float | int | bool | None
Row = dict[str, Cell]


class Result:
    """Base of results. A subclass says what it is as JSON, as rows and in one sentence."""

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return what the command prints with ``--json``: SI units, the unit in the name."""
        raise NotImplementedError

    def rows(self) -> Sequence[Row]:
        """Return the result as rows of a table, SI units in their keys."""
        raise NotImplementedError

    def to_csv(self) -> str:
        """Return the rows as CSV with a header; what a row does not have is empty."""
        return as_csv(self.rows())

    def files(self) -> Mapping[str, str]:
        """Return the texts that ``save`` writes, by the names of their files."""
        raise NotImplementedError

    def save(self, out: str | Path, *, force: bool = False) -> list[str]:
        """Write ``files`` to a folder, all of them or none, and return their names.

        Raises BadInput: a file is there already and ``force`` is not given; Infeasible: there is nothing to write.
        """
        texts = self.files()
        check_folder(Path(out), texts, force=force, flag="out")
        write_files({Path(out) / name: text for name, text in texts.items()}, force=force)
        return list(texts)

    def to_frame(self) -> "pandas.DataFrame":
        """Return the rows as a pandas DataFrame; ImportError where pandas is not installed."""
        import pandas  # optional

        return pandas.DataFrame(self.rows())

    def _repr_html_(self) -> str:
        """Return headline and rows, as notebooks show them."""
        keys = columns_of(self.rows())
        head = "".join(f"<th>{escape(key)}</th>" for key in keys)
        lines = ("".join(f"<td>{_shown(row.get(key))}</td>" for key in keys) for row in self.rows())
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if keys else ""
        return f"<p>{escape(self.headline)}</p>{table}"


def _shown(cell: Cell) -> str:
    return "" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else escape(str(cell))


def columns_of(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the keys of all rows, in the order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def as_json(data: Mapping[str, object]) -> str:
    """Return data as the text of one JSON object; ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV with a header; what a row does not have is empty."""
    text = StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    return text.getvalue()


def as_data(value: Any) -> Any:
    """Return a value as JSON has it: records and mappings as objects, arrays, lists and tuples as lists."""
    if dataclasses.is_dataclass(value):
        return {each.name: as_data(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: as_data(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [as_data(held) for held in value]
    return value.tolist() if hasattr(value, "tolist") else value


def picked(one: object, keys: str) -> dict[str, Any]:
    """Return attributes of an object as JSON, by name; ``key=path.to.attribute`` gives one another key.

    >>> picked(3 + 4j, "real imag size=real")
    {'real': 3.0, 'imag': 4.0, 'size': 3.0}
    """
    words = (word.partition("=") for word in keys.split())
    return {key: as_data(attrgetter(path or key)(one)) for key, _, path in words}


def whole(count: float) -> int | float:
    """Return a count as an integer where it is one."""
    return int(count) if count == int(count) else count
