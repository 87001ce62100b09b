"""`plan verify`: rows skipped with a reason, exit codes, and what five runs teach."""

import json
from pathlib import Path

import pytest

from cli.main import main
from planner.manifest.document import dump_manifest
from podplan.verification import verify
from tests.manifests import manifest

HEADER = "id,model,hardware,engine,weights,strategy,isl,osl,concurrency,ttft_seconds,tpot_seconds\n"
ENGINE_RUNS = Path(__file__).parents[2].parent / "shared" / "data" / "published" / "engine_runs.csv"


def _table(path: Path, *rows: str) -> Path:
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def _verified(capsys, *arguments):
    """Return what the command prints, whether values lie in their intervals or not."""
    assert main(["verify", *map(str, arguments), "--json"]) in (0, 3)
    return json.loads(capsys.readouterr().out)


def test_rows_are_compared_or_skipped_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One good row, one of an unknown model, one without a concurrency: nothing is dropped silently."""
    path = _table(
        tmp_path / "runs.csv",
        "good,qwen3-8b,h100,vllm,bf16,TP=1,1024,128,8,,0.009",
        "odd,no-such-model,h100,vllm,bf16,TP=1,1024,128,8,,0.009",
        "none,qwen3-8b,h100,vllm,bf16,TP=1,1024,128,,,0.009",
    )
    data = _verified(capsys, path)
    assert [row["id"] for row in data["rows"]] == ["good", "odd", "none"]
    assert (data["summary"]["count"], data["summary"]["skipped"]) == (1, 2)
    assert "no-such-model" in data["rows"][1]["reason"]
    assert "concurrency" in data["rows"][2]["reason"]


def test_exit_code_3_tells_a_value_outside_its_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step a hundred times as long as predicted."""
    path = _table(tmp_path / "runs.csv", "slow,qwen3-8b,h100,vllm,bf16,TP=1,1024,128,8,,1.0")
    assert main(["verify", str(path)]) == 3
    assert "times the prediction" in " ".join(capsys.readouterr().out.split())


def test_runs_of_ones_own_correct_later_predictions(tmp_path: Path) -> None:
    """Five runs 1.5 times as slow as predicted: the sixth is predicted nearly right, its interval is narrower."""
    bare = verify(_table(tmp_path / "one.csv", "a,qwen3-8b,h100,vllm,bf16,TP=1,1024,128,8,,0.01"))
    step = bare.compared[0].predicted["tpot_seconds"]
    rows = [f"{n},qwen3-8b,h100,vllm,bf16,TP=1,1024,{100 + n},8,,{1.5 * step}" for n in range(5)]
    calibration = tmp_path / "ours.yaml"
    code = main(["verify", str(_table(tmp_path / "five.csv", *rows)), "--calibrate", str(calibration)])
    assert code in (0, 3) and calibration.exists()
    after = verify(tmp_path / "one.csv", calibration_file=calibration)
    assert after.compared[0].predicted["tpot_seconds"] == pytest.approx(1.5 * step, rel=0.1)
    widths = [high / low for each in (bare, after) for low, high in (each.compared[0].interval["tpot_seconds"],)]
    assert widths[1] < widths[0]


@pytest.mark.skipif(not ENGINE_RUNS.exists(), reason="the released runs are not here")
def test_released_runs_are_predicted_within_what_the_documentation_says() -> None:
    """837 runs under three engines: mean errors, and intervals that hold what they promise."""
    found = verify(ENGINE_RUNS).summary
    assert found.count == 837
    assert found.mape["tpot_seconds"] < 0.11
    assert found.mape["output_tokens_per_second_per_chip"] < 0.14
    assert found.coverage["tpot_seconds"] > 0.75


def test_a_report_is_set_beside_its_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a concurrency or a rate; a table of which no row can be predicted is told as that."""
    plan = tmp_path / "manifest.yaml"
    plan.write_text(dump_manifest(manifest()), encoding="utf-8")
    for load in ({"max_concurrency": 4}, {"request_throughput": 2.0}):
        report = {"mean_ttft_ms": 30.0, "mean_tpot_ms": 9.0, "completed": 100, "total_input_tokens": 51200, **load}
        (tmp_path / "report.json").write_text(json.dumps(report), encoding="utf-8")
        assert _verified(capsys, tmp_path / "report.json", "--manifest", plan)["summary"]["count"] == 1
    none = _table(tmp_path / "none.csv", "a,none,h100,vllm,bf16,TP=1,1,1,8,,1")
    assert _verified(capsys, none)["summary"]["count"] == 0


@pytest.mark.parametrize("load", [{"max_concurrency": 4}, {"request_throughput": 2.0}])
def test_requests_that_no_server_takes_have_no_prediction(load, tmp_path, capsys):
    """A report whose answers are longer than the model's context is told as one that cannot be predicted."""
    plan, path = tmp_path / "manifest.yaml", tmp_path / "report.json"
    plan.write_text(dump_manifest(manifest()), encoding="utf-8")
    path.write_text(json.dumps({"mean_ttft_ms": 30.0, "completed": 1, "total_output_tokens": 1e9, **load}))
    assert "no request of 512 + 1e+09 tokens" in str(_verified(capsys, path, "--manifest", plan))
