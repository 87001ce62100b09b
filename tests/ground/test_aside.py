"""Work beside this thread gives what it gives here."""

import threading
from contextvars import copy_context
from functools import partial

import pytest

from ground.aside import alone, aside, helped
from ground.errors import BadInput


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many cores as a helper needs, whatever this machine has."""
    monkeypatch.setattr("ground.aside.cores", lambda: 2)


def picky(number: int) -> int:
    """Fail with a sentence at 2."""
    if number == 2:
        raise BadInput("--isl: 2 is too small")
    return number


def test_works_are_done_elsewhere_one_after_the_other() -> None:
    """Results may be asked for in any order, and again."""
    seen: list[int] = []
    done = threading.Event()
    with helped():
        works = [aside(partial(seen.append, number)) for number in range(5)]
        where = aside(threading.get_ident)
        aside(done.set)
        assert done.wait(10)
        assert all(work.elsewhere for work in works)
        assert where.result() == where.result() != threading.get_ident()
    assert seen == [0, 1, 2, 3, 4]


def test_what_the_other_thread_has_not_come_to_is_done_here() -> None:
    """It is not waited for, and not done twice."""
    busy, go, seen = threading.Event(), threading.Event(), []
    with helped():
        aside(lambda: (busy.set(), go.wait(10)))
        assert busy.wait(10)
        first, second = aside(threading.get_ident), aside(partial(seen.append, 1))
        assert first.result() == threading.get_ident()
        assert second.result() is None
        go.set()
    assert seen == [1]


def test_what_is_wrong_is_raised_here() -> None:
    """The same exception, each time it is asked for; what came after it is done all the same."""
    with helped():
        works = [aside(partial(picky, number)) for number in range(4)]
        assert works[0].result() == 0
        for _ in range(2):
            with pytest.raises(BadInput, match="--isl: 2 is too small"):
                works[2].result()
        assert works[3].result() == 3


def test_what_nobody_asked_for_ends_with_the_block() -> None:
    """A block that fails waits for nothing but what had begun; what had not is done by who still asks for it."""
    busy, go = threading.Event(), threading.Event()
    with pytest.raises(KeyError), helped():
        aside(lambda: (busy.set(), go.wait(10)))
        assert busy.wait(10)
        late = aside(threading.get_ident)
        go.set()
        raise KeyError
    assert late.result() is not None
    assert threading.active_count() == 1 or all("ThreadPool" not in each.name for each in threading.enumerate())


def test_without_leave_or_a_second_core_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor in a process that is one of several; works begun by a work are its own."""
    assert not aside(threading.get_ident).elsewhere

    def alone_in() -> bool:
        alone()
        with helped():
            return aside(threading.get_ident).elsewhere

    assert not copy_context().run(alone_in)
    with helped():
        assert not aside(lambda: aside(threading.get_ident).elsewhere).result()
    monkeypatch.setattr("ground.aside.cores", lambda: 1)
    with helped():
        work = aside(threading.get_ident)
        assert not work.elsewhere
        assert work.result() == threading.get_ident()
