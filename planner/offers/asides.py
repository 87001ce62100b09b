"""Work of a search that goes on beside it, and what it costs is counted."""

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from ground.aside import Aside, aside
from planner.instances.decode_candidates import Count

Result = TypeVar("Result")


class CountedAside(Generic[Result]):
    """Work that counts the candidates that it costs; they count for the search once the result is asked for."""

    def __init__(self, count: Count, work: Callable[[Count], Result], *, here: bool = False) -> None:
        """Begin it on another core where one is free (``ground.aside``), unless it is to be done ``here``."""
        counted = partial(_counted, work)
        self._count, self._counted = count, False
        self._work: Aside[tuple[Result, Count]] = Aside(counted) if here else aside(counted)

    @property
    def elsewhere(self) -> bool:
        """Whether another thread may do it."""
        return self._work.elsewhere

    def prepare(self) -> None:
        """Have it done, or wait for it, and count nothing yet: maybe nobody will ask."""
        self._work.result()

    def result(self) -> Result:
        """Return the result, which is waited for. Raises what the work raises."""
        found, own = self._work.result()
        if not self._counted:
            self._count.add(own)
            self._counted = True
        return found


def _counted(work: Callable[[Count], Result]) -> tuple[Result, Count]:
    count = Count()
    return work(count), count
