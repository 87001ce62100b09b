"""`plan simulate`."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from planner.manifest.document import dump_manifest
from planner.manifest.layout import Degrees, Instance
from podplan.simulation import relative_error
from tests.manifests import build, pool
from tests.shell import answered, printed, refused

KEYS = {
    "requests", "completed", "failed", "running", "duration_seconds", "requests_per_second",
    "output_tokens_per_second", "ttft_seconds", "tpot_seconds", "e2e_seconds", "slo_attainment",
    "goodput_requests_per_second", "utilisation", "predicted", "relative_error", "wall_seconds",
}  # fmt: skip


def trace_of(tmp_path: Path, rows: list[str]) -> Path:
    """Write rows of time, prompt and answer as a trace in Azure's format."""
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return trace


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command and return its JSON."""
    data = answered(capsys, "simulate", *arguments)
    assert set(data) >= KEYS
    assert data["requests"] == data["completed"] + data["failed"] + data["running"]
    return data


def test_one_request_at_a_time_is_predicted_exactly(planned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No drafts, fixed lengths: every error is rounding."""
    data = simulated(capsys, planned, "--concurrency", "1", "--requests", "3")
    assert data["requests"] == 3
    for key in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        assert data["relative_error"][key]["mean"] == pytest.approx(0.0, abs=1e-9)


