"""Work of a search that is done when it is asked for, and what it costs is counted then."""

from collections.abc import Callable
from typing import Generic, TypeVar

from ground.later import Later
from planner.instances.decode_candidates import Count

Result = TypeVar("Result")


class CountedAside(Generic[Result]):
    """Work that counts the candidates that it costs; they count for the search once the result is asked for."""

    def __init__(self, count: Count, work: Callable[[Count], Result]) -> None:
        """Keep it for later."""
        self._later: Later[Result] = Later(lambda: self._counted(count, work))

    def result(self) -> Result:
        """Return the result. Raises what the work raises."""
        return self._later.result()

    @staticmethod
    def _counted(count: Count, work: Callable[[Count], Result]) -> Result:
        own = Count()
        found = work(own)
        count.add(own)
        return found
