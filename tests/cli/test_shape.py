"""`--shape`: which deployments are searched, from the command line to a simulated manifest."""

import json
from pathlib import Path

import pytest

from cli import main
from cli.exit_codes import ExitCode

SMALL = ["qwen3-8b", "--hw", "h100", "--devices", "1", "--isl", "512", "--osl", "64"]


def test_an_aggregated_plan_is_written_simulated_and_deployed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One device: the plan has a mixed pool, its manifest runs as predicted, and vLLM files come out of it."""
    folder = tmp_path / "plan"
    assert main.main([*SMALL, "--out", str(folder), "--json"]) == ExitCode.DONE
    data = json.loads(capsys.readouterr().out)
    (pool,) = data["best"]["pools"]
    assert pool["role"] == "mixed"
    assert pool["max_batched_tokens"] >= 256 and pool["batch_per_dp_rank"] >= 1
    assert "tokens a step" in (folder / "report.txt").read_text()
    manifest, rate = str(folder / "manifest.yaml"), f"{0.7 * data['best']['requests_per_second']:.3f}/s"
    assert main.main(["simulate", manifest, "--rate", rate, "--requests", "3000", "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["relative_error"]["tpot_seconds"]["mean"] == pytest.approx(0, abs=0.05)
    assert found["relative_error"]["ttft_seconds"]["mean"] == pytest.approx(0, abs=0.1)
    out = tmp_path / "files"
    deploy = ["deploy", manifest, "--engine", "vllm", "--platform", "bare", "--out", str(out)]
    assert main.main(deploy) == ExitCode.DONE
    assert any("--max-num-batched-tokens" in path.read_text() for path in out.rglob("*") if path.is_file())


def test_shapes_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A word that is no shape, and aggregated instances on machines of each role or in MixServe's queue."""
    assert main.main([*SMALL, "--shape", "round"]) == ExitCode.BAD_INPUT
    assert "--shape" in capsys.readouterr().err
    apart = ["qwen3-8b", "--hw", "prefill=h100,decode=h200", "--nodes", "prefill=1,decode=1", "--shape", "aggregated"]
    assert main.main(apart) == ExitCode.BAD_INPUT
    assert "each role has devices of its own" in capsys.readouterr().err
    assert main.main([*SMALL, "--shape", "aggregated", "--queueing", "mixserve"]) == ExitCode.BAD_INPUT
    assert "--queueing mixserve knows" in capsys.readouterr().err
