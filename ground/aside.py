"""Work that another process does meanwhile, where a core is free for it: ``helped`` allows it, ``aside`` begins it.

The other process is a copy of this one, made once, when it gets its first work. Calls travel to it as pickles, and
results come back through memory that both see; what this process has had ``in_common`` with it before it was made need
not travel. Work that the other process has not come to when its result is asked for is done here: neither waits while
something is left to do. Where there is one core, or copying a process is not safe, all of it is. So it is where the
other process fails, by whatever: errors are then raised here, as they are without it.
"""

import gc
import io
import os
import pickle
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from typing import IO, Any, Generic, NoReturn, TypeVar

Result = TypeVar("Result")

_WHERE = struct.Struct("qq")
"""Where a result begins in the memory that both processes see, and its length: none where there is no result."""


def cores() -> int:
    """Cores that this process may use; one where it should not be copied (macOS keeps threads of its own)."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


class Aside(Generic[Result]):
    """Work whose result is asked for later; ``other`` is the process that does it, None where this one will."""

    def __init__(self, work: Callable[[], Result], other: "_Other | None" = None) -> None:
        self._work, self._other = work, other
        self._number = other.begin(work) if other else 0
        self._found: list[Result] = []

    @property
    def elsewhere(self) -> bool:
        """Whether another process does it."""
        return self._other is not None

    def result(self) -> Result:
        """Return the result, which is waited for. Raises what the work raises."""
        if not self._found:
            self._found = (self._other.result(self._number) if self._other else []) or [self._work()]
        return self._found[0]


def aside(work: Callable[[], Result]) -> Aside[Result]:
    """Begin work beside this process; works that are begun are done one after the other.

    It is a function of a module, or one with arguments bound by ``partial``; they travel, and so does its result.
    """
    helper = _helping.get()
    return Aside(work, helper.other() if helper else None)


@contextmanager
def helped() -> Iterator[None]:
    """Within this block another process may do work; it ends with the block."""
    helper = _Helper()
    token = _helping.set(helper)
    try:
        yield
    finally:
        _helping.reset(token)
        helper.end()


def alone() -> None:
    """From here on all work is done in this process: whoever has copied it uses the other cores already."""
    _helping.set(None)


def in_common(objects: Iterable[object]) -> None:
    """Say what the other process will have, too, unless it is at work already."""
    helper = _helping.get()
    if helper:
        helper.know(objects)


class _Helper:
    """Another process, once there is work for it."""

    def __init__(self) -> None:
        self._common: list[object] = []
        self._other: _Other | None = None

    def know(self, objects: Iterable[object]) -> None:
        if self._other is None:
            self._common += objects

    def other(self) -> "_Other | None":
        """Return the other process, made now if it is not there; None where it should not be."""
        if self._other is None and cores() > 1 and threading.active_count() == 1:  # a copy has no other threads
            self._other = _Other(self._common)
        return self._other

    def end(self) -> None:
        if self._other:
            self._other.end()


class _Other:
    """Another process as this one sees it: calls go in, and word of where their results stand comes out."""

    def __init__(self, objects: list[object]) -> None:
        self._common, self._begun = _Common(objects), 0
        self._results: list[tuple[int, int]] = []
        self._memory = os.memfd_create("aside")
        (calls, ours), (theirs, word) = os.pipe(), os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(ours)
            _work(os.fdopen(calls, "rb"), os.fdopen(word, "wb"), self._memory, self._common)
        os.close(calls)
        os.close(word)
        self._calls, self._word = os.fdopen(ours, "wb"), os.fdopen(theirs, "rb")

    def begin(self, work: Callable[[], object]) -> int:
        """Send a call and return its number; it is lost where the process has ended."""
        with suppress(BrokenPipeError):
            self._common.write(work, self._calls)
            self._calls.flush()
        self._begun += 1
        return self._begun

    def result(self, number: int) -> list[Any]:
        """Wait for the result of a call and return it as a list of one.

        As an empty one where there is none, or where the call has not begun: from then on it is to be done here.
        """
        if len(self._results) < number and _claimed(self._memory, number):
            return []
        while len(self._results) < number:
            told = self._word.read(_WHERE.size)
            if len(told) < _WHERE.size:
                return []
            self._results.append(_WHERE.unpack(told))
        start, length = self._results[number - 1]
        return [self._common.read(io.BytesIO(os.pread(self._memory, length, start)))] if length else []

    def end(self) -> None:
        """Stop it, whatever it is doing."""
        os.kill(self._process, signal.SIGKILL)
        with suppress(ChildProcessError):  # whoever started this process had it told that nobody waits for children
            os.waitpid(self._process, 0)
        with suppress(BrokenPipeError):
            self._calls.close()
        self._word.close()
        os.close(self._memory)


_helping: ContextVar[_Helper | None] = ContextVar("helping", default=None)


def _claimed(memory: int, number: int) -> bool:
    """Whether a call is this process's to do: it is of the first that says so, for as long as that process lives."""
    import fcntl  # not everywhere, and where it is not there is no other process either

    try:
        fcntl.lockf(memory, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except OSError:
        return False
    return True


def _work(calls: IO[bytes], word: IO[bytes], memory: int, common: "_Common") -> NoReturn:
    """In the other process: do one call after the other until one fails, or there are no more."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # interrupted, it ends without a word; its parent tells
        gc.disable()  # whatever it looks through would be copied
        alone()
        start = 0
        for number in count(1):
            call, result = common.read(calls), io.BytesIO()
            if _claimed(memory, number):
                common.write(call(), result)
            length = os.pwrite(memory, result.getbuffer(), start)
            word.write(_WHERE.pack(start, length))
            word.flush()
            start += length
    finally:
        os._exit(0)  # neither tells what failed, nor flushes what waits in its parent's buffers


class _Common:
    """What two processes have had in common: it is written as its place among that."""

    def __init__(self, objects: list[object]) -> None:
        self.objects, self.places = objects, {id(each): place for place, each in enumerate(objects)}

    def write(self, one: object, file: IO[bytes]) -> None:
        _Writer(file, self.places).dump(one)

    def read(self, file: IO[bytes]) -> Any:
        return _Reader(file, self.objects).load()


class _Writer(pickle.Pickler):
    def __init__(self, file: IO[bytes], places: dict[int, int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = places

    def persistent_id(self, one: object) -> int | None:
        return self._places.get(id(one))


class _Reader(pickle.Unpickler):
    def __init__(self, file: IO[bytes], objects: list[object]) -> None:
        super().__init__(file)
        self._objects = objects

    def persistent_load(self, place: int) -> object:
        return self._objects[place]
