"""`--shape`: which deployments are searched, from the command line to a simulated manifest."""

import csv
from pathlib import Path

import pytest

from cli import main
from ground.errors import ExitCode
from tests.shell import answered

SMALL = ["qwen3-8b", "--engine", "reference", "--hw", "h100", "--devices", "1", "--isl", "512", "--osl", "64"]


def test_an_aggregated_plan_is_written_simulated_and_deployed(tmp_path, capsys):
    """One device: the plan has a mixed pool, its manifest runs as predicted, and vLLM files come out of it."""
    folder = tmp_path / "plan"
    data = answered(capsys, *SMALL, "--out", str(folder))
    (pool,) = data["best"]["pools"]
    assert pool["role"] == "mixed"
    assert pool["max_batched_tokens"] >= 256 and pool["batch_per_dp_rank"] >= 1
    assert "tokens a step" in (folder / "report.txt").read_text()
    manifest, rate = str(folder / "manifest.yaml"), f"{0.7 * data['best']['requests_per_second']:.3f}/s"
    found = answered(capsys, "simulate", manifest, "--rate", rate, "--requests", "3000")
    assert found["relative_error"]["tpot_seconds"]["mean"] == pytest.approx(0, abs=0.05)
    assert found["relative_error"]["ttft_seconds"]["mean"] == pytest.approx(0, abs=0.1)
    out = tmp_path / "files"
    deploy = ["deploy", manifest, "--engine", "vllm", "--platform", "bare", "--out", str(out)]
    assert main.main(deploy) == ExitCode.DONE
    assert any("--max-num-batched-tokens" in path.read_text() for path in out.rglob("*") if path.is_file())


def test_aggregated_instances_take_the_better_of_two_pools(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Machines of each role: as good as the better one alone; left out, and said so, where no shape is named."""
    alone, shape, asked = {}, ["--shape", "aggregated"], [*SMALL[:3], "--hw"]
    for name in ("h100", "h200"):
        found = answered(capsys, *asked, name, "--devices", "2", *shape)
        alone[name] = found["best"]["requests_per_second"]
    apart = [*asked, "prefill=h200,decode=h100", "--devices", "prefill=2,decode=2"]
    out = tmp_path / "plan"
    data = answered(capsys, *apart, *shape, "--out", str(out))
    assert data["best"]["requests_per_second"] == pytest.approx(max(alone.values()), rel=0.01)
    assert [pool["hardware"] for pool in data["best"]["pools"]] == ["h200"] and alone["h200"] > alone["h100"]
    assert data["bound"]["gap"] < 1e-6 and data["best"]["devices"] == 2
    assert main.main(["simulate", str(out / "manifest.yaml"), "--requests", "200", "--json"]) == ExitCode.DONE
    assert "--shape aggregated searches either pool" in str(answered(capsys, *apart)["cut"]["mixed"])


def test_rows_of_a_front_name_the_pools_of_their_own_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A runner-up of the other shape has none of the best plan's pools."""
    table = tmp_path / "front.csv"
    asked = [*SMALL[:6], "2", *SMALL[7:], "--pareto", "2", "--csv", str(table)]
    assert main.main(asked) == ExitCode.DONE
    capsys.readouterr()
    with table.open(encoding="utf-8") as file:
        rows = [{key for key in ("prefill", "decode", "mixed") if row.get(key)} for row in csv.DictReader(file)]
    assert {"mixed"} in rows and all(row in ({"mixed"}, {"prefill", "decode"}) for row in rows)
