"""What load generators write, read as one measured run: times in seconds, whatever units the report has.

Formats as of 2026: vLLM ``bench serve`` and SGLang ``bench_serving`` (milliseconds in the names), AIPerf and GenAI-Perf
(a unit beside each figure), guidellm (its time_per_output_token counts the first token, so inter-token latency is
read), llm-d's benchmark report (units beside each figure) and InferenceX records (seconds; inverse interactivity).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ground.archives import unbroken
from ground.errors import BadInput
from ground.files import parse_json, read_text

_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9, "ms/token": 1e-3, "s/token": 1.0}
MOST_BENCHMARKS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark as a load generator reports it; what it does not say is None."""

    where: str
    tool: str
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    requests_per_second: float | None = None
    output_tokens_per_second: float | None = None
    concurrency: float | None = None
    """Requests that were kept open; None where they arrived at a rate."""
    prompt_tokens: float | None = None
    output_tokens: float | None = None

    @property
    def measured(self) -> dict[str, float]:
        """The latencies that it states."""
        found = {"ttft_seconds": self.ttft_seconds, "tpot_seconds": self.tpot_seconds}
        return {name: value for name, value in found.items() if value}


def read_reports(path: Path) -> list[Report]:
    """Return the benchmarks of a JSON file, or of JSON lines.

    Raises BadInput for what no known load generator writes.
    """
    text = read_text(path)
    try:
        data: Any = parse_json(text, str(path))
    except BadInput:
        data = [parse_json(line, f"{path}: no table of runs") for line in text.splitlines() if line.strip()]
    rows = data if isinstance(data, list) else [data]
    found = [report for number, row in enumerate(rows, 1) for report in _read(row, f"{path}, record {number}")]
    if not found or len(found) > MOST_BENCHMARKS:
        raise BadInput(f"{path}: holds {len(found)} benchmarks; give 1 to {MOST_BENCHMARKS}")
    return found


def _read(row: Any, where: str) -> list[Report]:
    if isinstance(row, Mapping):
        for known, read in _READERS:
            if known(row):
                with unbroken(f"{where}: is a broken report of a load generator"):
                    return read(row, where)
    raise BadInput(
        f"{where}: is no report of vLLM, SGLang, AIPerf, GenAI-Perf, guidellm, llm-d or InferenceX that podplan reads"
    )


