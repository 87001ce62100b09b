"""A function mapped over many items, on the cores of this machine or on a Dask cluster.

An ``Executor`` maps a function over items and gives results in their order. ``spread`` is the default; ``executor_of``
reads ``--workers``.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ground.errors import BadInput, PodplanError
from ground.units import read_index

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 8  # by default; each holds some 100 MB while it searches
MOST_PROCESSES = 256
DASK = "dask:"
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
Steps = Callable[[], Iterator[Result]]  # work whose results come one after another
_job: list[Any] = []  # in a worker: the work and the items


class Executor(Protocol):
    """Maps a function over items. Results come in the items' order; an exception of an item is raised here."""

    def __call__(
        self, work: Callable[[Item], Result], items: Sequence[Item], *, done: "Done" = lambda: None
    ) -> Iterator[Result]:
        """Return ``work`` of every item; ``done`` is called whenever one is finished, whatever its place."""
        ...


Done = Callable[[], object]
Workers = int | str | Executor | None


def spare_threads() -> None:
    """Let BLAS run in one thread, unless the environment says otherwise; it reads that once, when NumPy is imported.

    Matrices here have some hundred rows, on which threads lose more by waiting for each other than they save.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def cores() -> int:
    """Cores that this process may use; one where it should not be copied."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def executor_of(workers: "Workers") -> Executor:
    """Return the executor that ``--workers`` names: N processes, or ``dask:ADDRESS`` of a scheduler; one as it is.

    Raises BadInput: neither of them, or Dask is not installed.
    """
    if workers is None:
        return spread
    if not isinstance(workers, int | str):
        return workers
    text = str(workers).strip()
    if text.startswith(DASK):
        if find_spec("distributed") is None:
            raise BadInput("--workers: dask is not installed; install it with pip install 'podplan[dask]'")
        return partial(_on_dask, text.removeprefix(DASK))
    processes = read_index(text)
    if processes is None or not 1 <= processes <= MOST_PROCESSES:
        raise BadInput(f"--workers: {text[:40]!r} is neither 1 to {MOST_PROCESSES} processes nor dask:ADDRESS")
    return partial(spread, processes=processes)


def spread(
    work: Callable[[Item], Result], items: Sequence[Item], processes: int | None = None, *, done: Done = lambda: None
) -> Iterator[Result]:
    """Return ``work`` of every item, in their order.

    Workers are copies of this process: what they need is there already, imports and closures included, and only
    results travel. They begin at once, before whoever shows progress starts a thread. Where processes cannot be copied
    safely (macOS keeps threads of its own), or there is one core or one item, this process does all.
    """
    workers = min(processes or min(cores(), MOST_WORKERS), len(items))
    if workers < 2 or (cores() == 1 and processes is None):
        return _told(map(work, items), done)
    from concurrent.futures import ProcessPoolExecutor  # 20 ms that a single question is spared
    from multiprocessing import active_children, get_context

    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # what waits here would be written by every copy
    others = {*active_children()}
    pool = ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_begin, initargs=(work, items))
    futures = [pool.submit(_nth, number) for number in range(len(items))]
    for future in futures:
        future.add_done_callback(lambda _: done())

    begun = {*active_children()} - others

    def results() -> Iterator[Result]:
        with pool:
            try:
                yield from (future.result() for future in futures)
            except BaseException:  # nobody waits for what they still do
                for process in begun:
                    process.kill()
                raise

    return results()


@contextmanager
def aside(work: Steps[Result]) -> Iterator[Callable[[], Result]]:
    """Do work on another core, in a copy of this process, until the block ends; each call gives its next result.

    Where there is no other core, or the copy is lost, this process does it when a result is asked for.
    """
    if cores() == 1:
        yield work().__next__
        return
    from multiprocessing import get_context  # only where there is another core

    context = get_context("fork")
    inbox, outbox = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, outbox))
    process.start()
    outbox.close()

    def results() -> Iterator[Result]:
        received = 0
        while True:
            try:
                found, error = inbox.recv()
            except EOFError:
                yield from islice(work(), received, None)
                return
            if error is not None:
                raise error
            received += 1
            yield found

    try:
        yield results().__next__
    finally:
        process.kill()
        process.join()
        inbox.close()


def _send(work: Steps[object], outbox: "Connection") -> None:
    _follow()
    try:
        for found in work():
            outbox.send((found, None))
    except PodplanError as error:
        outbox.send((None, error))


def _told(found: Iterable[Result], done: Done) -> Iterator[Result]:
    for one in found:
        done()
        yield one


def _on_dask(
    address: str, work: Callable[[Item], Result], items: Sequence[Item], *, done: Done = lambda: None
) -> Iterator[Result]:
    """Map over the workers of a Dask cluster, which have podplan installed."""
    from distributed import Client  # optional

    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise BadInput(f"--workers: no Dask scheduler answers at {address[:60]!r}: {error}") from None
    with client, client.get_executor(pure=False) as executor:
        yield from _told(executor.map(work, items), done)


def _begin(*job: Any) -> None:
    _follow()
    _job[:] = job


def _follow() -> None:
    """Let this worker end when its parent ends, and end silently on an interrupt, which the parent reports."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        from ctypes import CDLL
        from multiprocessing import parent_process

        CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        parent = parent_process()
        if parent and parent.pid != os.getppid():  # it has ended meanwhile
            signal.raise_signal(signal.SIGKILL)  # as the kernel would have


def _nth(number: int) -> Any:
    work, items = _job
    return work(items[number])
