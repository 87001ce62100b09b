"""`plan simulate`: a manifest at work in virtual time, measured beside predicted."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output import print_json, print_lines, print_table
from cli.simulate_flags import Asked, SimulateFlags, read_simulation
from planner.manifest.schema import Prediction
from podplan.errors import BadInput
from podplan.units import format_count, format_duration, format_rate
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.run import simulate as run_simulation

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Text = str | None


def _option(flag: str, metavar: str, told: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=told)


@app.command()
def simulate(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest, such as out/manifest.yaml.")],
    trace: Annotated[Text, _option("--trace", "FILE", "Replay a trace of any serving tool, or a ServeGen set.")] = None,
    format: Annotated[
        Text,
        typer.Option("--trace-format", "--format", metavar="NAME", help="Format of the trace [as the file looks]."),
    ] = None,
    scale_rate: Annotated[Text, _option("--scale-rate", "X", "Play the trace X times as fast [1].")] = None,
    rate: Annotated[Text, _option("--rate", "RATE", "Requests that arrive, such as 100/s [as planned].")] = None,
    concurrency: Annotated[Text, _option("--concurrency", "C", "Requests always under way, instead of a rate.")] = None,
    requests: Annotated[Text, _option("--requests", "N", "Requests that are measured [enough].")] = None,
    warmup: Annotated[Text, _option("--warmup", "DURATION", "Measure from then on; 0s cuts nothing [as told].")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Start a stream empty, not with requests in decode.")] = False,
    seed: Annotated[Text, _option("--seed", "N", "Seed of arrivals, lengths and accepted drafts [0].")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a manifest in virtual time and compare what it does with what was predicted.

    \b
    Examples:
      plan simulate out/manifest.yaml
      plan simulate out/manifest.yaml --rate 50/s --requests 10k
      plan simulate out/manifest.yaml --trace conversation.jsonl --scale-rate 2
      plan simulate out/manifest.yaml --concurrency 1 --requests 10

    By default a stream at the planned rate is measured once it is stationary; what was cut is told. Close to
    saturation decode takes many residences to fill up, so the run starts with the expected number of requests in
    decode; `--cold --warmup 10min` shows how it gets there.
    """
    asked = read_simulation(
        SimulateFlags(
            manifest=manifest,
            trace=trace,
            format=format,
            scale_rate=scale_rate,
            rate=rate,
            concurrency=concurrency,
            requests=requests,
            warmup=warmup,
            cold=cold,
            seed=seed,
        )
    )
    result = run_simulation(asked.manifest, asked.requests, asked.options)
    if not result.requests:
        raise BadInput(f"--warmup: no request arrives after {warmup}, so nothing is measured; use a shorter one")
    data = as_json(asked, result)
    print_json(data) if json else _show(asked, result, data)


def as_json(asked: Asked, result: SimulationResult) -> dict[str, Any]:
    """Return measured, predicted and predicted / measured - 1; a key without a prediction holds null."""
    measured = {key: value for key, value in result.to_dict().items() if key not in ("steps", "wall_seconds")}
    predicted = (asked.expectation.prediction or Prediction()).model_dump(mode="json")
    return {
        **measured,
        "predicted": predicted,
        "relative_error": {key: relative_error(value, measured[key]) for key, value in predicted.items()},
        "wall_seconds": result.wall_seconds,
        "predicted_from": asked.expectation.basis,
        "measured_window": asked.measured,
        "seed": asked.options.seed,
    }


def relative_error(predicted: Any, measured: Any) -> Any:
    """Return predicted / measured - 1, key by key; null where one of them is missing or nothing was measured."""
    if isinstance(predicted, dict) and isinstance(measured, dict):
        return {key: relative_error(value, measured.get(key)) for key, value in predicted.items()}
    return predicted / measured - 1 if predicted is not None and measured else None


def _show(asked: Asked, result: SimulationResult, data: dict[str, Any]) -> None:
    """Print the comparison and what it rests on."""
    rows: list[list[Any]] = [
        ["requests", format_rate, "requests_per_second"],
        ["output tokens", format_rate, "output_tokens_per_second"],
        *([f"{name.upper()} {key}", format_duration, f"{name}_seconds", key] for name in TIMES for key in STATISTICS),
        ["within the limits", _percent, "slo_attainment"],
        ["goodput", format_rate, "goodput_requests_per_second"],
        *([f"{role} busy", _percent, "utilisation", role] for role in result.utilisation),
    ]
    print_table(
        ["", "measured", "predicted", "error"],
        [[name, *_cells(data, form, path)] for name, form, *path in rows],
        title=f"{asked.manifest.model.spec.name}, {format_count(result.requests)} requests measured",
        right=["measured", "predicted", "error"],
    )
    source = asked.expectation.basis
    print_lines(
        [
            f"Measured: {asked.measured}.",
            f"Predicted: {source}." if asked.expectation.prediction else f"No prediction: {source}.",
            f"{result.completed} completed, {result.failed} failed, {result.running} running; "
            f"{format_duration(result.wall_seconds)} for the event loop.",
        ]
    )


TIMES = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p90", "p99")


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
