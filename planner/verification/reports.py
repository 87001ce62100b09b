"""Reports of load generators, read as measured runs with times in seconds.

``formats.yaml`` has the formats as of 2026: vLLM ``bench serve``, SGLang ``bench_serving``, AIPerf and GenAI-Perf,
guidellm, llm-d's benchmark report and InferenceX records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ground.archives import unbroken
from ground.errors import BadInput
from ground.files import parse_json, parse_yaml, read_text

_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9, "ms/token": 1e-3, "s/token": 1.0}
MOST_BENCHMARKS, MOST_OPEN, MOST = 10_000, 10**6, 10.0**9
"""Benchmarks of a file, requests that one keeps open, and any other figure, which no benchmark passes."""
OPEN = (None, "concurrency", "concurrent", "synchronous", "throughput")
"""Kinds of load that keep requests open; the others send at a rate."""


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
    concurrency: float | None = None  # requests that were kept open; None where they arrived at a rate
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
    yaml = path.suffix.lower() in (".yaml", ".yml")
    try:
        data: Any = parse_yaml(text, str(path)) if yaml else parse_json(text, str(path))
    except BadInput:
        if yaml:
            raise
        data = [parse_json(line, f"{path}: no table of runs") for line in text.splitlines() if line.strip()]
    rows = data if isinstance(data, list) else [data]
    found = [report for number, row in enumerate(rows, 1) for report in _read(row, f"{path}, record {number}")]
    if not found or len(found) > MOST_BENCHMARKS:
        raise BadInput(f"{path}: holds {len(found)} benchmarks; give 1 to {MOST_BENCHMARKS}")
    return found


@cache
def _formats() -> Any:
    """Return the formats in the order in which they are tried."""
    path = Path(__file__).with_name("formats.yaml")
    return parse_yaml(read_text(path), str(path), aliases=True)


def _read(row: Any, where: str) -> list[Report]:
    for known in _formats() if isinstance(row, Mapping) else ():
        if set(known["keys"]) <= row.keys():
            with unbroken(f"{where}: is a broken report of a load generator"):
                held = row[known["each"]] if "each" in known else None
                each = [row] if held is None else held if isinstance(held, list) else []
                places = [where if held is None else f"{where}, benchmark {number + 1}" for number in range(len(each))]
                return [_report(known, one, place) for one, place in zip(each, places, strict=True)]
    raise BadInput(
        f"{where}: is no report of vLLM, SGLang, AIPerf, GenAI-Perf, guidellm, llm-d or InferenceX that podplan reads"
    )


def _report(known: Mapping[str, Any], row: Mapping[str, Any], where: str) -> Report:
    """Return one benchmark of a report."""
    row = {**row, "phase": _aiperf_phase(row)}
    found = {
        name: next((value for path in paths if (value := _figure(row, path, name))), None)
        for name, paths in known["figures"].items()
    }
    if _paced(row, found.get("concurrency")):
        found["concurrency"] = None
    for name, value in found.items():
        if value and value > (MOST_OPEN if name == "concurrency" else MOST):
            raise BadInput(f"{where}: {name} is {value:.3g}, which no benchmark measures")
    return Report(where=where, tool=known["tool"], **found)


def at(row: Any, path: str) -> Any:
    """Return the value at a dotted path; None where there is none."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _figure(row: Any, path: str, name: str = "") -> float | None:
    """Return a figure above 0 at a path, times in seconds; None where there is none."""
    path, sign, other = path.partition(" / " if "/" in path else " * ")
    value, scale = at(row, path), 1e-3 if "_ms" in path else 1.0
    if isinstance(value, Mapping):
        unit = value.get("unit") or value.get("units")
        scale = _SECONDS.get(str(unit).lower(), 0.0) if unit and name.endswith("_seconds") else scale
        value = next((found for key in ("avg", "mean", "value") if (found := value.get(key))), None)
    if sign == " / ":
        scale /= _figure(row, other) or float("inf")
    elif sign:
        scale *= float(other)
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return value * scale or None if known else None


def _aiperf_phase(row: Mapping[str, Any]) -> Any:
    """Return the measured phase of the load (schema 1.4 and later), whose type says whether requests come at a rate."""
    phases = at(row, "input_config.phases")
    measured = [phase for phase in phases if at(phase, "kind") == "profiling"] if isinstance(phases, list) else []
    older = at(row, "input_config.loadgen") or at(row, "input_config.perf_analyzer.stimulus")
    return measured[-1] if measured else older


def _paced(row: Mapping[str, Any], most: float | None) -> bool:
    """Whether requests come at a rate, where concurrency is a result or a bound, unless so many were open."""
    if (at(row, "config.strategy.type_") or at(row, "phase.type")) not in OPEN:
        return True
    rate, peak = (_figure(row, path) for path in ("request_rate", "max_concurrent_requests"))
    rate = rate or _figure(row, "phase.rate") or _figure(row, "phase.request_rate")
    return bool(rate and most and not (peak and peak >= most))
