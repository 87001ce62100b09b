"""Pictures of a placement, for those who installed ``podplan[plot]``."""

import io
from pathlib import Path

import numpy as np

from cli.place_render import Answer
from planner.manifest.loads import rank_loads
from planner.placement.methods import trivial

LOADS, REDUNDANCY = PLOTS = ("device_loads.svg", "redundancy.svg")


def plot_files(folder: Path, answer: Answer) -> dict[Path, str]:
    """Return the picture of the loads and, where the curve was asked for, that of it, as they are to be written."""
    from matplotlib.figure import Figure

    problem = answer.problem
    figures = {LOADS: Figure(figsize=(9, 4), layout="constrained")}
    axes = figures[LOADS].subplots()
    for name, slots in (("as engines start", trivial(problem)), ("placed", answer.placed.slots)):
        loads = rank_loads(problem.mean_loads, slots, problem.ranks)
        relative = np.sort(loads / loads.mean(axis=1, keepdims=True), axis=1)[:, ::-1]
        axes.plot(range(1, problem.ranks + 1), relative.mean(axis=0), drawstyle="steps-mid", label=name)
        axes.fill_between(
            range(1, problem.ranks + 1), relative.min(axis=0), relative.max(axis=0), alpha=0.2, step="mid"
        )
    axes.set(xlabel="device of a layer, busiest first", ylabel="load over the mean device")
    axes.legend(title="mean over layers, all layers shaded")
    if answer.decision is not None and answer.decision.choices:
        figures[REDUNDANCY] = Figure(figsize=(6, 4), layout="constrained")
        axes = figures[REDUNDANCY].subplots()
        choices = answer.decision.choices
        redundant = [choice.redundant for choice in choices]
        axes.plot(redundant, [choice.imbalance for choice in choices], marker="o", label="placed")
        axes.plot(redundant, [choice.lower_bound for choice in choices], linestyle="--", label="lower bound")
        axes.set(xlabel="redundant experts", ylabel="imbalance, mean over layers")
        axes.legend()
    texts = {}
    for name, figure in figures.items():
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        texts[folder / name] = buffer.getvalue()
    return texts
