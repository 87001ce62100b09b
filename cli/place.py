"""`plan place`: expert placement from measured loads, as tables and pictures."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from cli.options import FORCE, JSON, File, takes
from cli.output import Outputs, Screen, print_json, progress
from cli.plots import Plot, PlotLine, check_matplotlib, plotted
from ground.files import write_files
from ground.units import format_bytes, format_duration
from planner.manifest.loads import rank_loads
from planner.placement.decide import Choice
from planner.placement.methods import trivial
from podplan.options import flag
from podplan.placement import FILES, PlaceFlags, PlaceResult, place

Y_LABEL = "load over the mean device"
LOADS, REDUNDANCY = PLOTS = ("device_loads.svg", "redundancy.svg")
CURVE: dict[str, Callable[[Choice], str]] = {
    ">redundant": lambda each: str(each.redundant),
    ">per device": lambda each: str(each.slots_per_rank),
    ">imbalance": lambda each: f"{each.imbalance:.4f}",
    ">worst layer": lambda each: f"{each.worst:.4f}",
    ">bound": lambda each: f"{each.lower_bound:.4f}",
    ">weights per device": lambda each: format_bytes(each.effect.weights_bytes) if each.effect else "",
    ">time": lambda each: format_duration(each.effect.seconds) if each.effect else "",
    ">fits": lambda each: ("yes" if each.effect.fits else "no") if each.effect else "",
}


@takes(PlaceFlags)
def command(
    flags: PlaceFlags,
    out: File = flag("DIR", "Write the map in every engine's format."),
    plot: File = flag("DIR", "Draw loads per device, and the curve; podplan[plot]."),
    force: bool = FORCE,
    json: bool = JSON,
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
    Outputs(force, {"--out DIR": out, "--plot DIR": plot}, {"--out": FILES, "--plot": PLOTS})
    if plot is not None:
        check_matplotlib()
    with progress("placing experts ..."):
        found = place(**asdict(flags))
    drawn = {} if plot is None else plot_files(plot, found)
    written = {} if out is None else {out / name: text for name, text in found.files().items()}
    write_files({**written, **drawn}, force=force)
    if json:
        print_json(found.to_dict())
        return
    show_placement(Screen(), found)
    if drawn:
        Screen().lines(f"drew {', '.join(path.name for path in drawn)} in {plot}")
    if out is not None:
        Screen().lines(f"wrote {', '.join(FILES)} to {out}", dense_line(flags, found))


def summary_lines(answer: PlaceResult) -> list[str]:
    """Return the gap, what is proven, and what slices that were not seen say."""
    placed = answer.placed
    lines = [
        f"gap {placed.gap:.2%} of the mean; proven optimal in {int(placed.proven.sum())} of {len(placed.imbalance)} "
        f"layers; {answer.seconds:.2g} s"
    ]
    if answer.problem.sliced:
        lines.append(
            "imbalance is the sum over slices of the busiest device over the sum of the means; "
            "the bound lets every slice have its own map"
        )
    if answer.held_out is not None:
        gain = answer.held_out.gain
        kept = "every second slice" if answer.held_out.split == "alternate" else "the later half of the slices"
        beside = "less than" if gain >= 0 else "more than"
        lines.append(f"placed without {kept}, those show {abs(gain):.1%} {beside} EPLB's imbalance")
    return lines


def decision_lines(answer: PlaceResult) -> list[str]:
    """Return whether balancing is worth it, with what it saves and what its copies take."""
    lines = _change_lines(answer)
    if answer.timed is not None:
        timed = answer.timed
        lines.append(
            f"experts of a layer on the busiest device: {format_duration(timed.seconds.mean())}, "
            f"under EPLB {format_duration(timed.eplb.mean())}"
        )
    found = answer.verdict
    if found is not None:
        before, after = found.unbalanced, found.balanced
        copies = after.weights_bytes - before.weights_bytes
        lines.append(
            f"balancing is {'worth it' if found.worth_it else 'not worth it'} here: "
            f"{format_duration(before.seconds)} as engines start, {format_duration(after.seconds)} with "
            f"{found.redundant} redundant experts ({abs(found.saves):.1%} "
            f"{'less' if found.saves >= 0 else 'more'} time, {format_bytes(copies)} more weights "
            f"per device{'' if after.fits else ', which do not fit'})"
        )
    return lines


def _change_lines(answer: PlaceResult) -> list[str]:
    """Return what traffic between nodes and the way from the current map look like."""
    lines = []
    if answer.traffic is not None:
        traffic, reached = answer.traffic, answer.placed.imbalance
        total = (reached + traffic.weight * traffic.leaving).mean()
        lines.append(
            f"{traffic.leaving.mean():.1%} of the tokens leave their group's node; imbalance + {traffic.weight:g} x "
            f"that share is {total:.4f}, at least {traffic.bound.mean():.4f} for any map"
        )
    if answer.migration is not None:
        change = answer.migration
        lines.append(
            f"from an imbalance of {change.current.mean():.4f} now, by loading {change.loads.mean():.1f} experts per "
            f"layer ({change.loads.sum()} in all; without a limit {change.unlimited_loads.sum()})"
        )
    return lines


def plot_files(folder: Path, answer: PlaceResult) -> dict[Path, bytes]:
    """Return the picture of the loads and, where the curve was asked for, that of it, as they are to be written."""
    problem, curves = answer.problem, []
    busiest_first = [float(number) for number in range(1, problem.ranks + 1)]
    for name, slots in (("as engines start", trivial(problem)), ("placed", answer.placed.slots)):
        loads = rank_loads(problem.mean_loads, slots, problem.ranks)
        relative = np.sort(loads / loads.mean(axis=1, keepdims=True), axis=1)[:, ::-1]
        band = relative.min(axis=0).tolist(), relative.max(axis=0).tolist()
        curves.append(PlotLine(name, busiest_first, relative.mean(axis=0).tolist(), band=band))
    told = "mean over layers, all layers shaded"
    plots = {LOADS: Plot(title=told, x_label="device of a layer, busiest first", y_label=Y_LABEL, curves=curves)}
    if choices := answer.choices:
        redundant = [float(choice.redundant) for choice in choices]
        reached = PlotLine("placed", redundant, [choice.imbalance for choice in choices])
        bound = PlotLine("lower bound", redundant, [choice.lower_bound for choice in choices])
        told = "imbalance, mean over layers"
        plots[REDUNDANCY] = Plot(title=told, x_label="redundant experts", y_label=told, curves=[reached, bound])
    return {folder / name: plotted(plot, folder / name) for name, plot in plots.items()}


def show_placement(screen: Screen, answer: PlaceResult) -> None:
    """Write what is placed, how well, and what is decided."""
    screen.lines(answer.headline)
    screen.grid(
        answer.compared().items(),
        {
            "placement": lambda row: row[0],
            ">mean over layers": lambda row: f"{row[1].mean():.4f}",
            ">worst layer": lambda row: f"{row[1].max():.4f}",
        },
    )
    screen.lines(*summary_lines(answer))
    if answer.choices:
        screen.grid(answer.choices, CURVE, "Redundant experts")
    screen.lines(*decision_lines(answer))


def dense_line(flags: PlaceFlags, answer: PlaceResult) -> str:
    """Return how many dense layers the files assume, and where that comes from."""
    if flags.model is not None or answer.dense_layers:
        return f"{answer.dense_layers} dense layers come before the MoE layers in sglang.json and tensorrt_llm.yaml"
    return "sglang.json and tensorrt_llm.yaml assume no dense layers; give --model if the model starts with some"
