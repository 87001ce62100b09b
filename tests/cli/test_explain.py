"""`plan explain`: arithmetic and resources where there is a plan, nearest changes where there is none."""

from pathlib import Path

import pytest

from cli.exit_codes import ExitCode
from cli.main import main
from tests.shell import answered

SMALL = [
    "qwen3-30b-a3b", "--engine", "reference", "--hw", "h800", "--devices", "2", "--microbatches", "1", "--shape",
    "disaggregated",
]  # fmt: skip


def test_a_plan_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Terms of both pools and a row for every resource, in JSON with units in the names."""
    data = answered(capsys, "explain", *SMALL)
    assert data["feasible"] is True
    assert [pool["role"] for pool in data["pools"]] == ["prefill", "decode"]
    assert {"compute", "memory bandwidth", "memory size", "chips"} <= {row["resource"] for row in data["resources"]}
    assert data["nearest_changes"] == []


def test_a_refusal_is_explained_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and for each direction a flag that would do or a no."""
    path = tmp_path / "q.yaml"
    path.write_text(
        "model: qwen3-8b\nhw: h800\ndevices: 2\nengine: reference\nshape: disaggregated\ntpot: 1ms\n", encoding="utf-8"
    )
    assert main(["explain", str(path)]) == ExitCode.INFEASIBLE
    shown = capsys.readouterr().out
    assert shown.startswith("No plan (binding limit: tpot)")
    assert "--tpot " in shown
    assert "prompts" in shown
