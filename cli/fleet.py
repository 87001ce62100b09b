"""`plan fleet`: several models and rates on one cluster."""

import json as json_module
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from cli.answer_output import Outputs, read_outputs, write_answers
from cli.answer_rows import as_csv
from cli.fleet_input import FleetInput, read_fleet
from cli.fleet_render import Shown, fleet_json, fleet_lines, fleet_rows, fleet_tables, verdicts_of
from cli.options import File, Json, Text, argument, option, switch
from cli.output import check_force, print_json, print_lines, stderr_console, stdout_console
from cli.progress import progress
from cli.search_json import question_json
from ground.errors import Infeasible
from ground.files import check_folder, write_files
from ground.names import file_names
from planner.fleets.answer import FleetAnswer
from planner.fleets.cluster import plan_cluster

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SUMMARY = ("fleet.json", "fleet.csv")


@app.command()
def fleet(
    file: Annotated[Path, argument("FLEET.yaml", "Models, rates and the cluster that they share.")],
    objective: Annotated[
        Text, option("--objective", "WORD", "chips, cost, throughput or latency [the file's, or chips].")
    ] = None,
    survive: Annotated[
        Text, option("--survive", "LOSS", "node or instance: every model outlives its worst [the file's].")
    ] = None,
    confidence: Annotated[
        Text, option("--confidence", "C", "Hold with this confidence in the predicted times [the file's, or 0.5].")
    ] = None,
    out: Annotated[File, option("--out", "DIR", "Write a manifest per model, fleet.json and fleet.csv there.")] = None,
    csv: Annotated[Text, option("--csv", "FILE", "Write a row per model as CSV, every figure in SI units.")] = None,
    force: Annotated[bool, switch("--force", "Replace files where they exist.")] = False,
    json: Json = False,
) -> None:
    """Place several models with rates and limits on one cluster: fewest chips, least cost, most growth or least time.

    \b
    Examples:
      plan fleet examples/fleets/two-models.yaml
      plan fleet examples/fleets/two-pools.yaml --survive node --out fleet/
      plan fleet fleet.yaml --objective throughput --csv fleet.csv

    The file has the flags that all models share, `models:` with those of each, `objective:` chips, cost, throughput
    (the largest common growth of all rates) or latency (the least mean time of all requests, on all devices),
    `survive:`, `confidence:`, and `share_nodes:` no where no two models may stand on one node. `pools:` lists machines
    of several kinds; then `hw:` of a model names pools, one per role, or any: podplan chooses. Every model needs a
    rate. Exit code 3: the cluster does not carry them all.
    """
    check_force(force, {"--out DIR": out, "--csv FILE": csv})
    outputs = read_outputs(csv, None, force)
    given = {"objective": objective, "survive": survive, "confidence": confidence}
    asked = read_fleet(file, {key: value for key, value in given.items() if value is not None})
    if out is not None:
        check_folder(out, (*_manifest_names(asked), *SUMMARY), force=force, flag="--out")
    begin = perf_counter()
    with progress(f"placing {len(asked.fleet.members)} models ..."):
        answer = plan_cluster(asked.fleet)
    seconds = perf_counter() - begin
    if not answer.feasible:
        if json:
            print_json(fleet_json(asked, answer, None, seconds))
        raise Infeasible(
            f"the cluster does not carry the fleet (binding limit: {answer.binding_limit}): {answer.explanation}"
        )
    _show(_shown(asked, answer, seconds), outputs, out, json=json)


def _shown(asked: FleetInput, answer: FleetAnswer, seconds: float) -> Shown:
    from planner.fleets.floor import fleet_floor

    floor = fleet_floor(asked.fleet, answer.plans)
    return Shown(asked=asked, answer=answer, floor=floor, verdicts=verdicts_of(asked, answer), seconds=seconds)


def _manifest_names(asked: FleetInput) -> list[str]:
    """Return a file for each model, named as the model is in the fleet."""
    return [f"{name}/manifest.yaml" for name in file_names((each.name for each in asked.fleet.members), SUMMARY)]


def _show(shown: Shown, outputs: Outputs, folder: Path | None, *, json: bool) -> None:
    """Write the files that were asked for, and print what was found."""
    rows = fleet_rows(shown)
    data = fleet_json(shown.asked, shown.answer, shown, shown.seconds)
    if folder is not None:
        texts = _texts(shown) | {
            "fleet.json": json_module.dumps(data, indent=2, allow_nan=False) + "\n",
            "fleet.csv": as_csv(rows),
        }
        write_files({folder / name: text for name, text in texts.items()}, force=outputs.force)
        stderr_console().print(f"wrote {', '.join(texts)} to {folder}", markup=False, soft_wrap=True)
    write_answers(rows, outputs, None, (), quiet=True)
    if json:
        print_json(data)
        return
    for each in fleet_tables(rows):
        stdout_console().print(each)
        stdout_console().print()
    print_lines(fleet_lines(shown))


def _texts(shown: Shown) -> dict[str, str]:
    """Return the manifest of every model, by the name of its file; together they stand on the machines at once."""
    from planner.manifest.document import dump_manifest
    from planner.plans.assemble import assemble

    return {
        name: dump_manifest(assemble(plan, question_json(replace(asked, question=plan.question)), places))
        for name, plan, asked, places in zip(
            _manifest_names(shown.asked), shown.answer.plans, shown.asked.asked, shown.floor.places, strict=True
        )
    }
