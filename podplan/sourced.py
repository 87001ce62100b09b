"""Values that carry where they come from."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

LEAST_SOURCE = 4
"""Characters that a source has at least: an address, a paper's number, or words that say who measured."""

Kind = Literal["datasheet", "measured", "fitted", "assumed"]


class Strict(BaseModel):
    """Base of everything read from a file: immutable, and an unknown key is an error."""

    # Built when something is read as it: most are parts of others, which check them too.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class Sourced(Strict):
    """One number with its origin. The unit is the suffix of the field that holds it."""

    value: float
    kind: Kind
    source: str = Field(min_length=LEAST_SOURCE)
    as_of: str | None = Field(
        default=None, pattern=r"^[0-9]{4}(-[0-9]{2}){0,2}$", description="year, month or day of a figure that ages"
    )
    note: str | None = None
