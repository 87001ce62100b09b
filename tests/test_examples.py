"""What stands in examples/ runs as it says."""

from pathlib import Path

import pytest

from cli.main import main
from ground.errors import ExitCode
from ground.files import read_yaml
from planner.plans.papers import published_deployments
from podplan.fleets import read_fleet
from podplan.planning import solved
from podplan.question_files import Entry, asked_of, read_questions

EXAMPLES = Path(__file__).parents[1] / "examples"
PUBLISHED = {path.stem: read_questions(path) for path in sorted((EXAMPLES / "published").glob("*.yaml"))}
APART = [(name, entry) for name, own in PUBLISHED.items() for entry in own if "mixed" not in str(entry.get("strategy"))]


def _with_vllm(folder: Path, path: Path) -> Path:
    """Return a copy of a question file for one engine: the best of all is no worse."""
    copy = folder / path.name
    copy.write_text(f"engine: vllm\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    return copy


def test_every_question_of_the_capacity_file_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file that a team would keep passes, with a row for each of its questions."""
    path = _with_vllm(tmp_path, EXAMPLES / "questions" / "capacity.yaml")
    assert main(["check", str(path)]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert all(entry.name in shown for entry in read_questions(path, ("confidence",)))


def test_the_workflow_checks_a_question_file() -> None:
    """The step that a team copies is a command that exists, with flags that it takes."""
    workflow = read_yaml(EXAMPLES / "ci" / "github-actions.yaml")
    steps = workflow["jobs"]["check"]["steps"]
    assert "plan check capacity/questions.yaml --confidence 0.9 --junit report.xml" in [
        each.get("run") for each in steps
    ]


@pytest.mark.parametrize(("name", "entry"), APART, ids=lambda value: value if isinstance(value, str) else "")
def test_each_published_deployment_has_a_plan_as_it_was_cut(name: str, entry: Entry) -> None:
    """In the strategies, numbers and batches that the paper states, which the table of published ones has, too."""
    found = solved(asked_of(entry), beside=False)
    for role, pool in found.best.pools():
        pin, candidate = found.asked.question.pin(role), pool.candidate
        assert pin.strategy == candidate.row.strategy and pin.redundant in (None, candidate.row.redundant)
        assert pin.instances in (None, pool.instances)
        assert pin.batch in (None, getattr(candidate, "batch", None))
    listed = [[pin.strategy for _, pin in each.pins] for each in published_deployments()]
    known = [pool.candidate.row.strategy for _, pool in found.best.pools()]
    assert known in listed or name == "xdeepserve"


def test_published_aggregated_deployments_are_such_questions() -> None:
    """They are played, so that two of them are: MixServe's of Qwen3 on H20, xLLM's of Qwen2-7B."""
    asked = {entry.name: asked_of(entry) for name in ("mixserve", "xllm") for entry in PUBLISHED[name]}
    assert all(one.question.shape == "aggregated" for one in asked.values()) and len(asked) == 11
    for name in ("H20, Qwen3: MixServe", "Qwen2-7B on one 910B"):
        assert solved(asked[name], beside=False).best is not None


def test_the_fleet_is_carried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every model of the example has a row."""
    path = _with_vllm(tmp_path, EXAMPLES / "fleets" / "two-models.yaml")
    assert main(["fleet", str(path)]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert all(entry.name in shown for entry in read_questions(path, list_key="models"))


def test_the_largest_fleet_reads_as_models_on_any_of_two_pools() -> None:
    """It is solved in benchmarks/speed.py; here only what it asks."""
    asked = read_fleet(EXAMPLES / "fleets" / "two-pools.yaml", {})
    assert list(asked.fleet.devices) == ["cm384", "910b"]
    assert all(len(member.pools) == 2 for member in asked.fleet.members)
