"""`plan simulate`: a manifest at work in virtual time, measured beside predicted."""

import sys
import time
from collections.abc import Callable
from typing import Any

from cli.options import JSON, takes
from cli.output import Outputs, Screen, print_json, short_duration
from ground.units import HOUR_SECONDS, format_count, format_rate
from planner.manifest.document import read_manifest
from podplan.options import SimulateFlags
from podplan.simulation import PoliciesResult, SimulateResult, differences, simulated, simulated_policies
from runtime.simulate.metrics import SimulationResult

SHOWN_EVERY_SECONDS = 0.5
TIMES = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p90", "p99")
_percent = "{:.1%}".format
COMPARED = (("ttft", "mean"), ("ttft", "p99"), ("tpot", "mean"), ("tpot", "p99"), ("e2e", "mean"))


@takes(SimulateFlags)
def command(flags: SimulateFlags, json: bool = JSON) -> None:
    """Run a manifest in virtual time and compare what it does with what was predicted.

    \b
    Examples:
      plan simulate out/manifest.yaml
      plan simulate out/manifest.yaml --rate 50/s --requests 10k
      plan simulate out/manifest.yaml --trace conversation.jsonl --scale-rate 2
      plan simulate out/manifest.yaml --policies round_robin,least_load,collaborative
      plan simulate out/manifest.yaml --fail 'device decode-0/5 at 30s for 1min' --timeline run.json

    By default a stream at the planned rate is measured once it is stationary; what was cut is told. Close to
    saturation decode takes many residences to fill up, so the run starts with the expected number of requests in
    decode; `--cold --warmup 10min` shows how it gets there. docs/simulate.md describes policies and faults.
    """
    files = {"--requests-csv": flags.requests_csv, "--timeseries": flags.timeseries, "--timeline": flags.timeline}
    Outputs(flags.force, files)
    planned = read_manifest(flags.manifest)
    if "," in (flags.policies or ""):
        compared = simulated_policies(planned, flags)
        print_json(compared.to_dict()) if json else show_policies(Screen(), compared)
        return
    try:
        found = simulated(planned, flags, _progress())
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r" + " " * 78 + "\r")
    print_json(found.to_dict()) if json else show_run(Screen(), found)


def _progress() -> Callable[[float, int, int], None] | None:
    """Return what tells virtual time and requests on stderr twice a second, None where that is no terminal."""
    if not sys.stderr.isatty():
        return None
    last = time.monotonic()

    def show(seconds: float, arrived: int, completed: int) -> None:
        nonlocal last
        if time.monotonic() - last >= SHOWN_EVERY_SECONDS:
            last = time.monotonic()
            told = f"{short_duration(seconds)} simulated: {format_count(arrived)} came, {format_count(completed)} done"
            sys.stderr.write(f"\r{told:<78}")
            sys.stderr.flush()

    return show


def show_run(screen: Screen, found: SimulateResult) -> None:
    """Print the comparison and what it rests on."""
    offered, result, data = found.offered, found.measured, found.to_dict()
    rows: list[list[Any]] = [
        ["requests", format_rate, "requests_per_second"],
        ["output tokens", format_rate, "output_tokens_per_second"],
        *([f"{name.upper()} {key}", short_duration, f"{name}_seconds", key] for name in TIMES for key in STATISTICS),
        *([f"queueing {key}", short_duration, "queueing_seconds", key] for key in ("mean", "p99")),
        ["within the limits", _percent, "slo_attainment"],
        ["goodput", format_rate, "goodput_requests_per_second"],
        *([f"{role} busy", _percent, "utilisation", role] for role in result.utilisation),
        *([["KV link wait mean", short_duration, "mean_transfer_wait_seconds"]] if result.link_utilisation else []),
        *([f"{role} KV links busy", _percent, "link_utilisation", role] for role in result.link_utilisation),
        *([f"{name} in use", _percent, "occupancy", key] for name, key in (("KV", "kv"), ("slots", "slots"))),
        ["prompt tokens reused", _percent, "prefix_hit_share"],
    ]
    parts = {"measured": data, "predicted": data["predicted"], "error": data["relative_error"]}
    cells = [
        [name, *(_cell(part, path, "{:+.1%}".format if key == "error" else form) for key, part in parts.items())]
        for name, form, *path in rows
    ]
    screen.table(["", *parts], cells, title=found.headline, right=list(parts))
    source = offered.expectation.basis
    screen.lines(
        f"Measured: {offered.measured}.",
        f"Predicted: {source}." if offered.expectation.prediction else f"No prediction: {source}.",
        f"{result.completed} completed, {result.failed} failed, {result.running} running; "
        f"{short_duration(result.wall_seconds)} for the event loop.",
        *_extras(result),
        *_changes(found),
        *(f"Note: {note}." for note in offered.notes),
    )


