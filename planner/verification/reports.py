"""Reports of load generators, read as measured runs with times in seconds.

Formats as of 2026: vLLM ``bench serve`` and SGLang ``bench_serving`` (milliseconds in the names), AIPerf and GenAI-Perf
(a unit beside each figure), guidellm (its time_per_output_token counts the first token, so inter-token latency is
read), llm-d's benchmark report (0.1 and 0.2, in YAML, units beside each figure) and InferenceX records (seconds).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ground.archives import unbroken
from ground.errors import BadInput
from ground.files import parse_json, parse_yaml, read_text

_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9, "ms/token": 1e-3, "s/token": 1.0}
MOST_BENCHMARKS = 10_000
Read = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark of a load generator's report; a field that the report lacks is None."""

    where: str
    tool: str
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    requests: float | None = None
    requests_per_second: float | None = None
    """Rate at which requests were sent; where the report lacks it, the rate at which they ended."""
    output_tokens_per_second: float | None = None
    concurrency: float | None = None
    """Requests that were kept open; None where they arrived at a rate."""
    prompt_tokens: float | None = None
    output_tokens: float | None = None

    @property
    def measured(self) -> dict[str, float]:
        """The latencies that the report states."""
        found = {"ttft_seconds": self.ttft_seconds, "tpot_seconds": self.tpot_seconds}
        return {name: value for name, value in found.items() if value}


def read_reports(path: Path) -> list[Report]:
    """Return the benchmarks of a JSON or YAML file, or of JSON lines.

    Raises BadInput for what no known load generator writes.
    """
    text = read_text(path)
    try:
        yaml = path.suffix.lower() in (".yaml", ".yml")
        data: Any = parse_yaml(text, str(path)) if yaml else parse_json(text, str(path))
    except BadInput:
        data = [parse_json(line, f"{path}: no table of runs") for line in text.splitlines() if line.strip()]
    rows = data if isinstance(data, list) else [data]
    found = [report for number, row in enumerate(rows, 1) for report in _read(row, f"{path}, record {number}")]
    if not found or len(found) > MOST_BENCHMARKS:
        raise BadInput(f"{path}: holds {len(found)} benchmarks; give 1 to {MOST_BENCHMARKS}")
    return found


def _read(row: Any, where: str) -> list[Report]:
    for known in _FORMATS if isinstance(row, Mapping) else ():
        if known.keys <= row.keys():
            with unbroken(f"{where}: is a broken report of a load generator"):
                held = row[known.held] if known.held else None
                each = [row] if held is None else held if isinstance(held, list) else []
                places = [where if held is None else f"{where}, benchmark {number + 1}" for number in range(len(each))]
                return [known.report(one, place) for one, place in zip(each, places, strict=True)]
    raise BadInput(
        f"{where}: is no report of vLLM, SGLang, AIPerf, GenAI-Perf, guidellm, llm-d or InferenceX that podplan reads"
    )


def at(row: Any, path: str) -> Any:
    """Return the value at a dotted path; None where there is none."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _figure(value: Any, scale: float = 1.0) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) * scale if known else None


@dataclass(frozen=True, slots=True)
class Format:
    """A tool's report format: identifying keys, the path of each figure, and the key of its benchmarks, if many."""

    tool: str
    keys: set[str]
    figures: dict[str, Read]
    held: str | None = None

    def report(self, row: Mapping[str, Any], where: str) -> Report:
        """Return one benchmark of the report."""
        return Report(where=where, tool=self.tool, **{name: read(row) for name, read in self.figures.items()})


def _at(*paths: str, scale: float = 1.0) -> Read:
    """Read the first figure found at one of the paths."""
    return lambda row: next((found for path in paths if (found := _figure(at(row, path), scale))), None)


def _mean(name: str) -> Read:
    """Read the mean of a figure that is reported with other statistics."""
    return _at(f"{name}.avg", f"{name}.mean")


def _timed(*names: str) -> Read:
    """Read a figure with its unit, in seconds."""

    def read(row: Mapping[str, Any]) -> float | None:
        for name in names:
            value, unit = _mean(name)(row), at(row, f"{name}.unit") or at(row, f"{name}.units")
            scale = _SECONDS.get(str(unit).lower())
            if value and scale:
                return value * scale
        return None

    return read


def _each(total: str, count: str) -> Read:
    """Read the quotient of two figures."""

    def read(row: Mapping[str, Any]) -> float | None:
        whole, many = _figure(row.get(total)), _figure(row.get(count))
        return whole / many if whole and many else None

    return read


def _aiperf_phase(row: Mapping[str, Any]) -> Any:
    """Return the measured phase of the load (schema 1.4 and later), whose type says whether requests come at a rate."""
    phases = at(row, "input_config.phases")
    measured = [phase for phase in phases if at(phase, "kind") == "profiling"] if isinstance(phases, list) else []
    older = at(row, "input_config.loadgen") or at(row, "input_config.perf_analyzer.stimulus")
    return measured[-1] if measured else older


def _aiperf_concurrency(row: Mapping[str, Any]) -> float | None:
    """Return the concurrency; None for a load at a rate, where it is only a bound."""
    phase = _aiperf_phase(row)
    paced = at(phase, "type") not in (None, "concurrency") or _at("rate", "request_rate")(phase)
    return None if paced else _at("concurrency")(phase)


