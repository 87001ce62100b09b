"""Work whose result may be asked for later, or never."""

from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Later(Generic[Result]):
    """Work that is done once, when its result is first asked for."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._found: list[Result] = []

    def result(self) -> Result:
        """Return the result. Raises what the work raises."""
        if not self._found:
            self._found = [self._work()]
        return self._found[0]
