"""What a number or a text of a file may be, said without the library that checks files, which takes 0.1 s to import."""

from collections.abc import Iterator
from typing import Annotated, Any


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
