"""Handling of Ctrl-C: at any time the command ends silently with exit code 130, as shells report it."""

import signal
import sys

NUMBER = signal.SIGINT


def leave(*_: object) -> None:
    """End at once by the signal itself, as its handler: an exception would print a traceback."""
    signal.signal(NUMBER, signal.SIG_DFL)
    signal.raise_signal(NUMBER)


def let(handler: object) -> None:
    """Install a handler of interrupts, unless whoever started this process has them ignored, as shells may."""
    if signal.getsignal(NUMBER) is not signal.SIG_IGN:
        signal.signal(NUMBER, handler)  # type: ignore[arg-type]  # its type would take as long to import as the rest


def interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt, as a handler of the signal, so that blocks clean up; a second one does not wait."""
    let(leave)
    raise KeyboardInterrupt


def interrupted() -> bool:
    """Whether Ctrl-C raised KeyboardInterrupt, even where another exception has replaced it since."""
    return signal.getsignal(NUMBER) is leave


def pass_on(told: "sys.UnraisableHookArgs") -> None:
    """End the process on an interrupt that Python cannot propagate, as in a destructor; report other errors."""
    if told.exc_type is KeyboardInterrupt:
        leave()
    sys.__unraisablehook__(told)
