"""`plan simulate`: a manifest at work in virtual time, measured beside predicted."""

from dataclasses import replace

import typer

from cli.options import Json, takes
from cli.output import print_json
from cli.simulate_files import observing
from cli.simulate_flags import SimulateFlags, check_together, read_seed
from cli.simulate_loads import measured_balance
from cli.simulate_render import as_json, compared_json, show, show_compared
from cli.simulate_traffic import MOST_SIMULATED, Offered, read_offered
from ground.errors import BadInput
from ground.units import parse_count
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from runtime.simulate.faults import parse_fault
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.run import simulate as run_simulation
from runtime.simulate.run import with_policies
from runtime.simulate.workload import backlog

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes(SimulateFlags)
def simulate(
    flags: SimulateFlags,
    json: Json = False,
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
    check_together(flags)
    chosen = read_seed(flags.seed)
    planned = read_manifest(flags.manifest)
    offered = _with_scenario(flags, planned, read_offered(flags, planned, chosen))
    if flags.policies is not None:
        _compare(flags.policies, planned, offered, json)
        return
    with observing(flags) as observer:
        result = run_simulation(planned, offered.requests, offered.options, observer)
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
    faults = tuple(parse_fault(text) for text in flags.fail or ())
    return replace(offered, options=replace(options, balance=balance, faults=faults, stepping=flags.each_iteration))


def _compare(text: str, manifest: Manifest, offered: Offered, json: bool) -> None:
    """Run the variants on the same requests; ``a+b`` sets two policies at once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise BadInput("--policies: give at least two different ones, such as round_robin,least_load")
    variants = {name: with_policies(manifest, name.split("+")) for name in names}
    results = {name: run_simulation(made, offered.requests, offered.options) for name, made in variants.items()}
    for result in results.values():
        _check_measured(result, None)
    print_json(compared_json(offered, results)) if json else show_compared(offered, results)


def _check_measured(result: SimulationResult, warmup: str | None) -> None:
    if not result.requests:
        raise BadInput(f"--warmup: no request arrives after {warmup}, so nothing is measured; use a shorter one")
