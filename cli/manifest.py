"""`plan manifest`: whether a file is a manifest, and what one looks like."""

from pathlib import Path

import typer

from cli.options import JSON, options
from cli.output import Screen, print_json
from ground.units import format_rate
from planner.manifest.document import json_schema, read_manifest
from podplan.options import argument
from podplan.result import picked

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=False)


@app.callback()
def manifest() -> None:
    """Check a manifest, or print the JSON Schema of manifests.

    \b
    Examples:
      plan manifest validate out/manifest.yaml
      plan manifest schema > manifest.schema.json
    """


@app.command()
@options
def validate(file: Path = argument("FILE", "The manifest, YAML or JSON."), json: bool = JSON) -> None:
    """Read a manifest with every check; exit 2 with the path to the first wrong field."""
    read = read_manifest(file)
    keys = "role hardware strategy devices_per_instance"
    pools = [picked(pool, keys) | {"instances": len(pool.instances)} for pool in read.pools]
    if json:
        print_json({"valid": True, "manifest_version": read.manifest_version, "pools": pools})
        return
    rate = read.workload.requests_per_second
    planned = "" if rate is None else f", planned for {format_rate(rate)}"
    Screen().lines(
        f"{file}: a valid manifest of version {read.manifest_version} for {read.model.spec.name}{planned}",
        *(
            f"  {pool['role']:<8}{pool['instances']} x {pool['strategy']} "
            f"on {pool['devices_per_instance']} devices of {pool['hardware']}"
            for pool in pools
        ),
    )


@app.command()
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of a manifest."""
    print_json(json_schema())
