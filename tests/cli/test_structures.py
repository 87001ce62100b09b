"""Models whose layers differ, from the question to what executes the answer."""

import json
from pathlib import Path

import pytest

from cli.main import main
from tests.shell import answered


@pytest.mark.parametrize(
    ("model", "hardware", "left_out"),
    [
        ("llama-4-scout", "b200", "some layers reach 8192 tokens only"),
        ("qwen3-next-80b-a3b", "h200", "12 of 48 layers attend, the others are recurrent"),
    ],
)
def test_a_plan_is_simulated_and_executed(model, hardware, left_out, tmp_path, capsys):
    """Windows and recurrent state travel in the manifest; what executes says which structure it leaves out."""
    manifest = str(tmp_path / "plan" / "manifest.yaml")
    asked = [model, "--engine", "reference", "--hw", hardware, "--devices", "8", "--shape", "disaggregated"]
    assert main([*asked, "--out", str(tmp_path / "plan")]) == 0
    simulated = answered(capsys, "simulate", manifest, "--requests", "300")
    assert (simulated["failed"], simulated["completed"] > 0) == (0, True)
    assert abs(simulated["relative_error"]["tpot_seconds"]["mean"]) < 0.1
    executed = answered(capsys, "execute", manifest, "--iterations", "2")
    assert executed["equal"]
    assert any(left_out in told for told in executed["left_out"])


def test_experts_in_every_second_layer_are_placed_in_those(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Llama-4-Maverick's expert map names its odd layers, and the exported map has a row for each of its 48."""
    plan, files = tmp_path / "plan", tmp_path / "files"
    asked = ["llama-4-maverick", "--hw", "b200", "--devices", "16", "--weights", "fp8", "--redundant-experts", "0"]
    assert main([*asked, "--shape", "disaggregated", "--out", str(plan), "--json"]) == 0
    assert main(["execute", str(plan / "manifest.yaml"), "--iterations", "1"]) == 0
    capsys.readouterr()
    deploy = ["deploy", str(plan / "manifest.yaml"), "--engine", "sglang", "--platform", "bare", "--out", str(files)]
    assert main(deploy) == 0
    for path in files.glob("**/expert-location-*.json"):
        assert len(json.loads(path.read_text(encoding="utf-8"))["physical_to_logical_map"]) == 48
