"""Data classes and named tuples from plain data that is right: a catalogue's own entries, which its tests check.

Files of others are checked with pydantic (``ground.validation``), which gives the same and takes 0.13 s: to import it
and to build what reads machines and models. A plan of 0.8 s does without.
"""

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Class = TypeVar("Class")


def from_dict(made: type[Class], data: dict[str, Any]) -> Class:
    """Return plain data as a data class or a named tuple, parts of it as those that its fields are.

    Raises TypeError or KeyError where it does not have the fields, and ValueError from what the class checks itself.
    """
    kind: Any = made
    readers, own = _readers(kind), get_origin(kind) or kind
    found: Class = own(**{key: readers[key](value) for key, value in data.items()})
    return found


@cache
def _readers(made: Any) -> dict[str, Callable[[Any], Any]]:
    """Return what makes a field's value of plain data, by field."""
    own = get_origin(made) or made
    names = own._fields if hasattr(own, "_fields") else [each.name for each in dataclasses.fields(own)]
    hints, given = get_type_hints(own), dict(zip(getattr(own, "__parameters__", ()), get_args(made), strict=True))
    return {name: _reader(given.get(hints[name], hints[name])) for name in names}


def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of a type of plain data."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _reader(inner[0])
    if origin is list:
        item = _reader(inner[0])
        return lambda data: [item(each) for each in data]
    if origin is dict:
        held = _reader(inner[1])
        return lambda data: {key: held(each) for key, each in data.items()}
    if origin is tuple:
        return tuple
    if dataclasses.is_dataclass(kind) or hasattr(origin or kind, "_fields"):
        return partial(from_dict, kind)
    if inner and origin is not Literal:
        return _one_of([each for each in inner if each is not NoneType])
    return float if kind is float else lambda data: data


def _one_of(kinds: list[Any]) -> Callable[[Any], Any]:
    """Return what makes one of several data classes, by their ``kind``, or the one type, or None of nothing."""
    if len(kinds) == 1:
        only = _reader(kinds[0])
        return lambda data: None if data is None else only(data)
    by_kind = {tag: _reader(each) for each in kinds for tag in get_args(get_type_hints(each)["kind"])}
    return lambda data: by_kind[data["kind"]](data)
