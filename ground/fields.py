"""Fields of catalogue classes that carry their own documentation."""

import dataclasses
from typing import Any


def described(description: str, **stated: Any) -> Any:
    """Return a dataclass field with a description, and with a ``default`` or ``default_factory`` where one is given.

    Everything else in ``stated`` is handed to pydantic with the description when a file is read as the class.
    """
    default = {key: stated.pop(key) for key in ("default", "default_factory") if key in stated}
    return dataclasses.field(**default, metadata={"description": description, **stated})
