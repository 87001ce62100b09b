"""`plan simulate`: a manifest at work in virtual time, measured beside predicted."""

import sys
import time
from collections.abc import Callable

import typer

from cli.options import Json, takes
from cli.output import Screen, check_force, print_json
from cli.simulate_view import show_policies, show_run
from ground.units import format_count, format_duration
from planner.manifest.document import read_manifest
from podplan.options import SimulateFlags
from podplan.simulation import check_together, simulated, simulated_policies

SHOWN_EVERY_SECONDS = 0.5

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
    files = {"--requests-csv": flags.requests_csv, "--timeseries": flags.timeseries, "--timeline": flags.timeline}
    check_force(flags.force, files)
    planned = read_manifest(flags.manifest)
    if flags.policies is not None:
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
            told = f"{format_duration(seconds)} simulated: {format_count(arrived)} came, {format_count(completed)} done"
            sys.stderr.write(f"\r{told:<78}")
            sys.stderr.flush()

    return show
