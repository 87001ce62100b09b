"""`plan calibrate` and `plan measure` as a user runs them."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from cli.main import main
from hardware.fits import CALIBRATION
from tests.shell import answered, printed, refused

MATMUL = str(CALIBRATION / "matmul.csv")
Capture = pytest.CaptureFixture[str]


def test_measurements_become_an_overlay_that_predict_takes(tmp_path: Path, capsys: Capture) -> None:
    """The written entry is a machine like any other; without --force it is not written twice."""
    out = str(tmp_path / "mine.yaml")
    answer = answered(capsys, "calibrate", MATMUL, "--hw", "h800", "--out", out)
    assert {fit["family"] for fit in answer["fits"]} == {"gemm fp8", "grouped_gemm fp8", "gemm bf16"}
    assert all(0 <= fit["median_error_after"] <= 0.08 for fit in answer["fits"])
    asked = ["deepseek-r1", "--hw", out, "--phase", "decode", "--strategy", "DP=32, EP=32", "--batch", "8", "--json"]
    assert json.loads(printed(capsys, "predict", *asked))["hardware"] == "h800-calibrated"
    refused(capsys, "--force", "calibrate", MATMUL, "--hw", "h800", "--out", out)


def test_the_report_names_every_family_and_its_error(capsys: Capture) -> None:
    """Without --out the report says that nothing was written."""
    shown = printed(capsys, "calibrate", MATMUL, "--hw", "cm384")
    assert "gemm int8" in shown and "Nothing was written" in shown


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_measure_says_what_it_needs(tmp_path: Path, capsys: Capture) -> None:
    """Without PyTorch: one sentence with the command that installs it, and no file."""
    refused(capsys, "podplan[measure]", "measure", "--out", str(tmp_path / "mine.csv"))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_measured_times_can_be_calibrated(tmp_path: Path) -> None:
    """Tiny shapes on the processor: the CSV is one that calibrate reads."""
    out = str(tmp_path / "mine.csv")
    assert main(["measure", "--device", "cpu", "--quick", "--out", out]) == 0
    assert main(["calibrate", out, "--hw", "h100"]) == 0
