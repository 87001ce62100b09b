"""`plan MODEL --scenarios FILE`."""

import json
from pathlib import Path

import pytest

from cli.main import main

ASKED = ["qwen3-8b", "--hw", "h100", "--nodes", "1", "--osl", "128", "--isl", "512", "--shape", "disaggregated"]


def written(tmp_path: Path, text: str) -> str:
    """Write a file of scenarios."""
    path = tmp_path / "day.yaml"
    path.write_text(text)
    return str(path)


def test_windows_have_one_plan_and_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one plan is the peak's, the policy lies between the bound and the peak."""
    day = "scenarios:\n- {name: night, rate: 5/s, lasts: 8h}\n- {name: day, rate: 60/s, lasts: 16h}\n"
    assert main([*ASKED, "--scenarios", written(tmp_path, day), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    night, busy = found["scenarios"]
    assert night["one_plan_holds"]
    assert busy["one_plan_holds"]
    assert found["one_plan"]["chips"] >= found["one_plan"]["least_chips"]
    policy = found["policy"]
    assert policy["bound_chip_hours"] <= policy["chip_hours"] <= policy["peak_chip_hours"]
    assert policy["chip_hours"] < policy["peak_chip_hours"] or night["chips_alone"] == busy["chips_alone"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scenarios: []\n", "must be a list"),
        ("rate: 5/s\n", "list of scenarios"),
        ("scenarios:\n- {rate: 5/s}\nshares: 1\n", "shares is not a known key"),
        ("scenarios:\n- {name: night}\n", "rate is missing"),
        ("scenarios:\n- {rate: 5/s, weight: none}\n", "weight"),
        ("scenarios:\n- {rate: 5/s, lasts: 1h}\n- {rate: 5/s}\n", "to all or none"),
        ("scenarios:\n- {rate: 5/s, engine: vllm}\n", "engine is not a known key"),
        ("scenarios:\n- {rate: 5/s}\ngrowth: less\n", "growth"),
    ],
)
def test_bad_files_are_named(text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one sentence."""
    assert main([*ASKED, "--scenarios", written(tmp_path, text)]) == 2
    assert told in capsys.readouterr().err


def test_other_outputs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What scenarios do not write."""
    day = written(tmp_path, "scenarios:\n- {rate: 5/s}\n")
    assert main([*ASKED, "--scenarios", day, "--pareto", "3"]) == 2
    assert "--scenarios: goes with MODEL" in capsys.readouterr().err
