"""`plan execute`: the manifest's parallelism on a small model with real tensors, checked against an unsharded run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.execute_clock import clock_json, clock_rows, show_clock
from cli.execute_render import report_json, show_report
from cli.exit_codes import ExitCode
from cli.output import print_json
from planner.manifest.document import read_manifest
from podplan.errors import BadInput
from runtime.execute.check import execute as run_check
from runtime.execute.plan import Choices
from runtime.execute.run import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MOST_ITERATIONS = 64


def _option(flag: str, metavar: str, told: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=told)


@app.command()
def execute(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest, such as out/manifest.yaml.")],
    iterations: Annotated[int, _option("--iterations", "N", "Decode iterations, 1 to 64.")] = 8,
    int8: Annotated[bool, typer.Option("--int8", help="INT8 matrices, activations and dispatch messages.")] = False,
    seed: Annotated[int, _option("--seed", "N", "Seed of weights and prompts.")] = 0,
    clock: Annotated[
        bool, typer.Option("--clock", help="Time the plan's collectives on a virtual clock, beside closed forms.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Run the plan of a manifest on a small model of the same structure and compare it with an unsharded run.

    \b
    Examples:
      plan execute out/manifest.yaml
      plan execute out/manifest.yaml --int8 --json
      plan execute out/manifest.yaml --clock

    Every rank of the first prefill and the first decode instance runs: its shards, its experts, every collective with
    real messages. Prompts are prefilled, caches handed over, tokens decoded greedily. Exit 1 where a token, a
    logit or a message differs, exit 2 where the manifest does not cover the model.
    """
    if not 1 <= iterations <= MOST_ITERATIONS:
        raise BadInput(f"--iterations: {iterations} must be from 1 to {MOST_ITERATIONS}")
    if not 0 <= seed < 2**32:
        raise BadInput(f"--seed: {seed} must be from 0 to {2**32 - 1}")
    settings = Settings(iterations=iterations, seed=seed, int8=int8, choices=Choices(int8_messages=int8))
    plan = read_manifest(manifest)
    report = run_check(plan, settings)
    rows = clock_rows(plan) if clock else []
    if json:
        print_json(report_json(report) | ({"clock": clock_json(rows)} if clock else {}))
    else:
        show_report(report)
    if rows and not json:
        show_clock(rows)
    return ExitCode.DONE if report.equal else ExitCode.FAULT
