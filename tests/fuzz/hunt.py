"""One case in a process that dies alone, and what about its end is a fault."""

import gc
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from cli import main
from cli.__main__ import run
from cli.main import COMMANDS, app_of
from ground.errors import ExitCode
from ground.files import to_yaml
from ground.units import GIBI
from tests.fuzz.cases import SMALL, Case, drawn, read_case
from tests.fuzz.documents import manifests

ROOT = Path(__file__).parents[2]
MOST_BYTES = 6 * GIBI
SHELLS = "command_not_found_handle() { return 0; }; "
"""Programmes of a deployment are not there: the shell takes them for done."""
USUAL = {0, 2, 3}
_NOISE = re.compile(r"Traceback|fault in podplan|^\S*Warning: |: \w*Warning: ", re.MULTILINE)


@cache
def warm() -> None:
    """Import every command and play a little here, so that a copy of this process has nothing to load."""
    for name in COMMANDS:
        if name != "ui":
            app_of(name)
    with TemporaryDirectory(prefix="podplan-fuzz-") as name, redirect_stdout(StringIO()):
        for plan in ("toy", "dense"):
            path = Path(name) / plan
            path.write_text(to_yaml(manifests()[plan]), encoding="utf-8")
            assert main.main(["simulate", str(path), "--rate", "5/s", "--requests", "9"]) == 0
        assert main.main(["search", *SMALL]) == 0
    gc.freeze()


def faults(case: Case, limit_seconds: float = 30.0) -> list[str]:
    """Run a case in a folder of its own; return what is wrong with how it ended, nothing where nothing is."""
    warm()
    with TemporaryDirectory(prefix="podplan-fuzz-") as name:
        folder = Path(name) / "here"
        folder.mkdir()
        for stream in ("out", "err"):
            (Path(name) / stream).touch()
        _fill(folder, case)
        before = _tree(folder)
        code, other, seconds = _run(case, folder, limit_seconds)
        out, err = ((Path(name) / stream).read_text(encoding="utf-8", errors="replace") for stream in ("out", "err"))
        found = list(_wrong(case, code, out, err))
        if other not in {code, *USUAL}:
            found.append(f"the same beside it ended with {other}")
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            found = [f"hangs: over {limit_seconds:g} s of processor time, or four times as long ({seconds:.0f} s)"]
        left = sorted(_tree(folder) - before)
        unread = 4 in case.closed  # then files are whole and told, and the answer alone has no room
        if left and ((code == other == 2 and not unread) or any(".podplan-" in each for each in left)):
            found.append(f"ended with {code} and left {', '.join(left)[:200]}")
        if code == 0:
            _start(folder)
        if any(path.name.startswith("PWNED") for path in Path(name).rglob("*")):
            found.append("a payload was run")
        return found


def hunted(block: tuple[int, str, str]) -> tuple[str, int, list[tuple[str, Case, list[str]]]]:
    """Run a block; return its command, how many cases it had, and the faulty ones with a name and their faults."""
    count, own, command = block
    everything = drawn(count, own, command)
    ended = ((f"{own}-{place}", case, faults(case)) for place, case in enumerate(everything))
    return command, len(everything), [each for each in ended if each[2]]


def replayed(path: Path) -> tuple[str, int, list[tuple[str, Case, list[str]]]]:
    """Run a case again that was written down, and return it as ``hunted`` does."""
    case = read_case(json.loads(path.read_text(encoding="utf-8"))["case"])
    found = faults(case)
    return case.command, 1, [(path.stem, case, found)] if found else []


def _fill(folder: Path, case: Case) -> None:
    """Make the files of a case, and what stands in the way of outputs."""
    for name, content in case.files.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("nothing")
    os.mkfifo(folder / "pipe")
    for name, what in case.instead.items():
        path = folder / name
        path.unlink()
        if what == "folder":
            path.mkdir()
        elif what == "pipe":
            os.mkfifo(path)
        elif what in ("empty", "huge"):
            path.touch()
            os.truncate(path, 0 if what == "empty" else 10 * GIBI)  # of zeros, which take no space
        else:
            path.symlink_to(name if what == "loop" else what)


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _run(case: Case, folder: Path, limit_seconds: float) -> tuple[int, int, float]:
    """Return how a case ended, a negative number for a signal, how the same beside it did, and after how long."""
    start = time.monotonic()
    children = [_started(case, folder, limit_seconds, name) for name in ("", "-too")[: 1 + case.beside]]
    deadline, kill_at = start + 4 * limit_seconds, start + case.after_seconds if case.signal else float("inf")
    codes = [_code(child, case.signal, kill_at, deadline) for child in children]
    for child in children:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # workers that it left
    return codes[0], codes[-1], time.monotonic() - start


