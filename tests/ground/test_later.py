"""Work is done once, and only if somebody asks."""

import pytest

from ground.errors import BadInput
from ground.later import Later


def test_work_is_done_when_it_is_asked_for_and_once() -> None:
    """Its result is kept."""
    seen: list[int] = []
    later = Later(lambda: seen.append(1) or len(seen))
    assert seen == []
    assert later.result() == later.result() == 1
    assert seen == [1]


def test_what_is_wrong_is_raised_each_time() -> None:
    """Where it is asked for."""

    def fail() -> None:
        raise BadInput("--isl: 2 is too small")

    later = Later(fail)
    for _ in range(2):
        with pytest.raises(BadInput, match="--isl"):
            later.result()
