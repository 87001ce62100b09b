"""Reports of load generators, in their own units and traps."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ground.errors import BadInput
from planner.verification.reports import read_reports

VLLM = {
    "mean_ttft_ms": 120.0, "mean_tpot_ms": 25.0, "request_throughput": 4.0, "output_throughput": 800.0,
    "max_concurrency": 32, "total_input_tokens": 100_000, "total_output_tokens": 20_000, "completed": 100,
}  # fmt: skip
AIPERF = {
    "time_to_first_token": {"unit": "ms", "avg": 120.0},
    "inter_token_latency": {"unit": "ms", "avg": 25.0},
    "request_throughput": {"unit": "requests/sec", "avg": 4.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 800.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0},
    "request_count": {"unit": "requests", "avg": 100.0},
    "input_config": {"loadgen": {"concurrency": 32}},
}
METRICS = {
    "time_to_first_token_ms": 120.0, "inter_token_latency_ms": 25.0, "time_per_output_token_ms": 99.0,
    "requests_per_second": 4.0, "output_tokens_per_second": 800.0, "request_concurrency": 32,
    "prompt_token_count": 1000, "output_token_count": 200,
}  # fmt: skip
GUIDELLM = {
    "metadata": {"version": 2},
    "benchmarks": [
        {
            "metrics": {name: {"successful": {"mean": value}} for name, value in METRICS.items()}
            | {"request_totals": {"successful": 100, "errored": 0, "incomplete": 2, "total": 102}}
        }
    ],
}
LLM_D = {
    "scenario": {
        "load": {"standardized": {"concurrency": 32, "input_seq_len": {"value": 1000}, "output_seq_len": 200}}
    },
    "results": {
        "request_performance": {
            "aggregate": {
                "latency": {
                    "time_to_first_token": {"units": "s", "mean": 0.12},
                    "inter_token_latency": {"units": "ms/token", "mean": 25.0},
                },
                "throughput": {"request_rate": {"mean": 4.0}, "output_token_rate": {"mean": 800.0}},
                "requests": {"total": 100},
            }
        }
    },
}
LLM_D_FIRST = {  # version 0.1: other names, and milliseconds if it says so
    "scenario": {"load": {"name": "inference-perf"}},
    "metrics": {
        "requests": {"input_length": {"mean": 1000.0}, "output_length": {"mean": 200.0}},
        "latency": {
            "time_to_first_token": {"units": "ms", "mean": 120.0},
            "inter_token_latency": {"units": "s/token", "mean": 0.025},
        },
        "throughput": {"requests_per_sec": 4.0, "output_tokens_per_sec": 800.0},
    },
}


@pytest.mark.parametrize("report", [VLLM, AIPERF, GUIDELLM, LLM_D], ids=["vllm", "aiperf", "guidellm", "llm-d"])
def test_the_same_run_reads_the_same_from_every_tool(report: dict[str, Any], tmp_path: Path) -> None:
    """Milliseconds, seconds, and guidellm's time per output token, which counts the first one."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps(report), encoding="utf-8")
    (found,) = read_reports(path)
    assert found.ttft_seconds == pytest.approx(0.12)
    assert found.tpot_seconds == pytest.approx(0.025)
    assert (found.concurrency, found.prompt_tokens, found.output_tokens) == (32, 1000, 200)
    assert (found.requests, found.requests_per_second) == (100, 4.0)


