"""Work beside this process gives what it gives here, whatever becomes of the other process."""

import os
import signal
import threading
from functools import partial

import pytest

from ground.aside import alone, aside, helped, in_common
from ground.errors import BadInput

COMMON = ["a list that both have"]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many cores as a helper needs, whatever this machine has."""
    monkeypatch.setattr("ground.aside.cores", lambda: 2)


def children() -> bool:
    """Whether this process has a child that nobody has waited for."""
    try:
        return os.waitpid(-1, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return False


def picky(number: int) -> int:
    """Fail with a sentence at 2."""
    if number == 2:
        raise BadInput("--isl: 2 is too small")
    return number


def interrupted() -> str:
    """Die in the other process, not in this one."""
    if os.getpid() != HOME:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done here"


HOME = os.getpid()


class Bell:
    """Rings once the other process has done what was begun before; made before that process is."""

    def __init__(self) -> None:
        """Hang it up."""
        self.heard, self.rung = os.pipe()

    def wait(self) -> None:
        """Wait until all that was begun is done."""
        aside(partial(os.write, self.rung, b"."))
        os.read(self.heard, 1)


def test_works_are_done_elsewhere_one_after_the_other() -> None:
    """Results may be asked for in any order, and again."""
    bell = Bell()
    with helped():
        works = [aside(partial(pow, 2, number)) for number in range(5)]
        process = aside(os.getpid)
        assert all(work.elsewhere for work in works)
        bell.wait()
        assert [work.result() for work in reversed(works)] == [16, 8, 4, 2, 1]
        assert works[3].result() == 8
        assert process.result() != os.getpid()
    assert not children()


def test_what_the_other_process_has_not_come_to_is_done_here() -> None:
    """It is not waited for, and not done twice; what comes after it is done elsewhere all the same."""
    bell = Bell()
    (heard, rung), (read, written) = os.pipe(), os.pipe()
    with helped():
        aside(partial(os.read, heard, 1))  # busy until it is told
        first, second, word = aside(os.getpid), aside(os.getpid), aside(partial(os.write, written, b"!"))
        assert first.result() == os.getpid()
        assert word.result() == 1
        os.write(rung, b".")
        bell.wait()
        assert os.read(read, 9) == b"!"
        assert second.result() != os.getpid()
        assert first.result() == os.getpid()
    assert not children()


def test_what_is_in_common_does_not_travel() -> None:
    """It is the same object in a result, and whatever is large comes back whole."""
    bell = Bell()
    with helped():
        in_common([COMMON])
        first = aside(partial(dict, one=COMMON, other=[1]))
        in_common([works := [1, 2]])  # too late: it travels
        second, third = aside(partial(list, [works])), aside(partial(bytes, 5_000_000))
        bell.wait()
        assert first.result()["one"] is COMMON
        assert second.result() == [[1, 2]]
        assert second.result()[0] is not works
        assert third.result() == bytes(5_000_000)


def test_what_is_wrong_is_raised_here() -> None:
    """The same exception, and whatever came after it is done here."""
    with helped():
        works = [aside(partial(picky, number)) for number in range(4)]
        assert works[0].result() == 0
        with pytest.raises(BadInput, match="--isl: 2 is too small"):
            works[2].result()
        assert works[3].result() == 3
        assert aside(partial(picky, 4)).result() == 4
    assert not children()


def test_a_process_that_dies_costs_no_result() -> None:
    """Its work is done here."""
    with helped():
        works = [aside(interrupted), aside(partial(pow, 3, 3))]
        assert [work.result() for work in works] == ["done here", 27]
    assert not children()


def test_it_ends_with_the_block_even_if_it_works() -> None:
    """Nobody waits for what nobody asks for."""
    with pytest.raises(KeyError), helped():
        aside(signal.pause)
        raise KeyError
    assert not children()


def test_without_leave_or_a_second_core_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where there are other threads, whose locks a copy might wait for, or in a process that is itself a copy."""
    assert not aside(os.getpid).elsewhere
    with helped():
        thread = threading.Timer(60, print)
        thread.start()
        assert not aside(os.getpid).elsewhere
        thread.cancel()
        thread.join()
    with helped():
        alone()
        assert aside(os.getpid).result() == os.getpid()
    monkeypatch.setattr("ground.aside.cores", lambda: 1)
    with helped():
        work = aside(os.getpid)
        assert not work.elsewhere
        assert work.result() == os.getpid()
