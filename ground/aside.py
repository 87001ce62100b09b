"""Work that goes on beside this thread, on a second core where there is one: ``helped`` allows it, ``aside`` begins it.

One other thread does the works that were begun, in their order; compiled loops, solvers and large arrays leave the
interpreter to this one meanwhile. What it has not come to when the result is asked for is done by whoever asks: neither
waits while something is left to do. Outside of ``helped``, on one core and in a process that is one of many
(``alone``), all is done when it is asked for. What nobody asked for and has not begun when the block ends is dropped.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Result = TypeVar("Result")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Aside(Generic[Result]):
    """Work whose result is asked for later; without ``future`` it is done then."""

    def __init__(self, work: Callable[[], Result], future: "Future[Result] | None" = None) -> None:
        self._work, self._future = work, future
        self._found: list[Result] = []

    @property
    def elsewhere(self) -> bool:
        """Whether another thread may do it."""
        return self._future is not None

    def result(self) -> Result:
        """Return the result, which is waited for. Raises what the work raises."""
        if not self._found:
            begun = self._future is not None and not self._future.cancel()
            self._found = [self._future.result() if self._future is not None and begun else self._work()]
        return self._found[0]


def aside(work: Callable[[], Result]) -> Aside[Result]:
    """Begin work beside this thread; works that are begun are done one after the other."""
    executor = _executor.get()
    return Aside(work, executor.submit(work) if executor else None)


@contextmanager
def helped() -> Iterator[None]:
    """Within this block another thread may do work; it ends with the block."""
    if cores() < 2 or _alone.get() or _executor.get() is not None:
        yield
        return
    from concurrent.futures import ThreadPoolExecutor  # what needs no help is spared its import

    executor = ThreadPoolExecutor(1)
    token = _executor.set(executor)
    try:
        yield
    finally:
        _executor.reset(token)
        executor.shutdown(cancel_futures=True)


def alone() -> None:
    """From here on this process uses one core: it is one of several that share them."""
    _alone.set(True)


_executor: "ContextVar[Executor | None]" = ContextVar("executor", default=None)
_alone: ContextVar[bool] = ContextVar("alone", default=False)
