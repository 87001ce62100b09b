"""The same work on many items, on several cores: questions that are asked by the dozen need nothing of each other."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ground.aside import alone, cores, helped

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 8
"""Each holds some 100 MB while it searches."""

_job: list[Any] = []
"""In a worker: the work and the items."""


def spread(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Return ``work`` of every item, in their order.

    Workers are copies of this process: what they need is there already, imports and closures included, and only
    results travel. They begin at once, before whoever shows progress starts a thread. Where processes cannot be copied
    safely, or there is one core or one item, this process does all, helped where a core is free.
    """
    workers = min(cores(), len(items), MOST_WORKERS)
    if workers < 2:
        return map(partial(_helped, work), items)
    from concurrent.futures import ProcessPoolExecutor  # 20 ms that a single question is spared
    from multiprocessing import get_context

    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # what waits here would be written by every copy
    pool = ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_begin, initargs=(work, items))
    return _results(pool, pool.map(_nth, range(len(items))))


def _helped(work: Callable[[Item], Result], item: Item) -> Result:
    with helped():
        return work(item)


def _results(pool: "ProcessPoolExecutor", found: Iterator[Result]) -> Iterator[Result]:
    with pool:
        yield from found


def _begin(*job: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # interrupted, a worker ends without a word; its parent tells
    alone()
    _job[:] = job


def _nth(number: int) -> Any:
    work, items = _job
    return work(items[number])