def test_a_stream_is_measured_where_it_is_stationary(planned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Another rate than the planned one: both queues anew, and as many requests measured as were asked for."""
    data = simulated(capsys, planned, "--rate", "100/s", "--requests", "1500")
    assert data["requests"] == 1500
    assert data["predicted"]["requests_per_second"] == 100.0
    assert "queues of this traffic" in data["predicted_from"]
    assert data["relative_error"]["tpot_seconds"]["mean"] == pytest.approx(0.0, abs=0.05)


def test_a_rate_beyond_the_pools_has_no_prediction(planned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Null with the reason, in the same keys."""
    data = simulated(capsys, planned, "--rate", "5000/s", "--requests", "300", "--warmup", "0s")
    assert data["predicted"]["ttft_seconds"] is None
    assert data["relative_error"]["ttft_seconds"] is None
    assert "cannot keep up" in data["predicted_from"]


def test_a_trace_is_replayed_whole(planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice as fast on demand."""
    rows = [f"2024-01-01 00:00:{second:02d},500,{20 + second}" for second in range(50)]
    trace = trace_of(tmp_path, rows)
    data = simulated(capsys, planned, "--trace", str(trace), "--scale-rate", "2")
    assert data["completed"] == 50
    assert 24 < data["duration_seconds"] < 30


def test_requests_without_positions_are_left_out(planned, tmp_path, capsys, monkeypatch):
    """As engines refuse them, with a note; read in parts, too; a trace of none but such is refused."""
    rows = [f"2024-01-01 00:00:{second:02d}.5,{999_999 if second == 20 else 500},20" for second in range(50)]
    trace = trace_of(tmp_path, rows)
    data = simulated(capsys, planned, "--trace", str(trace))
    assert data["requests"] == 49 and "1 of 50 requests" in " ".join(data["notes"])
    monkeypatch.setattr("podplan.offered.LONG_TRACE_BYTES", 10)
    parts = simulated(capsys, planned, "--trace", str(trace))
    assert parts["requests"] == 49
    assert all(parts[name] == data[name] for name in ("ttft_seconds", "e2e_seconds", "completed"))
    refused(capsys, "too long for it", "simulate", planned, "--trace", str(trace), "--repeat", "2")
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:01.5,999999,20")
    refused(capsys, "no request of", "simulate", planned, "--trace", str(trace))


def test_the_table_tells_what_was_cut(planned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured, predicted and the window."""
    shown = printed(capsys, "simulate", planned, "--rate", "20/s", "--requests", "200")
    assert "TTFT p99" in shown and "Measured: 200 of" in shown


def test_relative_errors_follow_the_shape_of_the_prediction() -> None:
    """Predicted over measured, less one; null where there is nothing to divide by."""
    assert relative_error({"mean": 2.0, "p50": None}, {"mean": 1.0, "p50": 1.0}) == {"mean": 1.0, "p50": None}
    assert relative_error(1.0, 0.0) is None


def test_files_tell_the_run(planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row per request, samples over time and a timeline in Chrome's format; nothing is replaced without --force."""
    names = [tmp_path / name for name in ("requests.csv", "series.csv", "timeline.json")]
    flags = ["--requests-csv", str(names[0]), "--timeseries", str(names[1]), "--timeline", str(names[2])]
    run = ["--rate", "100/s", "--requests", "200", "--warmup", "0s", "--timeseries-step", "100ms"]
    data = simulated(capsys, planned, *run, *flags)
    rows = names[0].read_text().splitlines()
    assert len(rows) == 1 + 200 and rows[0].startswith("request,class,outcome,arrival_seconds")
    series = [line.split(",") for line in names[1].read_text().splitlines()]
    assert float(series[1][0]) == pytest.approx(0.1) and len(series) > 5
    spans = [event for event in json.loads(names[2].read_text()) if event["ph"] == "X"]
    assert {event["name"] for event in spans} == {"prefill", "decode"}
    busy = sum(event["dur"] for event in spans if event["name"] == "prefill") * 1e-6
    assert busy > 0 and data["utilisation"]["prefill"] > 0
    refused(capsys, "give --force", "simulate", planned, *run, *flags)
    assert not list(tmp_path.glob(".*tmp"))


def test_policies_are_compared_on_the_same_requests(planned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of each, and differences to the first with intervals."""
    run = ["simulate", planned, "--rate", "300/s", "--requests", "600", "--policies", "round_robin,least_load"]
    data = answered(capsys, *run)
    assert set(data["policies"]) == {"round_robin", "least_load"} and set(data["policies"]["least_load"]) >= KEYS
    spread = data["differences"]["least_load"]["ttft_seconds"]
    means = [data["policies"][name]["ttft_seconds"]["mean"] for name in ("least_load", "round_robin")]
    assert spread["mean"] == pytest.approx(means[0] - means[1], abs=max(spread["half_width"], 1e-4))
    assert main(run) == 0
    shown = capsys.readouterr().out
    assert "least_load less round_robin (95 %)" in shown and "offline" not in shown
    assert "offline output tokens" in printed(capsys, *run[:-1], "slo,priority", "--offline", "50")
    alone = answered(capsys, *run[:-1], "least_load")
    assert alone["ttft_seconds"]["mean"] == pytest.approx(means[0], rel=0.03) and alone["predicted"]


def test_faults_bursts_offline_work_and_loads_are_played(planned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All at once; the books balance and each is told."""
    name = "prefill-0"
    data = simulated(
        capsys, planned, "--rate", "100/s", "--requests", "300", "--bursts", "4x,0.2,1s", "--offline", "20",
        "--fail", f"link {name} at 1s for 500ms", "--expert-loads", "zipf:0.5",
    )  # fmt: skip
    assert data["faults"] == {"link": 1} and data["completed"] == 300
    assert data["offline"]["completed"] == 20
    assert data["expert_imbalance"]["decode"] > 1.1
    assert data["queueing_seconds"]["mean"] >= 0 and data["confidence"]["ttft"] > 0


def test_what_is_measured_ends_with_the_last_online_request(planned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At 2 a second ten offline requests end after 4.5 s, long after the online ones; all are served all the same."""
    flags = (planned, "--rate", "100/s", "--requests", "100", "--warmup", "0s", "--offline")
    paced, at_once = (simulated(capsys, *flags, text) for text in ("10,64+8@2/s", "10,64+8"))
    assert paced["duration_seconds"] < 4.5 and paced["requests_per_second"] > 100 / 4.5
    for data in (paced, at_once):
        assert data["completed"] == 100 and data["offline"]["completed"] == 10
    rates = [data["offline"]["output_tokens_per_second"] * data["duration_seconds"] for data in (paced, at_once)]
    assert rates[1] == pytest.approx(80) and rates[0] < 64 and rates[0] % 8 == pytest.approx(0, abs=1e-6)
    assert all(0 < share <= 1 for share in paced["utilisation"].values())
    refused(capsys, "--offline", "simulate", *flags, "10@often")


def test_offline_requests_are_not_put_behind_others_in_aggregated_instances(tmp_path, capsys):
    """No rule of theirs knows them: refused, but where all are served in order."""
    pools = [pool("mixed", Degrees(attention_tp=1, attention_dp=1), [Instance(name="a", nodes=[0])])]
    own = build(pools, {"input_tokens": 256, "output_tokens": 16})
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(own))
    flags = (str(path), "--rate", "20/s", "--requests", "50", "--offline", "10,64+8")
    refused(capsys, "aggregated instances put no request behind others", "simulate", *flags)
    in_order = own.routing.model_copy(update={"offline": "equal"})
    path.write_text(dump_manifest(own.model_copy(update={"routing": in_order})))
    assert simulated(capsys, *flags)["offline"]["completed"] == 10


def test_lengths_without_times_need_a_rate(planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad rows are left out as far as allowed, and told."""
    trace = tmp_path / "lengths.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n" + "100,10\n" * 40 + "x,1\n")
    data = simulated(capsys, planned, "--trace", str(trace), "--rate", "50/s", "--skip-bad-rows", "1", "--repeat", "2")
    assert data["completed"] == 80
    assert any("bad rows are left out" in note for note in data["notes"])
    asked = ["simulate", planned, "--trace", str(trace), "--skip-bad-rows", "1"]
    refused(capsys, "--rate: lengths.csv has lengths only", *asked)


def test_a_series_without_end_is_refused(planned, tmp_path, capsys, monkeypatch):
    """A step that makes too many rows ends the run, and leaves no file."""
    monkeypatch.setattr("runtime.simulate.observe.MOST_ROWS", 100)
    series = tmp_path / "series.csv"
    asked = ["--requests", "20", "--timeseries", str(series), "--timeseries-step", "1us"]
    refused(capsys, "--timeseries-step: makes more than 100 rows", "simulate", planned, *asked)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.yaml"]