def _extras(result: SimulationResult) -> list[str]:
    """Return sentences about what not every run has."""
    told = []
    if result.failures:
        told.append("Failed: " + "; ".join(f"{count} {reason}" for reason, count in result.failures.items()) + ".")
    if result.faults:
        hit = ", ".join(f"{count} of a {kind}" for kind, count in result.faults.items())
        told.append(f"Faults: {hit}; {result.retried_requests} requests were served again or moved.")
    if result.role_flips:
        told.append(f"Roles: {result.role_flips} flips.")
    if result.offline:
        done, rate = result.offline["completed"], result.offline["output_tokens_per_second"]
        told.append(
            f"Offline: {done:g} of {result.offline['requests']:g} completed, {format_rate(rate)} output tokens."
        )
    if result.confidence.get("ttft") and result.ttft_seconds:
        widths = ", ".join(
            f"{name.upper()} ± {short_duration(result.confidence[name])}"
            for name in ("ttft", "tpot", "e2e")
            if name in result.confidence
        )
        told.append(f"95 % intervals of the means, from batches of requests: {widths}.")
    return told


def _changes(found: SimulateResult) -> list[str]:
    """Return what came of a migration or an autoscaler."""
    result, change = found.measured, found.change
    told = []
    if "started" in result.changes:
        told.append(
            f"Autoscaler: {result.changes['started']:g} instances started, {result.changes['stopped']:g} stopped; "
            f"{format_count(result.changes['device_seconds'] / HOUR_SECONDS)} device-hours held."
        )
    if change is None:
        return told
    data, seconds = change.to_dict(result), change.seconds(result)
    ended = "had not ended with the last request" if seconds is None else f"took {short_duration(seconds)}"
    cost = [
        f"{name.upper()} p99 {'+' if part['p99'] >= 0 else '-'}{short_duration(abs(part['p99']))}"
        for name in TIMES
        if (part := data["cost"][f"{name}_seconds"]) is not None
    ]
    goodput = data["cost"]["goodput_requests_per_second"]
    told.append(
        f"Migration: {data['steps_ended']:g} steps {ended} ({short_duration(data['planned_seconds'])} planned); "
        f"promised {data['promised_attainment']:.1%} within the limits, measured {result.slo_attainment:.1%}, without "
        f"it {data['attainment_without']:.1%}."
    )
    told.append(f"It costs, beside the same requests without it: {', '.join(cost)}, goodput {goodput:+.3g}/s.")
    return told


def _cell(data: Any, path: list[str], form: Callable[[float], str]) -> str:
    """Return the value at a path of keys in words, nothing where it ends early."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return "" if data is None else form(data)


def show_policies(screen: Screen, compared: PoliciesResult) -> None:
    """Print the variants side by side, with what separates them from the first beyond chance."""
    results = compared.results
    found, first = differences(results), next(iter(results))
    measures: dict[str, tuple[Callable[[float], str], list[str]]] = {
        **{f"{name.upper()} {key}": (short_duration, [f"{name}_seconds", key]) for name, key in COMPARED},
        "within the limits": (_percent, ["slo_attainment"]),
        "goodput": (format_rate, ["goodput_requests_per_second"]),
        "output tokens": (format_rate, ["output_tokens_per_second"]),
        "offline output tokens": (format_rate, ["offline", "output_tokens_per_second"]),
    }
    if not any(result.offline for result in results.values()):
        del measures["offline output tokens"]
    told = [result.to_dict() for result in results.values()]
    rows = [[name, *(_cell(data, path, form) for data in told)] for name, (form, path) in measures.items()]
    screen.table(["", *results], rows, title="the same requests under each policy", right=list(results))
    lines = []
    for name, spreads in found.items():
        parts = [_difference(key, spread) for key, spread in spreads.items() if spread is not None]
        lines.append(f"{name} less {first} (95 %): {'; '.join(parts) or 'too few requests to tell'}.")
    screen.lines(*lines, f"Measured: {compared.offered.measured}.")


def _difference(key: str, spread: dict[str, float]) -> str:
    mean, width = spread["mean"], spread["half_width"]
    name = {"slo_attainment": "within the limits"}.get(key, key.removesuffix("_seconds").upper())
    sign = "-" if mean < 0 else "+"
    if key == "slo_attainment":
        return f"{name} {mean:+.1%} ± {width:.1%}"
    return f"{name} {sign}{short_duration(abs(mean))} ± {short_duration(width)}"
