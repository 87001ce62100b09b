"""`plan place`: expert placement from measured loads."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cli.output import check_force, print_json, print_lines, print_table
from cli.place_change import migrate, read_current, read_weight, weigh_traffic
from cli.place_decide import decide, read_asked, time_experts
from cli.place_files import dense_line, moe_map, write_placement
from cli.place_flags import PlaceFlags, read_holdout
from cli.place_plot import write_plots
from cli.place_render import (
    CURVE_COLUMNS,
    Answer,
    as_json,
    curve_rows,
    decision_lines,
    headline,
    summary_lines,
    table_rows,
)
from cli.progress import progress
from planner.manifest.mapformats import WRITERS
from planner.placement.certify import Certified
from planner.placement.certify import certify as certify_placement
from planner.placement.heldout import hold_out
from planner.placement.loadfiles import read_loads
from planner.placement.methods import place as place_experts
from podplan.errors import BadInput

app = typer.Typer(rich_markup_mode=None)

COLUMNS = ["placement", "mean over layers", "worst layer"]


@app.command()
def place(
    loads: Annotated[Path, typer.Argument(metavar="LOADS", help="Token counts: CSV, NPY, NPZ, JSON or SGLang .pt.")],
    devices: Annotated[str, typer.Option("--devices", metavar="G", help="Devices that share the experts.")],
    nodes: Annotated[str | None, typer.Option("--nodes", metavar="N", help="Nodes that they stand in [1].")] = None,
    redundant_experts: Annotated[
        str | None,
        typer.Option("--redundant-experts", metavar="R", help="Slots beyond one per expert, or auto [fewest]."),
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
    objective: Annotated[
        str | None,
        typer.Option("--objective", metavar="O", help="slices, mean or seconds [slices, if any]."),
    ] = None,
    holdout: Annotated[
        str, typer.Option("--holdout", metavar="H", help="alternate, later or none: slices kept back [alternate].")
    ] = "alternate",
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Model whose dense layers and groups are taken.")
    ] = None,
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="HW", help="With --model: what imbalance costs on this hardware.")
    ] = None,
    phase: Annotated[
        str | None, typer.Option("--phase", metavar="PHASE", help="With --hw: decode or prefill [decode].")
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="REQUESTS", help="With --hw: requests per device [32].")
    ] = None,
    kv_len: Annotated[
        str | None, typer.Option("--kv-len", metavar="TOKENS", help="With --hw: cached tokens per request [4096].")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="TOKENS", help="With --hw: prompt tokens per device [8192].")
    ] = None,
    current: Annotated[
        Path | None,
        typer.Option("--current", metavar="MAP", help="Map that runs now, in any format of --out."),
    ] = None,
    max_moves: Annotated[
        str | None, typer.Option("--max-moves", metavar="M", help="With --current: experts to load per layer at most.")
    ] = None,
    traffic_weight: Annotated[
        str | None,
        typer.Option("--traffic-weight", metavar="W", help="Imbalance that tokens leaving their node are worth."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Show imbalance, memory and time against redundant experts.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the map in every engine's format.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="DIR", help="Draw loads per device, and the curve; podplan[plot].")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Place experts and their replicas on devices from measured loads.

    \b
    Examples:
      plan place loads.csv --devices 32 --nodes 4 --redundant-experts 32
      plan place slices.csv --devices 8 --slots-per-device 9 --holdout alternate
      plan place counts.npy --devices 32 --nodes 4 --redundant-experts 32 --groups 8 --keep-groups
      plan place counts.npy --devices 32 --redundant-experts auto --model deepseek-r1 --hw h800 --batch 64

    Imbalance is the busiest device's load over the mean; the bound is the least that any placement could reach.
    """
    flags = PlaceFlags(
        devices=devices,
        nodes=nodes,
        redundant_experts=redundant_experts,
        slots_per_device=slots_per_device,
        groups=groups,
        keep_groups=keep_groups,
        objective=objective,
        holdout=holdout,
        model=model,
        hw=hw,
        phase=phase,
        batch=batch,
        kv_len=kv_len,
        tokens=tokens,
        max_moves=max_moves,
        traffic_weight=traffic_weight,
    )
    check_force(force, {"--out DIR": out, "--plot DIR": plot})
    read = read_loads(loads)
    asked = read_asked(flags)
    problem, decision = decide(flags, read, asked, curve=curve)
    split = read_holdout(flags, problem)
    running = None if current is None else read_current(current, problem)
    weight = read_weight(flags, problem)
    if max_moves is not None and current is None:
        raise BadInput("--max-moves: needs --current, the map that experts move from")
    start = time.perf_counter()
    with progress("placing experts ..."):
        placed = place_experts(problem, method)
        timed = None if asked is None else time_experts(flags, problem, asked, placed)
        placed = timed.placement if timed is not None and flags.by_seconds else placed
        traffic = migration = None
        if weight is not None:
            placed, traffic = weigh_traffic(problem, placed, weight)
        certified = (
            certify_placement(problem, placed)
            if certify and not (flags.by_seconds or traffic)
            else Certified(placement=placed, certificates={})
        )
        if running is not None:
            placed, migration = migrate(flags, problem, certified.placement, running)
            certified = replace(certified, placement=placed)
        seconds = time.perf_counter() - start
        held_out = hold_out(problem, split, method) if split else None
    answer = Answer(
        problem=problem,
        certified=certified,
        seconds=seconds,
        held_out=held_out,
        decision=decision,
        timed=timed,
        traffic=traffic,
        migration=migration,
    )
    moe = moe_map(flags, answer, read)
    data = as_json(answer, moe)
    if out is not None:
        write_placement(out, moe, data, force=force)
    drawn = [] if plot is None else write_plots(plot, answer, force=force)
    if json:
        print_json(data)
        return
    print_lines([headline(problem, read)])
    print_table(COLUMNS, table_rows(answer), right=COLUMNS[1:])
    print_lines(summary_lines(answer))
    if decision is not None and decision.choices:
        print_table(CURVE_COLUMNS, curve_rows(decision), title="Redundant experts", right=CURVE_COLUMNS)
    print_lines(decision_lines(answer))
    if drawn:
        print_lines([f"drew {', '.join(drawn)} in {plot}"])
    if out is not None:
        print_lines([f"wrote {', '.join([*WRITERS, 'placement.json'])} to {out}", dense_line(flags, moe)])