@pytest.mark.parametrize("tool", [{}, {"server_info": None}], ids=["vllm", "sglang"])
@pytest.mark.parametrize(
    ("asked", "concurrency", "rate"),
    [
        ({"request_rate": 5.0, "max_concurrent_requests": 30}, None, 5.0),
        ({"request_rate": 5.0, "max_concurrent_requests": 32}, 32.0, 5.0),
        ({"request_rate": "inf", "max_concurrent_requests": 32}, 32.0, 4.0),
        ({"request_rate": float("inf")}, 32.0, 4.0),
    ],
)
def test_a_bound_beside_a_rate_closes_the_loop_where_it_is_reached(tool, asked, concurrency, rate, tmp_path):
    """Requests that end in a second are fewer than come, so that the rate that was asked for is played."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps(VLLM | tool | asked), encoding="utf-8")
    (found,) = read_reports(path)
    assert (found.concurrency, found.requests_per_second) == (concurrency, rate)


def test_an_inferencex_record_is_in_seconds_and_its_lengths_are_labels(tmp_path: Path) -> None:
    """Lengths are drawn from 0.8 to 1.0 of the label."""
    figures = {"median_ttft": 0.5, "mean_tpot": 0.02}
    record = {"conc": 64, "isl": 1000, "osl": 1000, "metrics": figures}
    flat = {"conc": 64, "isl": 1000, "osl": 1000, "hw": "h200", "tput_per_gpu": 800.0} | figures
    path = tmp_path / "result.jsonl"
    path.write_text(json.dumps(record) + "\n" + json.dumps(flat) + "\n", encoding="utf-8")
    found = read_reports(path)
    assert [(each.prompt_tokens, each.ttft_seconds, each.tpot_seconds) for each in found] == [(900.0, 0.5, 0.02)] * 2


def test_aiperf_s_summary_of_several_runs_is_read(tmp_path: Path) -> None:
    """profile_export_aiperf_aggregate.json of 0.13: a mean over runs of each run's average, with its unit."""
    names = ("time_to_first_token", "inter_token_latency", "input_sequence_length", "output_sequence_length")
    figures = {
        f"{name}_avg": {"mean": value, "unit": "ms"}
        for name, value in zip(names, (120.0, 25.0, 1000, 200), strict=True)
    }
    row = {"metadata": {"aggregation_type": "confidence"}, "metrics": figures}
    path = tmp_path / "profile_export_aiperf_aggregate.json"
    path.write_text(json.dumps(row), encoding="utf-8")
    (found,) = read_reports(path)
    assert (found.ttft_seconds, found.tpot_seconds) == pytest.approx((0.12, 0.025))
    assert (found.prompt_tokens, found.output_tokens, found.concurrency) == (1000.0, 200.0, None)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "3", '{"a": 1}', '{"benchmarks": 3, "metadata": {}}', "[" * 100_000]
    + [
        json.dumps(VLLM | odd)
        for odd in ({"total_input_tokens": 1e308}, {"completed": 1e-308}, {"max_concurrency": 1e7})
    ],
)
def test_what_no_tool_writes_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    """Naming the file."""
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=r"odd\.json"):
        read_reports(path)


def test_aiperf_says_its_concurrency_by_phase(tmp_path: Path) -> None:
    """Schema 1.4, of AIPerf 0.13: requests kept open in a phase of that type, none where it sends at a rate."""
    for kind, rate, wanted in (("concurrency", None, (4.0, 7.95)), ("poisson", 9.0, (None, 9.0))):
        phases = [{"kind": "profiling", "type": kind, "requests": 32, "concurrency": 4, "rate": rate}]
        row = {
            "schema_version": "1.4",
            "input_config": {"phases": phases},
            "time_to_first_token": {"unit": "ms", "avg": 76.5},
            "inter_token_latency": {"unit": "ms", "avg": 17.9},
            "request_throughput": {"unit": "requests/sec", "avg": 7.95},
        }
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps(row), encoding="utf-8")
        (report,) = read_reports(path)
        assert (report.concurrency, report.requests_per_second) == wanted


def test_llm_d_writes_yaml_and_endless_concurrency_at_a_rate(tmp_path: Path) -> None:
    """Both versions; lengths as measured go before those that were asked for."""
    performance = LLM_D["results"]["request_performance"]["aggregate"]  # type: ignore[index]
    aggregate = performance | {"requests": {"input_length": {"mean": 990.0}, "output_length": {"mean": 201.0}}}
    load = {"standardized": {"concurrency": float("inf"), "input_seq_len": {"value": 1000}}}
    report = {"scenario": {"load": load}, "results": {"request_performance": {"aggregate": aggregate}}}
    for row, lengths in ((report, (990.0, 201.0)), (LLM_D_FIRST, (1000.0, 200.0))):
        path = tmp_path / "benchmark_report.yaml"
        path.write_text(yaml.safe_dump(row), encoding="utf-8")
        (found,) = read_reports(path)
        assert (found.tool, found.concurrency) == ("llm-d", None)
        assert (found.ttft_seconds, found.tpot_seconds) == pytest.approx((0.12, 0.025))
        assert (found.requests_per_second, found.output_tokens_per_second) == (4.0, 800.0)
        assert (found.prompt_tokens, found.output_tokens) == lengths


def test_guidellm_keeps_requests_open_only_where_it_says_so(tmp_path: Path) -> None:
    """At a rate the number that was open is a result."""
    for strategy, wanted in (("concurrent", 32.0), ("constant", None), ("poisson", None)):
        held = [each | {"config": {"strategy": {"type_": strategy}}} for each in GUIDELLM["benchmarks"]]  # type: ignore
        path = tmp_path / "benchmarks.json"
        path.write_text(json.dumps({"metadata": {"version": 2}, "benchmarks": held}), encoding="utf-8")
        (found,) = read_reports(path)
        assert found.concurrency == wanted


def test_broken_yaml_is_told_as_such(tmp_path: Path) -> None:
    """Not as JSON that it is not."""
    path = tmp_path / "odd.yaml"
    path.write_text("a: 1\na: 2\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"^(?!.*JSON).*odd\.yaml"):
        read_reports(path)
