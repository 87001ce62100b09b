"""Curves as PNG or SVG, with matplotlib where it is installed; it is imported only when a plot is asked for."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

from ground.errors import BadInput

FORMATS = (".png", ".svg")


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one line or, without numbers on x, of one group of bars."""

    name: str
    x: list[float]
    y: list[float | None]


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn: curves over numbers, or bars over names."""

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    names: list[str] | None = None
    """Of the bars; None for lines."""
    logarithmic: bool = False
    points: bool = False
    """Whether points stand alone, without a line through them."""


def check_plot(path: Path) -> None:
    """Raise BadInput for an unknown format, and where matplotlib is missing."""
    if path.suffix.lower() not in FORMATS:
        raise BadInput(f"--plot: {path} must end in {' or '.join(FORMATS)}")
    check_matplotlib()


def check_matplotlib() -> None:
    """Raise BadInput where it is not installed."""
    if find_spec("matplotlib") is None:
        raise BadInput("--plot needs matplotlib, which is not installed; install it with pip install 'podplan[plot]'")


def plotted(plot: Plot, path: Path) -> bytes:
    """Return the picture in the format of the path; the same bytes for the same plot."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "podplan"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    if plot.names is not None:
        axes.bar(plot.names, [value or 0.0 for value in plot.curves[0].y])
        axes.tick_params(axis="x", rotation=30)
    else:
        line = "none" if plot.points else "solid"
        for curve in plot.curves:
            points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", linestyle=line, label=curve.name)
        if len(plot.curves) > 1:
            axes.legend()
        if plot.logarithmic:
            axes.set_xscale("log")
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    held = BytesIO()
    figure.savefig(held, format=path.suffix.lower().removeprefix("."), dpi=120)
    return held.getvalue()
