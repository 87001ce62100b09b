"""`plan place`: expert placement from measured loads."""

import time
from pathlib import Path
from typing import Annotated

import typer

from cli.output import print_json, print_lines, print_table
from cli.place_flags import PlaceFlags, read_problem
from cli.place_render import as_json, headline, summary_lines, table_rows
from cli.progress import progress
from planner.placement.certify import Certified
from planner.placement.certify import certify as certify_placement
from planner.placement.loadfiles import read_loads
from planner.placement.methods import place as place_experts

app = typer.Typer(rich_markup_mode=None)

COLUMNS = ["placement", "mean over layers", "worst layer"]


@app.command()
def place(
    loads: Annotated[Path, typer.Argument(metavar="LOADS", help="Token counts: CSV, NPY, NPZ, JSON or SGLang .pt.")],
    devices: Annotated[str, typer.Option("--devices", metavar="G", help="Devices that share the experts.")],
    nodes: Annotated[str | None, typer.Option("--nodes", metavar="N", help="Nodes that they stand in [1].")] = None,
    redundant_experts: Annotated[
        str | None,
        typer.Option("--redundant-experts", metavar="R", help="Slots beyond one per expert [fewest that divide]."),
    ] = None,
    slots_per_device: Annotated[
        str | None, typer.Option("--slots-per-device", metavar="S", help="Instead of --redundant-experts.")
    ] = None,
    groups: Annotated[
        str | None, typer.Option("--groups", metavar="K", help="Groups of the router, such as 8 for DeepSeek-V3 [1].")
    ] = None,
    keep_groups: Annotated[bool, typer.Option("--keep-groups", help="Keep every group on one node.")] = False,
    method: Annotated[str, typer.Option("--method", metavar="M", help="auto, eplb, joint, ... [auto].")] = "auto",
    certify: Annotated[
        bool, typer.Option("--certify", help="Search longer and prove more: up to 15 s per layer.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Place experts and their replicas on devices from measured loads.

    \b
    Examples:
      plan place loads.csv --devices 32 --nodes 4 --redundant-experts 32
      plan place counts.npy --devices 32 --nodes 4 --redundant-experts 32 --groups 8 --keep-groups

    Imbalance is the busiest device's load over the mean; the bound is the least that any placement could reach.
    """
    flags = PlaceFlags(
        devices=devices,
        nodes=nodes,
        redundant_experts=redundant_experts,
        slots_per_device=slots_per_device,
        groups=groups,
        keep_groups=keep_groups,
    )
    read = read_loads(loads)
    problem = read_problem(flags, read)
    start = time.perf_counter()
    with progress("placing experts ..."):
        placed = place_experts(problem, method)
        certified = certify_placement(problem, placed) if certify else Certified(placement=placed, certificates={})
        placed = certified.placement
    seconds = time.perf_counter() - start
    if json:
        print_json(as_json(problem, certified, seconds))
        return
    print_lines([headline(problem, read)])
    print_table(COLUMNS, table_rows(problem, placed), right=COLUMNS[1:])
    print_lines(summary_lines(placed, seconds))
