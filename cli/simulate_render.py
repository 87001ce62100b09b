"""What `plan simulate` tells: measured beside predicted, and differences between policies."""

from typing import Any

from cli.output import print_lines, print_table
from cli.simulate_traffic import Offered
from ground.units import counted, format_duration, format_rate
from planner.manifest.schema import Manifest, Prediction
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.quantiles import interval

TIMES = ("ttft", "tpot", "e2e", "queueing")
STATISTICS = ("mean", "p50", "p90", "p99")


def as_json(offered: Offered, result: SimulationResult) -> dict[str, Any]:
    """Return measured, predicted and predicted / measured - 1; a key without a prediction holds null."""
    measured = {key: value for key, value in result.to_dict().items() if key not in ("steps", "wall_seconds")}
    predicted = (offered.expectation.prediction or Prediction()).model_dump(mode="json")
    return {
        **measured,
        "predicted": predicted,
        "relative_error": {key: relative_error(value, measured[key]) for key, value in predicted.items()},
        "wall_seconds": result.wall_seconds,
        "predicted_from": offered.expectation.basis,
        "measured_window": offered.measured,
        "notes": list(offered.notes),
        "seed": offered.options.seed,
    }


def relative_error(predicted: Any, measured: Any) -> Any:
    """Return predicted / measured - 1, key by key; null where one of them is missing or nothing was measured."""
    if isinstance(predicted, dict) and isinstance(measured, dict):
        return {key: relative_error(value, measured.get(key)) for key, value in predicted.items()}
    return predicted / measured - 1 if predicted is not None and measured else None


def show(manifest: Manifest, offered: Offered, result: SimulationResult, data: dict[str, Any]) -> None:
    """Print the comparison and what it rests on."""
    rows: list[list[Any]] = [
        ["requests", format_rate, "requests_per_second"],
        ["output tokens", format_rate, "output_tokens_per_second"],
        *(
            [f"{name.upper()} {key}", format_duration, f"{name}_seconds", key]
            for name in TIMES[:3]
            for key in STATISTICS
        ),
        *([f"queueing {key}", format_duration, "queueing_seconds", key] for key in ("mean", "p99")),
        ["within the limits", _percent, "slo_attainment"],
        ["goodput", format_rate, "goodput_requests_per_second"],
        *([f"{role} busy", _percent, "utilisation", role] for role in result.utilisation),
        *([["KV link wait mean", format_duration, "mean_transfer_wait_seconds"]] if result.link_utilisation else []),
        *([f"{role} KV links busy", _percent, "link_utilisation", role] for role in result.link_utilisation),
        *([f"{name} in use", _percent, "occupancy", key] for name, key in (("KV", "kv"), ("slots", "slots"))),
        ["prompt tokens reused", _percent, "prefix_hit_share"],
    ]
    print_table(
        ["", "measured", "predicted", "error"],
        [[name, *_cells(data, form, path)] for name, form, *path in rows],
        title=f"{manifest.model.spec.name}, {counted(result.requests, 'request')} measured",
        right=["measured", "predicted", "error"],
    )
    source = offered.expectation.basis
    print_lines(
        [
            f"Measured: {offered.measured}.",
            f"Predicted: {source}." if offered.expectation.prediction else f"No prediction: {source}.",
            f"{result.completed} completed, {result.failed} failed, {result.running} running; "
            f"{format_duration(result.wall_seconds)} for the event loop.",
            *_extras(result),
            *(f"Note: {note}." for note in offered.notes),
        ]
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
            f"{name.upper()} ± {format_duration(result.confidence[name])}"
            for name in ("ttft", "tpot", "e2e")
            if name in result.confidence
        )
        told.append(f"95 % intervals of the means, from batches of requests: {widths}.")
    return told


def _cells(data: dict[str, Any], form: Any, path: list[str]) -> list[str]:
    """Return measured, predicted and error of one row."""
    measured, predicted, error = (_at(part, path) for part in (data, data["predicted"], data["relative_error"]))
    return [
        "" if measured is None else form(measured),
        "" if predicted is None else form(predicted),
        "" if error is None else f"{error:+.1%}",
    ]


def _at(data: Any, path: list[str]) -> Any:
    """Return the value at a path of keys, None where it ends early."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _percent(share: float) -> str:
    return f"{share:.1%}"


MEASURES = {"ttft": "ttft_seconds", "tpot": "tpot_seconds", "e2e": "e2e_seconds", "attained": "slo_attainment"}


def differences(results: dict[str, SimulationResult]) -> dict[str, dict[str, Any]]:
    """Return each policy less the first one: mean and half width of a 95 % interval over batches of requests."""
    first = next(iter(results.values())).batches
    found: dict[str, dict[str, Any]] = {}
    for name, result in list(results.items())[1:]:
        one, other = first.matched(result.batches)
        found[name] = {}
        for measure, key in MEASURES.items():
            spread = interval(other.means(measure) - one.means(measure))
            found[name][key] = None if spread is None else {"mean": spread[0], "half_width": spread[1]}
    return found


def compared_json(offered: Offered, results: dict[str, SimulationResult]) -> dict[str, Any]:
    """Return every variant's figures and the differences to the first."""
    return {
        "policies": {name: as_json(offered, result) for name, result in results.items()},
        "differences": {"to": next(iter(results)), **differences(results)},
        "seed": offered.options.seed,
    }


def show_compared(offered: Offered, results: dict[str, SimulationResult]) -> None:
    """Print the variants side by side, with what separates them from the first beyond chance."""
    found = differences(results)
    first = next(iter(results))
    rows = [
        ["TTFT mean", *(_mean(result.ttft_seconds, "mean") for result in results.values())],
        ["TTFT p99", *(_mean(result.ttft_seconds, "p99") for result in results.values())],
        ["TPOT mean", *(_mean(result.tpot_seconds, "mean") for result in results.values())],
        ["TPOT p99", *(_mean(result.tpot_seconds, "p99") for result in results.values())],
        ["E2E mean", *(_mean(result.e2e_seconds, "mean") for result in results.values())],
        ["within the limits", *(_percent(result.slo_attainment) for result in results.values())],
        ["goodput", *(format_rate(result.goodput_requests_per_second) for result in results.values())],
        ["output tokens", *(format_rate(result.output_tokens_per_second) for result in results.values())],
    ]
    print_table(["", *results], rows, title="the same requests under each policy", right=list(results))
    lines = []
    for name, measures in found.items():
        parts = [_difference(key, spread) for key, spread in measures.items() if spread is not None]
        lines.append(f"{name} less {first} (95 %): {'; '.join(parts) or 'too few requests to tell'}.")
    print_lines([*lines, f"Measured: {offered.measured}."])


def _mean(statistics: Any, key: str) -> str:
    return "" if statistics is None else format_duration(getattr(statistics, key))


def _difference(key: str, spread: dict[str, float]) -> str:
    mean, width = spread["mean"], spread["half_width"]
    name = {"slo_attainment": "within the limits"}.get(key, key.removesuffix("_seconds").upper())
    sign = "-" if mean < 0 else "+"
    if key == "slo_attainment":
        return f"{name} {mean:+.1%} ± {width:.1%}"
    return f"{name} {sign}{format_duration(abs(mean))} ± {format_duration(width)}"
