"""What commands print: one JSON object, or one sentence that refuses."""

import json
from typing import Any

import pytest

from cli.main import main
from ground.errors import ExitCode


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = ExitCode.DONE) -> str:
    """Return what a command prints, which ends with a code."""
    capsys.readouterr()
    assert main([*arguments]) == code
    return capsys.readouterr().out


def answered(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = ExitCode.DONE) -> Any:
    """Return the JSON that a command prints, which ends with a code."""
    return json.loads(printed(capsys, *arguments, "--json", code=code))


def refused(capsys: pytest.CaptureFixture[str], told: str, *arguments: str) -> None:
    """Hold that a command ends with exit code 2, nothing on stdout and one line on stderr that tells this.

    Of what is ``told`` all that stands between dots (" … ").
    """
    capsys.readouterr()
    assert main([*arguments]) == ExitCode.BAD_INPUT
    shown = capsys.readouterr()
    assert all(each in shown.err for each in told.split(" … ")), shown.err
    assert shown.err.count("\n") == 1 and not shown.out
