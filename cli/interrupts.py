"""What Ctrl-C does: exit code 130, as a shell tells it, and no word, whenever it comes."""

import signal
import sys

NUMBER = signal.SIGINT


def leave(*_: object) -> None:
    """End at once by the signal, as its handler: to raise would show where Python is."""
    signal.signal(NUMBER, signal.SIG_DFL)
    signal.raise_signal(NUMBER)


def let(handler: object) -> None:
    """Let a handler take interrupts, unless whoever started this process has it pass them over, as shells may."""
    if signal.getsignal(NUMBER) is not signal.SIG_IGN:
        signal.signal(NUMBER, handler)  # type: ignore[arg-type]  # its type would take as long to import as the rest


def interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt, as a handler of the signal, so that blocks clean up; a second one does not wait."""
    let(leave)
    raise KeyboardInterrupt


def interrupted() -> bool:
    """Whether an interrupt was raised here: whatever other error has become of it."""
    return signal.getsignal(NUMBER) is leave


def pass_on(told: "sys.UnraisableHookArgs") -> None:
    """Leave where an interrupt was raised in what cannot pass it on, such as a destructor; tell other errors."""
    if told.exc_type is KeyboardInterrupt:
        leave()
    sys.__unraisablehook__(told)
