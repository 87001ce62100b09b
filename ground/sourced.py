"""Values that carry where they come from, and the base of what catalogues state."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from ground.fields import described
from ground.limits import Limits

LEAST_SOURCE = 4
"""Characters that a source has at least: an address, a paper's number, or words that say who measured."""

Kind = Literal["datasheet", "measured", "fitted", "assumed"]
Source = Annotated[str, Limits(min_length=LEAST_SOURCE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Base of what catalogues state: data classes, which pydantic reads from files (``ground.validation``).

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