def _code(child: int, number: int, signal_at: float, kill_at: float) -> int:
    """Return how a process ended that is sent a signal at one time and killed at another."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        now = time.monotonic()
        if done:
            return os.waitstatus_to_exitcode(status)
        if now > signal_at:
            os.kill(child, number)
            signal_at = float("inf")
        elif now > kill_at:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.003)


def _started(case: Case, folder: Path, limit_seconds: float, streams: str) -> int:
    """Return the process that runs a case, with files of its own for what it says."""
    child = os.fork()
    if child == 0:
        _child(case, folder, limit_seconds, streams)
    return child


def _child(case: Case, folder: Path, limit_seconds: float, streams: str) -> NoReturn:
    """In the process of a case: run it, here or as a programme of its own."""
    try:
        os.setsid()
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_seconds), int(limit_seconds) + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number, name in enumerate(("/dev/null", f"../out{streams}", f"../err{streams}")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if case.fresh:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), **case.environment}
            for number in case.closed:
                _close(number)
            os.execve(sys.executable, [sys.executable, "-m", "cli", *_typed(case)], environment)
        streams = (os.fdopen(number, mode, encoding="utf-8", closefd=False) for number, mode in enumerate("rww"))
        sys.stdin, sys.stdout, sys.stderr = streams
        warnings.simplefilter("default")
        if case.signal:  # which may come between the opening of a file and the block that closes it
            warnings.simplefilter("ignore", ResourceWarning)
        sys.argv = ["plan", *_typed(case)]
        run()
    except KeyboardInterrupt:  # before the command had begun
        os._exit(130)
    except SystemExit as ended:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    except BaseException as error:  # noqa: BLE001 - whatever came out is told, and the process ends here
        sys.stderr.write(f"Traceback: {error!r}\n")
        sys.stderr.flush()
    finally:
        os._exit(1)


def _close(number: int) -> None:
    """Close a stream; as number 3 the reader of stdout alone, as number 4 fill the disk under it."""
    if number < 3:
        os.close(number)
        return
    reader, writer = os.pipe() if number == 3 else (os.open(os.devnull, os.O_RDONLY), os.open("/dev/full", os.O_WRONLY))
    os.close(reader)
    os.dup2(writer, 1)
    os.close(writer)


def _typed(case: Case) -> list[str]:
    return [word.replace("\0", "") for word in case.arguments]


def _wrong(case: Case, code: int, out: str, err: str) -> list[str]:
    """Return what is wrong with an exit code and with what was said."""
    found = []
    by_signal = {-case.signal, 130, 128 + case.signal} if case.signal else set()
    left = {ExitCode.PIPE_CLOSED} if 3 in case.closed else set()
    if code not in USUAL | by_signal | left:
        found.append(f"ended with {code}: {err.strip()[-300:]!r}")
    noise = _NOISE.search(err + out)
    if noise:
        found.append(f"says {noise[0]!r}: {err.strip()[-300:]!r}")
    if code == 2 and case.command in ("hardware", "manifest") and "fault" not in err:
        return found  # which list all that is wrong with a file
    in_one = err.count("\n") == 1 and err.startswith("plan: ") and len(err) <= 2200
    if code == 2 and not in_one and not {2, 4} & {*case.closed}:
        found.append(f"bad input is told in {err.count(chr(10))} lines: {err[:300]!r}")
    if code == 2 and out:
        found.append(f"bad input, and on stdout: {out[:100]!r}")
    if code == 0 and "--json" in case.arguments and "--help" not in case.arguments and not {1, 3, 4} & {*case.closed}:
        try:
            json.loads(out, parse_constant=lambda text: 1 / 0)
        except (ValueError, ZeroDivisionError):
            found.append(f"is no JSON: {out[:200]!r}")
    return found


def _start(folder: Path) -> None:
    """Let a shell run what was written for one, with nothing on its path."""
    for path in [*folder.rglob("*.sh"), *folder.rglob("*.env")]:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["/bin/bash", "-c", f"{SHELLS} exec() {{ :; }}; source ./{path.name} 0 0"],
                cwd=path.parent,
                env={"PATH": "/absent"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=5,
                check=False,
            )
