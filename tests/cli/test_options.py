"""Options that are fields of data classes."""

from dataclasses import dataclass

import pytest
import typer
from typer.testing import CliRunner

from cli.deploy import DeployFlags
from cli.execute import ExecuteFlags
from cli.options import JSON, parameters_of, takes
from podplan.options import (
    PredictFlags,
    QuestionFlags,
    SimulateFlags,
    Text,
    argument,
    flag,
    flag_name,
    switch,
)  # fmt: skip
from podplan.placement import PlaceFlags


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """A needed argument, a switch and an option with a second name."""

    model: Text = argument("MODEL", "What is asked about.")
    deep: bool = switch("Look deeper.")
    kv_len: Text = flag("TOKENS", "Cached tokens.", "--kv-len", "--kv")


@pytest.fixture
def ran():
    """Return a command of these flags, and what it was given."""
    app, seen = typer.Typer(), []

    @app.command()
    @takes(Flags)
    def command(flags: Flags, json: bool = JSON) -> None:
        """Say what was asked."""
        seen.append((flags, json))

    return app, seen


def test_fields_are_what_a_command_is_given(ran):
    """Fields come as one data class, with the defaults of the class; a command's own parameters come beside it."""
    app, seen = ran
    runner = CliRunner()
    assert runner.invoke(app, ["r1"]).exit_code == 0
    assert runner.invoke(app, ["r1", "--deep", "--kv", "4k", "--json"]).exit_code == 0
    assert seen == [(Flags(model="r1"), False), (Flags(model="r1", deep=True, kv_len="4k"), True)]
    assert runner.invoke(app, []).exit_code == 2


def test_help_lists_fields_in_their_order(ran):
    """The help has a field's flag, metavar and text, and the command's own docstring."""
    told = CliRunner().invoke(ran[0], ["--help"]).stdout
    assert "Say what was asked." in told
    assert told.index("--deep") < told.index("--kv-len") < told.index("TOKENS") < told.index("--json")


@pytest.mark.parametrize("kind", [QuestionFlags, PlaceFlags, PredictFlags, SimulateFlags, ExecuteFlags, DeployFlags])
def test_flags_are_called_as_their_fields(kind):
    """Refusals name the flag of a field, and question files have fields for keys: both spell it alike."""
    for each in parameters_of(kind):
        info = each.annotation.__metadata__[0]
        if not isinstance(info, typer.models.ArgumentInfo):
            assert flag_name(each.name) in (info.default, *info.param_decls)  # typer keeps the first name there
