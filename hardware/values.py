"""Every value of an entry of the catalogue, and every fit, with its place."""

from collections.abc import Iterator
from dataclasses import fields

from ground.records import Sourced, Stated
from hardware.spec import Fitted


def sourced_values(spec: Stated, path: str = "") -> Iterator[tuple[str, Sourced | Fitted]]:
    """Yield every value and every fit below ``spec`` with its dotted path, in the order of the schema.

    Items of a list are called by their name, or by what tells them apart.
    """
    for each in fields(spec):
        yield from _sourced(getattr(spec, each.name), f"{path}.{each.name}" if path else each.name)


def _sourced(value: object, path: str) -> Iterator[tuple[str, Sourced | Fitted]]:
    if isinstance(value, Sourced | Fitted):
        yield path, value
    elif isinstance(value, Stated):
        yield from sourced_values(value, path)
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from _sourced(held, f"{path}.{key}")
    elif isinstance(value, list):
        for position, held in enumerate(value):
            yield from _sourced(held, f"{path}[{_called(held, position)}]")


def _called(item: object, position: int) -> str:
    names = [getattr(item, key, None) for key in ("name", "op", "scope", "direction", "mode")]
    return " ".join(str(name) for name in names if isinstance(name, str)) or str(position)
