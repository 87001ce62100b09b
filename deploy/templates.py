"""Documents and scripts that are written down as such, with names where the plan or the site decides.

In YAML a value that is ``$name`` alone is whatever it stands for, and is left out with its key where that is None;
inside text it is text. A key ``$name`` without a value stands for all entries of a mapping.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from deploy.reading.nodes import read_documents
from ground.files import read_text

Object = dict[str, Any]
SCRIPTS = Path(__file__).with_name("bash")


class Script(Template):
    """Bash, whose own variables begin with a dollar; those that are filled in here with two at signs."""

    delimiter = "@@"


def script_of(name: str, **values: object) -> str:
    """Return a script of the folder ``bash`` with its values; a line that holds an empty one alone is left out."""
    lines = read_text(SCRIPTS / name).splitlines()
    kept = [line for line in lines if not line.startswith("@@") or values[line[2:]]]
    return Script("\n".join(kept)).substitute(values) + "\n"


@cache
def documents(path: Path) -> list[Object]:
    """Return the YAML documents of a template."""
    return read_documents(read_text(path), str(path))


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of a template with its values.

    >>> filled({"a": "$x", "b": "$y", "c": "$x-1", "$z": None}, {"x": 2, "y": None, "z": {"d": 3}})
    {'a': 2, 'c': '2-1', 'd': 3}
    """
    if isinstance(value, str):
        return values[value[1:]] if value[1:] in values and value[0] == "$" else Template(value).substitute(values)
    if isinstance(value, list):
        held = [(inner, filled(inner, values)) for inner in value]
        return [found for inner, found in held if found is not None or inner is None]
    if not isinstance(value, dict):
        return value
    found: Object = {}
    for key, inner in value.items():
        if key.startswith("$") and inner is None:
            found |= values[key[1:]]
        elif (held := filled(inner, values)) is not None or inner is None:
            found[filled(key, values)] = held
    return found
