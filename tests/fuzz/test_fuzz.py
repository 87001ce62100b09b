"""A small share of the hunt; all of it is `python -m tests.fuzz --cases 20000`."""

import pytest

from tests.fuzz.__main__ import drawn
from tests.fuzz.cases import WEIGHTS, Case, read_case
from tests.fuzz.hunt import faults

QUICK = [name for name, share in WEIGHTS.items() if share > 2 and name != "import"]  # which plans, in seconds


@pytest.mark.parametrize("command", QUICK)
def test_nothing_breaks_a_command(command: str) -> None:
    """Whatever is typed or stands in a file: done, bad input in one line, or infeasible, and nothing left behind."""
    for case in drawn(4, 1, [command]):
        assert faults(case) == [], case.arguments


def test_the_hunt_finds_what_is_wrong() -> None:
    """A fault, a hang, a file left and a payload are told; a case that is written down is the same case."""
    case = Case(command="deploy", arguments=["models", "qwen3-8b"], files={"a": b"\xff"})
    assert faults(case) == [] and read_case(case.told()) == case
    noise = Case(command="models", arguments=["models", "qwen3-8b"], files={}, environment={"PYTHONHOME": "/absent"})
    assert "ended with 1" in faults(noise)[0]
    assert faults(case, limit_seconds=0.001)[0].startswith("hangs")
    shell = Case(command="models", arguments=["models", "qwen3-8b"], files={"a.sh": b"A=`echo>PWNED`\n"})
    assert faults(shell) == ["a payload was run"]
