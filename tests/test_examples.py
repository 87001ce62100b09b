"""What stands in examples/ runs as it says."""

from pathlib import Path

import pytest

from cli.exit_codes import ExitCode
from cli.main import main
from ground.files import read_yaml
from podplan.fleet_files import read_fleet
from podplan.question_files import read_questions

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_every_question_of_the_capacity_file_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """The file that a team would keep passes, with a row for each of its questions."""
    path = EXAMPLES / "questions" / "capacity.yaml"
    assert main(["check", str(path)]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert all(entry.name in shown for entry in read_questions(path, ("confidence",)))


def test_the_workflow_checks_a_question_file() -> None:
    """The step that a team copies is a command that exists, with flags that it takes."""
    workflow = read_yaml(EXAMPLES / "ci" / "github-actions.yaml")
    assert isinstance(workflow, dict)
    steps = workflow["jobs"]["check"]["steps"]
    assert "plan check capacity/questions.yaml --confidence 0.9 --junit report.xml" in [
        each.get("run") for each in steps
    ]


def test_the_fleet_is_carried(capsys: pytest.CaptureFixture[str]) -> None:
    """Every model of the example has a row."""
    path = EXAMPLES / "fleets" / "two-models.yaml"
    assert main(["fleet", str(path)]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert all(entry.name in shown for entry in read_questions(path, list_key="models"))


def test_the_largest_fleet_reads_as_models_on_any_of_two_pools() -> None:
    """It is solved in benchmarks/speed.py; here only what it asks."""
    asked = read_fleet(EXAMPLES / "fleets" / "two-pools.yaml", {})
    assert list(asked.fleet.devices) == ["cm384", "910b"]
    assert all(len(member.pools) == 2 for member in asked.fleet.members)
