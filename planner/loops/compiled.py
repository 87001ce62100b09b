"""numba, imported when a loop is first played: its cache folder, and a sentence while loops are compiled.

Modules whose names end in ``_loop`` import ``njit`` from here. They are imported inside the functions that play them,
for numba takes half a second to import, which questions with closed-form answers need not wait for.
"""

import os
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar


def _cache_folder() -> Path:
    """Return a folder of the user's that can be written: under home, or of temporary files where that is read-only.

    It is another one for other loops: numba looks at the file of a function alone, not at those of what it calls.
    """
    sources = 0
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sources = zlib.crc32(path.read_bytes(), sources)
    with suppress(OSError, RuntimeError):  # a user without a home folder, as containers have
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "podplan" / "compiled" / f"{sources:08x}"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    user = getattr(os, "getuid", int)()
    with suppress(OSError):
        folder = Path(tempfile.gettempdir()) / f"podplan-compiled-{user}-{sources:08x}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid == user:  # else others could have put code there
            return folder
    return Path(tempfile.mkdtemp(prefix="podplan-compiled-"))


def _tell_once(folder: str) -> None:
    """Say that loops are compiled, unless another process says so: it holds the folder's lock until it ends."""
    try:
        import fcntl  # where processes are copied

        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except (ImportError, OSError):  # a system or a file system without such locks
        pass
    sys.stderr.write("plan: compiling the serving core, once on this machine (up to a minute)\n")


COMPILES = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"  # whether loops are compiled, not plain Python
if "numba" not in sys.modules:
    if "NUMBA_CACHE_DIR" not in os.environ:  # else a process that has one started this one
        os.environ["NUMBA_CACHE_DIR"] = str(_cache_folder())
    os.environ.setdefault("NUMBA_OPT", "1")  # loops run as fast as with 3, and compile in two thirds of the time
    if COMPILES and not any(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbi")):
        _tell_once(os.environ["NUMBA_CACHE_DIR"])

from numba import njit as _njit  # noqa: E402 - numba reads the cache folder when it is imported

Function = TypeVar("Function", bound=Callable[..., Any])


class Decorator(Protocol):
    """What compiles a function and leaves its type."""

    def __call__(self, function: Function, /) -> Function:
        """Return the function, compiled when it is first called."""
        ...


# Without reference counts (``_nrt``): loops borrow the arrays of their caller. Counting took three quarters of a step.
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}

_INNER = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""What Python calls unpacks every record and array first: that code takes a fifth of the time to compile."""

njit: Decorator = _njit(**_INNER, forceinline=True)
"""Decorator of compiled functions that others call, and are inlined in.

A call would pass every pointer, length and stride of records and tables: that took two thirds of an aggregated step.
"""
once: Decorator = _njit(**_INNER, inline="always")
"""Decorator of those that one function calls at one place: compiled as a part of that function.

Each level of functions that are compiled apart and inlined costs optimising all that is below it once more. Many such
levels in one would cost more, for types are inferred of all of them together.
"""
called: Decorator = _njit(**_INNER)
"""Decorator of large ones that are called at several places, seldom: each would hold all of their code."""
making: Decorator = _njit(**_INNER | {"_nrt": True})  # decorator of those that make arrays, which are counted
outermost: Decorator = _njit(**_OPTIONS)
"""Decorator of those that Python calls: machine code is kept on disk; NUMBA_DISABLE_JIT=1 leaves plain Python."""
