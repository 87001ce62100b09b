"""Records of catalogues, with limits and sources, and their construction from valid plain data.

A catalogue's own entries are right, for its tests check them. Files of others are checked with pydantic
(``ground.validation``), which gives the same and takes 0.13 s: to import it and to build what reads machines and
models.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

Class = TypeVar("Class")


class Limits:
    """Limits of a value, for ``Annotated``: ``gt``, ``ge``, ``lt``, ``le``, ``min_length``, ``pattern``, ``strict``.

    pydantic, which checks what is read from files, takes it for a group of its own marks, as annotated-types has it.
    """

    __is_annotated_types_grouped_metadata__ = True

    def __init__(self, **limits: Any) -> None:
        """Keep the limits by pydantic's names for them."""
        self._limits = limits

    def __iter__(self) -> Iterator[object]:
        """Yield them as pydantic knows them."""
        from pydantic import Field

        return iter(Field(**self._limits).metadata)


NAME = r"^[^\s\x00-\x1f\x7f-\x9f-][^\x00-\x1f\x7f-\x9f]{0,199}$"
"""What may be called so: a name that begins with a hyphen is a flag to whatever is started with it."""
Name = Annotated[str, Limits(pattern=NAME)]


def described(description: str, **stated: Any) -> Any:
    """Return a dataclass field with a description, and with a ``default`` or ``default_factory`` where one is given.

    Everything else in ``stated`` is handed to pydantic with the description when a file is read as the class.
    """
    default = {key: stated.pop(key) for key in ("default", "default_factory") if key in stated}
    return dataclasses.field(**default, metadata={"description": description, **stated})


LEAST_SOURCE = 4  # characters that a source has at least: an address, a paper's number, or words that say who measured

Kind = Literal["datasheet", "measured", "fitted", "assumed"]
Source = Annotated[str, Limits(min_length=LEAST_SOURCE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Base of the records of catalogues: data classes, which pydantic reads from files (``ground.validation``).

    An unknown key is an error, and so is a number that is none. A field's limits are ``Limits`` in its type; what
    several fields must be together, ``__post_init__`` checks and raises ValueError.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced(Stated):
    """One number with its origin. The unit is the suffix of the field that holds it."""

    value: float
    kind: Kind
    source: Source
    as_of: Annotated[str, Limits(pattern=r"^[0-9]{4}(-[0-9]{2}){0,2}$")] | None = described(
        "year, month or day of a figure that ages", default=None
    )
    note: str | None = None


def from_dict(made: type[Class], data: dict[str, Any]) -> Class:
    """Return plain data as a data class or a named tuple, parts of it as those that its fields are.

    Raises TypeError or KeyError where it does not have the fields, and ValueError from what the class checks itself.
    """
    kind: Any = made
    readers, own = _readers(kind), get_origin(kind) or kind
    return own(**{key: readers[key](value) for key, value in data.items()})


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
