"""Work on many items in several processes gives what a loop gives."""

import os
from collections.abc import Callable

import pytest

from ground.errors import BadInput
from podplan.workers import spread


@pytest.fixture(params=[1, 2], ids=["one core", "two cores"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """As many cores as are asked for, whatever this machine has."""
    monkeypatch.setattr("podplan.workers.cores", lambda: request.param)
    return int(request.param)


def halves_of(whole: float) -> Callable[[int], tuple[int, float, int]]:
    """Return a closure, which no process could be sent."""
    return lambda number: (number, whole / 2, os.getpid())


def test_results_come_in_order(cores: int) -> None:
    """Whoever ends first, the first item's result is the first; closures need not travel."""
    found = list(spread(halves_of(3.0), range(7)))
    assert [(number, half) for number, half, _ in found] == [(number, 1.5) for number in range(7)]
    assert (os.getpid() in {process for _, _, process in found}) == (cores == 1)


def test_one_item_stays_here(cores: int) -> None:
    """No process is begun for it."""
    assert list(spread(halves_of(1.0), [4])) == [(4, 0.5, os.getpid())]
    assert list(spread(halves_of(1.0), [])) == []


def test_what_is_wrong_is_raised_here(cores: int) -> None:
    """The same exception with its sentence, after the results before it."""

    def picky(number: int) -> int:
        if number == 2:
            raise BadInput("--isl: 2 is too small")
        return number

    found = spread(picky, range(4))
    assert next(found) == 0
    with pytest.raises(BadInput, match="--isl: 2 is too small"):
        list(found)
