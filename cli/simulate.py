"""`plan simulate`: a manifest at work in virtual time, measured beside predicted."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output import print_json
from cli.simulate_files import observing
from cli.simulate_flags import SimulateFlags, check_together, read_seed
from cli.simulate_loads import measured_balance
from cli.simulate_render import as_json, compared_json, show, show_compared
from cli.simulate_traffic import MOST_SIMULATED, Offered, read_offered
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from podplan.errors import BadInput
from podplan.units import parse_count
from runtime.simulate.faults import parse_fault
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.run import simulate as run_simulation
from runtime.simulate.run import with_policies
from runtime.simulate.workload import backlog

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Text = str | None
File = Path | None


def _option(flag: str, metavar: str, told: str, *more: str) -> Any:
    return typer.Option(flag, *more, metavar=metavar, help=told)


@app.command()
def simulate(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest, such as out/manifest.yaml.")],
    trace: Annotated[Text, _option("--trace", "FILE", "Replay a trace of any serving tool, or a ServeGen set.")] = None,
    format: Annotated[Text, _option("--trace-format", "NAME", "Format of the trace [as it looks].", "--format")] = None,
    skip_bad_rows: Annotated[Text, _option("--skip-bad-rows", "N", "Leave out so many wrong rows at most [0].")] = None,
    scale_rate: Annotated[Text, _option("--scale-rate", "X", "Play the trace X times as fast [1].")] = None,
    window: Annotated[Text, _option("--window", "A..B", "Only what arrives from A to B, such as 5min..10min.")] = None,
    repeat: Annotated[Text, _option("--repeat", "N", "Play the trace N times, one after the other [1].")] = None,
    rate: Annotated[Text, _option("--rate", "RATE", "Requests that arrive, such as 100/s [as planned].")] = None,
    bursts: Annotated[
        Text, _option("--bursts", "X,P,T", "Bursts of X times the calm rate, a share P of the time.")
    ] = None,
    concurrency: Annotated[Text, _option("--concurrency", "C", "Requests always under way, instead of a rate.")] = None,
    requests: Annotated[Text, _option("--requests", "N", "Requests that are measured [enough].")] = None,
    warmup: Annotated[Text, _option("--warmup", "DURATION", "Measure from then on; 0s cuts nothing [as told].")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Start a stream empty, not with requests in decode.")] = False,
    policies: Annotated[Text, _option("--policies", "A,B,C", "Compare policies on the same requests.")] = None,
    offline: Annotated[
        Text, _option("--offline", "N", "So many offline requests stand behind the online ones.")
    ] = None,
    fail: Annotated[
        list[str] | None, _option("--fail", "FAULT", "Such as 'node 3 at 10s for 1min'; repeatable.")
    ] = None,
    expert_loads: Annotated[
        Text, _option("--expert-loads", "FILE", "CSV, layers x experts, or lognormal:0.5, zipf:1.")
    ] = None,
    each_iteration: Annotated[
        bool, typer.Option("--each-iteration", help="Step every iteration: slow, the same.")
    ] = False,
    requests_csv: Annotated[File, _option("--requests-csv", "FILE", "Write a row per request.")] = None,
    timeseries: Annotated[File, _option("--timeseries", "FILE", "Write the system's state over time as CSV.")] = None,
    timeseries_step: Annotated[Text, _option("--timeseries-step", "DURATION", "Time between its rows [1s].")] = None,
    timeline: Annotated[File, _option("--timeline", "FILE", "Write every step for Perfetto (Chrome trace).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    seed: Annotated[Text, _option("--seed", "N", "Seed of arrivals, lengths and accepted drafts [0].")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
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
    flags = SimulateFlags(
        manifest=manifest,
        trace=trace,
        format=format,
        skip_bad_rows=skip_bad_rows,
        scale_rate=scale_rate,
        window=window,
        repeat=repeat,
        rate=rate,
        bursts=bursts,
        concurrency=concurrency,
        requests=requests,
        warmup=warmup,
        cold=cold,
        seed=seed,
        policies=policies,
        offline=offline,
        fail=tuple(fail or ()),
        expert_loads=expert_loads,
        each_iteration=each_iteration,
        requests_csv=requests_csv,
        timeseries=timeseries,
        timeseries_step=timeseries_step,
        timeline=timeline,
        force=force,
    )
    check_together(flags)
    chosen = read_seed(flags.seed)
    planned = read_manifest(flags.manifest)
    offered = _with_scenario(flags, planned, read_offered(flags, planned, chosen))
    if flags.policies is not None:
        _compare(flags.policies, planned, offered, json)
        return
    with observing(flags) as observer:
        result = run_simulation(planned, offered.requests(), offered.options, observer)
        _check_measured(result, flags.warmup)
    data = as_json(offered, result)
    print_json(data) if json else show(planned, offered, result, data)


def _with_scenario(flags: SimulateFlags, manifest: Manifest, offered: Offered) -> Offered:
    """Add offline requests, faults and expert loads to a run."""
    options = offered.options
    if flags.offline is not None:
        count = parse_count(flags.offline, "--offline")
        if count > MOST_SIMULATED:
            raise BadInput(f"--offline: {count} are more than the {MOST_SIMULATED} that are simulated; use fewer")
        options = replace(options, offline=backlog(manifest.workload, count, options.seed))
    balance = {} if flags.expert_loads is None else measured_balance(manifest, flags.expert_loads, options.seed)
    faults = tuple(parse_fault(text) for text in flags.fail)
    return replace(offered, options=replace(options, balance=balance, faults=faults, stepping=flags.each_iteration))


def _compare(text: str, manifest: Manifest, offered: Offered, json: bool) -> None:
    """Run the variants on the same requests; ``a+b`` sets two policies at once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise BadInput("--policies: give at least two different ones, such as round_robin,least_load")
    variants = {name: with_policies(manifest, name.split("+")) for name in names}
    results = {name: run_simulation(made, offered.requests(), offered.options) for name, made in variants.items()}
    for result in results.values():
        _check_measured(result, None)
    print_json(compared_json(offered, results)) if json else show_compared(offered, results)


def _check_measured(result: SimulationResult, warmup: str | None) -> None:
    if not result.requests:
        raise BadInput(f"--warmup: no request arrives after {warmup}, so nothing is measured; use a shorter one")
