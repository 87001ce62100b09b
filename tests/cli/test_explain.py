"""`plan explain`: arithmetic and resources where there is a plan, nearest changes where there is none."""

from pathlib import Path

import pytest

from cli.main import main
from ground.errors import ExitCode
from tests.shell import answered, printed

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
    assert 0.5 <= data["best"]["confidence"] <= 1 and data["best"]["requests_per_second_with_confidence"]["0.9"] > 0


def test_a_refusal_is_explained_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and for each direction a flag that would do or a no."""
    path = tmp_path / "q.yaml"
    path.write_text(
        "model: qwen3-8b\nhw: h800\ndevices: 2\nengine: reference\nshape: disaggregated\ntpot: 1ms\n", encoding="utf-8"
    )
    shown = printed(capsys, "explain", str(path), code=ExitCode.INFEASIBLE)
    assert shown.startswith("No plan (binding limit: tpot)")
    assert "--tpot " in shown
    assert "prompts" in shown


def test_what_is_left_after_a_loss_is_not_what_all_instances_carry(capsys: pytest.CaptureFixture[str]) -> None:
    """The two rates are named, and so are the confidence and what the rate bounds."""
    line = ["qwen3-8b", "--hw", "h100", "--isl", "4k", "--engine", "vllm", "--shape", "disaggregated", "--devices"]
    shown = " ".join(printed(capsys, "explain", *line, "4", "--rate", "3/s", "--survive", "instance").split())
    assert "spare instances included. " in shown and "After losing any one instance its pools carry " in shown
    assert "Limits the asked rate; fewer chips miss it" in shown
    assert "Sure limits hold, also after losing any one instance, with confidence" in shown
    shown = " ".join(printed(capsys, "explain", *line, "3").split())
    assert "the devices at hand; " in shown and "% less." in shown and "too few" not in shown


def test_the_rest_of_a_node_is_the_nearest_size(capsys: pytest.CaptureFixture[str]) -> None:
    """Of devices that end within a node, whole nodes are told from the one that they end in."""
    line = ["qwen3-8b", "--hw", "h100", "--engine", "vllm", "--shape", "disaggregated", "--rate", "26/s"]
    assert main([*line, "--devices", "9"]) == ExitCode.INFEASIBLE
    assert "--devices 16" in capsys.readouterr().err
    assert main([*line, "--devices", "16"]) == ExitCode.DONE


@pytest.mark.parametrize(("flag", "rates"), [("--growth", "10/s..400/s:5"), ("--rate-profile", "0:00=10/s,8:00=400/s")])
def test_a_refusal_names_the_flag_that_gave_the_rate(flag: str, rates: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--rate` cannot stand beside it."""
    line = ["qwen3-8b", "--hw", "h100", "--engine", "vllm", "--shape", "disaggregated", "--devices", "2"]
    assert main([*line, flag, rates]) == ExitCode.INFEASIBLE
    told = capsys.readouterr().err
    assert f"{flag} with a peak of " in told and "--rate " not in told