def at(row: Any, path: str) -> Any:
    """Return what stands at a dotted path; None where nothing does."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _figure(value: Any, scale: float = 1.0) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) * scale if known else None


def _each(total: Any, count: Any) -> float | None:
    whole, many = _figure(total), _figure(count)
    return whole / many if whole and many else None


def _serving(row: Mapping[str, Any], where: str) -> list[Report]:
    """vLLM bench serve and SGLang bench_serving."""
    sglang = "mean_e2e_latency_ms" in row or "server_info" in row
    return [
        Report(
            where=where,
            tool="sglang.bench_serving" if sglang else "vllm bench serve",
            ttft_seconds=_figure(row.get("mean_ttft_ms"), 1e-3),
            tpot_seconds=_figure(row.get("mean_tpot_ms"), 1e-3),
            requests_per_second=_figure(row.get("request_throughput")),
            output_tokens_per_second=_figure(row.get("output_throughput")),
            concurrency=_figure(row.get("max_concurrency")),
            prompt_tokens=_each(row.get("total_input_tokens"), row.get("completed")),
            output_tokens=_each(row.get("total_output_tokens"), row.get("completed")),
        )
    ]


def _timed(row: Mapping[str, Any], name: str) -> float | None:
    """A figure with its unit beside it, in seconds."""
    unit = at(row, f"{name}.unit") or at(row, f"{name}.units")
    value = next((found for key in ("avg", "mean") if (found := _figure(at(row, f"{name}.{key}")))), None)
    scale = _SECONDS.get(str(unit).lower())
    return value * scale if value and scale else None


def _plain(row: Mapping[str, Any], name: str) -> float | None:
    return next((found for key in ("avg", "mean") if (found := _figure(at(row, f"{name}.{key}")))), None)


def _aiperf(row: Mapping[str, Any], where: str) -> list[Report]:
    """AIPerf, and GenAI-Perf before it."""
    concurrency = at(row, "input_config.loadgen.concurrency") or at(
        row, "input_config.perf_analyzer.stimulus.concurrency"
    )
    phases = at(row, "input_config.phases")  # since 1.4 of its schema; other types send at a rate
    for phase in phases if isinstance(phases, list) else ():
        if at(phase, "kind") == "profiling" and at(phase, "type") == "concurrency":
            concurrency = at(phase, "concurrency")
    return [
        Report(
            where=where,
            tool="AIPerf",
            ttft_seconds=_timed(row, "time_to_first_token"),
            tpot_seconds=_timed(row, "inter_token_latency"),
            requests_per_second=_plain(row, "request_throughput"),
            output_tokens_per_second=_plain(row, "output_token_throughput"),
            concurrency=_figure(concurrency),
            prompt_tokens=_plain(row, "input_sequence_length"),
            output_tokens=_plain(row, "output_sequence_length"),
        )
    ]


def _guidellm(row: Mapping[str, Any], where: str) -> list[Report]:
    """guidellm, a report per benchmark."""
    found = []
    for number, each in enumerate(row["benchmarks"] if isinstance(row["benchmarks"], list) else [], 1):
        value = {
            name: _figure(at(each, f"metrics.{name}.successful.mean"))
            for name in (
                "time_to_first_token_ms",
                "inter_token_latency_ms",
                "requests_per_second",
                "output_tokens_per_second",
                "request_concurrency",
                "prompt_token_count",
                "output_token_count",
            )
        }
        ttft, tpot = value["time_to_first_token_ms"], value["inter_token_latency_ms"]
        found.append(
            Report(
                where=f"{where}, benchmark {number}",
                tool="guidellm",
                ttft_seconds=ttft and ttft * _SECONDS["ms"],
                tpot_seconds=tpot and tpot * _SECONDS["ms"],
                requests_per_second=value["requests_per_second"],
                output_tokens_per_second=value["output_tokens_per_second"],
                concurrency=value["request_concurrency"],
                prompt_tokens=value["prompt_token_count"],
                output_tokens=value["output_token_count"],
            )
        )
    return found


def _llm_d(row: Mapping[str, Any], where: str) -> list[Report]:
    """llm-d's benchmark report."""
    performance = at(row, "results.request_performance.aggregate") or {}
    latency, load = performance.get("latency") or {}, at(row, "scenario.load.standardized") or {}
    return [
        Report(
            where=where,
            tool="llm-d",
            ttft_seconds=_timed(latency, "time_to_first_token"),
            tpot_seconds=_timed(latency, "inter_token_latency") or _timed(latency, "time_per_output_token"),
            requests_per_second=_plain(performance, "throughput.request_rate"),
            output_tokens_per_second=_plain(performance, "throughput.output_token_rate"),
            concurrency=_figure(load.get("concurrency")),
            prompt_tokens=_figure(at(load, "input_seq_len.value") or load.get("input_seq_len")),
            output_tokens=_figure(at(load, "output_seq_len.value") or load.get("output_seq_len")),
        )
    ]


def _inferencex(row: Mapping[str, Any], where: str) -> list[Report]:
    """InferenceX records: seconds, and lengths drawn from 0.8 to 1.0 of their labels."""
    return [
        Report(
            where=where,
            tool="InferenceX",
            ttft_seconds=_figure(at(row, "metrics.mean_ttft") or at(row, "metrics.median_ttft")),
            tpot_seconds=_figure(at(row, "metrics.mean_tpot") or at(row, "metrics.median_tpot")),
            concurrency=_figure(row.get("conc")),
            prompt_tokens=_figure(row.get("isl"), 0.9),
            output_tokens=_figure(row.get("osl"), 0.9),
        )
    ]


_READERS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any], str], list[Report]]], ...] = (
    (lambda row: "benchmarks" in row and "metadata" in row, _guidellm),
    (lambda row: "scenario" in row and "results" in row, _llm_d),
    (lambda row: "metrics" in row and "conc" in row, _inferencex),
    (lambda row: "mean_ttft_ms" in row, _serving),
    (lambda row: "time_to_first_token" in row, _aiperf),
)
