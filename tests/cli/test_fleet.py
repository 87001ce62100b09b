"""`plan fleet`: several models on one cluster, from a file."""

import json
from pathlib import Path

import pytest

from cli.exit_codes import ExitCode
from cli.main import main

FILE = """
hw: h100
nodes: 1
models:
  - {name: small, model: qwen3-8b, rate: 2/s, isl: 512, osl: 64}
  - {name: large, model: qwen3-32b, rate: 1/s, isl: 512, osl: 64}
"""


def _written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_model_has_a_plan_on_the_shared_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan for each at its rate, together within the node; the CSV has a row for each."""
    path, table = _written(tmp_path, FILE), tmp_path / "fleet.csv"
    assert main(["fleet", path, "--json", "--csv", str(table)]) == ExitCode.DONE
    data = json.loads(capsys.readouterr().out)
    assert [model["best"]["requests_per_second"] for model in data["models"]] == [2, 1]
    assert sum(model["best"]["devices"] for model in data["models"]) == data["devices_used"]["h100"] <= 8
    assert data["bound"]["gap"] <= 1e-6
    assert len(table.read_text(encoding="utf-8").splitlines()) == 3


def test_a_fleet_that_is_too_large_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3 with the limit that binds."""
    assert main(["fleet", _written(tmp_path, FILE.replace("2/s", "5000/s"))]) == ExitCode.INFEASIBLE
    assert "the cluster does not carry the fleet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (FILE.replace("rate: 1/s, ", ""), "models[1]: rate is missing"),
        (FILE.replace("models:", "model_list:"), "model_list is not a known key"),
        (FILE.replace("name: large", "name: small"), "small"),
        (FILE + "  - {model: qwen3-8b, rate: 1/s, nodes: 2}\n", "h100 has another size than above"),
        (FILE + "  - {model: qwen3-8b, rate: 1/s, objective: cost}\n", "objective stands beside models"),
        (FILE.replace("nodes: 1", "nodes: 1\nobjective: joy"), "objective: 'joy' is not"),
        (FILE.replace("models:", "models: 5\nx:"), "x is not a known key"),
    ],
)
def test_bad_files_are_one_sentence(text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the place in the file, and nothing on stdout."""
    assert main(["fleet", _written(tmp_path, text)]) == ExitCode.BAD_INPUT
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