def _aiperf(place: str) -> dict[str, Read]:
    """Where AIPerf has its figures: the rate as asked, else as requests ended."""
    asked, ended = _at("rate", "request_rate"), _mean(place.format("request_throughput"))
    return {
        "ttft_seconds": _timed(place.format("time_to_first_token")),
        "tpot_seconds": _timed(place.format("inter_token_latency")),
        "requests": _mean(place.format("request_count")),
        "requests_per_second": lambda row: asked(_aiperf_phase(row)) or ended(row),
        "output_tokens_per_second": _mean(place.format("output_token_throughput")),
        "concurrency": _aiperf_concurrency,
        "prompt_tokens": _mean(place.format("input_sequence_length")),
        "output_tokens": _mean(place.format("output_sequence_length")),
    }


def _inferencex(place: str) -> dict[str, Read]:
    """Where InferenceX's records have their figures: seconds, and lengths drawn from 0.8 to 1.0 of their labels."""
    return {
        "ttft_seconds": _at(f"{place}mean_ttft", f"{place}median_ttft"),
        "tpot_seconds": _at(f"{place}mean_tpot", f"{place}median_tpot"),
        "concurrency": _at("conc"),
        "prompt_tokens": _at("isl", scale=0.9),
        "output_tokens": _at("osl", scale=0.9),
    }


def _guidellm_concurrency(row: Mapping[str, Any]) -> float | None:
    """Return the mean concurrency; None for a load at a rate, where concurrency is a result."""
    if at(row, "config.strategy.type_") in ("constant", "poisson"):
        return None
    return _at("metrics.request_concurrency.successful.mean")(row)


def _serving_concurrency(row: Mapping[str, Any]) -> float | None:
    """Return the concurrency; with a rate it is only a bound, unless so many requests were open."""
    most, peak = _at("max_concurrency")(row), _at("max_concurrent_requests")(row)
    return None if most and _at("request_rate")(row) and not (peak and peak >= most) else most


_SERVING: dict[str, Read] = {
    "ttft_seconds": _at("mean_ttft_ms", scale=1e-3),
    "tpot_seconds": _at("mean_tpot_ms", scale=1e-3),
    "requests": _at("completed"),
    "requests_per_second": _at("request_rate", "request_throughput"),  # inf, or no number, where all come at once
    "output_tokens_per_second": _at("output_throughput"),
    "concurrency": _serving_concurrency,
    "prompt_tokens": _each("total_input_tokens", "completed"),
    "output_tokens": _each("total_output_tokens", "completed"),
}


def _llm_d(at: str) -> dict[str, Read]:
    """Where llm-d's report has its figures: requests as measured, else as asked (at a rate endlessly many are open)."""
    asked, requests = "scenario.load.standardized", f"{at}.requests"
    return {
        "ttft_seconds": _timed(f"{at}.latency.time_to_first_token"),
        "tpot_seconds": _timed(f"{at}.latency.inter_token_latency", f"{at}.latency.time_per_output_token"),
        "requests": _at(f"{requests}.total"),
        "requests_per_second": _at(
            f"{asked}.rate_qps", f"{at}.throughput.request_rate.mean", f"{at}.throughput.requests_per_sec"
        ),
        "output_tokens_per_second": _at(
            f"{at}.throughput.output_token_rate.mean", f"{at}.throughput.output_tokens_per_sec"
        ),
        "concurrency": _at(f"{asked}.concurrency"),
        "prompt_tokens": _at(f"{requests}.input_length.mean", f"{asked}.input_seq_len.value", f"{asked}.input_seq_len"),
        "output_tokens": _at(
            f"{requests}.output_length.mean", f"{asked}.output_seq_len.value", f"{asked}.output_seq_len"
        ),
    }


_FORMATS = (
    Format(
        "guidellm",
        {"benchmarks", "metadata"},
        {
            "ttft_seconds": _at("metrics.time_to_first_token_ms.successful.mean", scale=1e-3),
            "tpot_seconds": _at("metrics.inter_token_latency_ms.successful.mean", scale=1e-3),
            "requests": _at("metrics.request_totals.successful"),
            "requests_per_second": _at("config.strategy.rate", "metrics.requests_per_second.successful.mean"),
            "output_tokens_per_second": _at("metrics.output_tokens_per_second.successful.mean"),
            "concurrency": _guidellm_concurrency,
            "prompt_tokens": _at("metrics.prompt_token_count.successful.mean"),
            "output_tokens": _at("metrics.output_token_count.successful.mean"),
        },
        held="benchmarks",
    ),
    Format("llm-d", {"scenario", "results"}, _llm_d("results.request_performance.aggregate")),
    Format("llm-d", {"scenario", "metrics"}, _llm_d("metrics")),  # 0.1
    Format("InferenceX", {"metrics", "conc"}, _inferencex("metrics.")),
    Format("InferenceX", {"conc", "tput_per_gpu"}, _inferencex("")),  # as its utils/process_result.py writes it
    Format("sglang.bench_serving", {"mean_ttft_ms", "mean_e2e_latency_ms"}, _SERVING),
    Format("sglang.bench_serving", {"mean_ttft_ms", "server_info"}, _SERVING),
    Format("vllm bench serve", {"mean_ttft_ms"}, _SERVING),
    Format("AIPerf", {"time_to_first_token"}, _aiperf("{}")),  # and GenAI-Perf before it
    Format("AIPerf", {"metadata", "metrics"}, _aiperf("metrics.{}_avg")),  # of several runs of one load
)
"""Tried in turn: what is more telling comes first."""
