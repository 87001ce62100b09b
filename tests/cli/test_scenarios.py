"""`plan MODEL --scenarios FILE`."""

from pathlib import Path

import pytest

from cli.main import main
from planner.manifest.document import read_manifest
from tests.shell import answered, printed, refused

SMALL = {"--engine": "reference", "--hw": "h100", "--isl": "512", "--osl": "128", "--shape": "disaggregated"}
ASKED = ["qwen3-8b", *(word for pair in SMALL.items() for word in pair), "--nodes", "1"]


def written(tmp_path: Path, text: str) -> str:
    """Write a file of scenarios."""
    path = tmp_path / "day.yaml"
    path.write_text(text)
    return str(path)


def test_windows_have_one_plan_and_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one plan is the peak's, the policy lies between the bound and the peak."""
    day = "scenarios:\n- {name: night, rate: 5/s, lasts: 8h}\n- {name: day, rate: 60/s, lasts: 16h}\n"
    found = answered(capsys, *ASKED, "--scenarios", written(tmp_path, day))
    night, busy = found["scenarios"]
    assert night["one_plan_holds"]
    assert busy["one_plan_holds"]
    assert found["one_plan"]["chips"] >= found["one_plan"]["least_chips"]
    policy = found["policy"]
    assert policy["bound_chip_hours"] <= policy["chip_hours"] <= policy["peak_chip_hours"]
    assert policy["chip_hours"] < policy["peak_chip_hours"] or night["chips_alone"] == busy["chips_alone"]


def test_two_models_share_the_devices_and_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second model comes by day; every window's manifests share no node, and migrate finds the way between two."""
    day = (
        "scenarios:\n- {name: night, rate: 5/s, lasts: 8h}\n- {name: day, rate: 60/s, lasts: 16h}\n"
        "- {name: day, model: qwen3-32b, rate: 2/s, lasts: 16h, ttft: 2s}\n"
    )
    nodes = ["2" if each == "1" else each for each in ASKED]
    asked = [*nodes, "--scenarios", written(tmp_path, day), "--out", str(tmp_path / "out")]
    found = answered(capsys, *asked)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert "02-day-qwen3-32b.yaml" in names
    assert "01-night-qwen3-32b.yaml" not in names
    assert [row["model"] for row in found["scenarios"]] == ["qwen3-8b", "qwen3-8b", "qwen3-32b"]
    manifests = [read_manifest(tmp_path / "out" / f"02-day-{model}.yaml") for model in ("qwen3-8b", "qwen3-32b")]
    first, second = ({n for p in each.pools for one in p.instances for n in one.nodes} for each in manifests)
    assert not first & second
    assert manifests[0].workload.requests_per_second == 60.0
    night = str(tmp_path / "out" / "01-night-qwen3-8b.yaml")
    assert main(["migrate", night, str(tmp_path / "out" / "02-day-qwen3-8b.yaml"), "--json"]) == 0
    refused(capsys, "exists", *asked)


def test_a_window_that_nothing_serves_is_planned_for_the_nearest(tmp_path, capsys):
    """A TTFT that no layout keeps: the answer says which one it plans for instead."""
    day = "scenarios:\n- {name: calm, rate: 5/s}\n- {name: hard, rate: 5/s, ttft: 5ms}\n"
    calm, hard = answered(capsys, *ASKED, "--scenarios", written(tmp_path, day))["scenarios"]
    assert calm["relaxed"] is None
    assert hard["relaxed"].startswith("TTFT ")
    assert "instead of 5 ms" in hard["relaxed"]
    assert hard["chips_alone"] >= 1


def test_a_window_that_no_limit_helps_is_named(tmp_path, capsys):
    """A rate beyond the devices under any limits: the policy does not count it among what it saves."""
    day = "scenarios:\n- {name: calm, rate: 5/s, lasts: 8h}\n- {name: crowd, rate: 100000/s, lasts: 16h}\n"
    told = " ".join(printed(capsys, *ASKED, "--scenarios", written(tmp_path, day), code=3).split())
    assert "without crowd, which no layout serves" in told
    assert "fewer than one plan for the peak" not in told
