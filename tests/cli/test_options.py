"""Options that are fields of data classes."""

import pytest
import typer

from cli.deploy import DeployFlags
from cli.execute import ExecuteFlags
from cli.options import parameters_of
from podplan.options import (
    PredictFlags,
    QuestionFlags,
    SimulateFlags,
    flag_name,
)  # fmt: skip
from podplan.placement import PlaceFlags


@pytest.mark.parametrize("kind", [QuestionFlags, PlaceFlags, PredictFlags, SimulateFlags, ExecuteFlags, DeployFlags])
def test_flags_are_called_as_their_fields(kind):
    """Refusals name the flag of a field, and question files have fields for keys: both spell it alike."""
    for each in parameters_of(kind):
        info = each.annotation.__metadata__[0]
        if not isinstance(info, typer.models.ArgumentInfo):
            assert flag_name(each.name) in (info.default, *info.param_decls)  # typer keeps the first name there
