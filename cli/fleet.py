"""`plan fleet`: several models and rates on one cluster."""

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from cli.fleet_view import fleet_rows, show_fleet
from cli.options import Csv, File, Force, Json, Text, argument, option
from cli.output import Screen, check_force, note, print_json, progress, read_outputs
from ground.errors import Infeasible
from ground.files import check_folder, write_files
from podplan.fleet_files import read_fleet
from podplan.fleets import SUMMARY, manifest_names, placed_on
from podplan.result import as_csv

app = typer.Typer(add_completion=False, rich_markup_mode=None)


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
    csv: Csv = None,
    force: Force = False,
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
        check_folder(out, (*manifest_names(asked), *SUMMARY), force=force, flag="--out")
    with progress(f"placing {len(asked.fleet.members)} models ..."):
        found = placed_on(asked)
    if not found.feasible:
        if json:
            print_json(found.to_dict())
        raise Infeasible(found.headline)
    rows, data = fleet_rows(found), found.to_dict()
    if out is not None:
        from planner.manifest.document import dump_manifest  # takes 0.1 s to import

        texts = {name: dump_manifest(made) for name, made in found.manifests().items()}
        texts |= {"fleet.json": dumps(data, indent=2, allow_nan=False) + "\n", "fleet.csv": as_csv(rows)}
        write_files({out / name: text for name, text in texts.items()}, force=force)
        note(f"wrote {', '.join(texts)} to {out}")
    outputs.write(lambda: as_csv(rows))
    print_json(data) if json else show_fleet(Screen(), found, rows)
