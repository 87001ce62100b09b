"""Curves as PNG or SVG, with matplotlib where it is installed; it is imported only when a plot is asked for."""

import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from ground.errors import BadInput
from ground.units import format_count

FORMATS = (".png", ".svg")
MOST_INSIDE = 12
"""Curves whose names stand inside the axes."""
HEADROOM = 1.1
"""Of the axis over the highest point, whose ring and words need room."""


class PlotLine(NamedTuple):
    """Points, with or without a line through them; without numbers on x, one group of bars.

    ``band`` is shaded: the least and the largest value at each point.
    """

    name: str
    x: list[float]
    y: list[float | None]
    line: bool = True
    band: tuple[list[float], list[float]] | None = None


class Mark(NamedTuple):
    """A point that is ringed and named, such as the chosen plan."""

    x: float
    y: float
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What is drawn: curves over numbers, or bars over names; limits are lines at a value, with their words."""

    title: str
    question: str = ""
    x_label: str = ""
    y_label: str
    curves: list[PlotLine]
    names: list[str] | None = None
    """Of the bars; None for lines."""
    logarithmic: bool = False
    logarithmic_y: bool = False
    x_limits: list[tuple[float, str]] = field(default_factory=list)
    y_limits: list[tuple[float, str]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


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

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    if plot.names is not None:
        bars = axes.bar(plot.names, [value or 0.0 for value in plot.curves[0].y])
        axes.bar_label(bars, ["no plan" if value is None else format_count(value) for value in plot.curves[0].y])
        axes.tick_params(axis="x", rotation=30)
    else:
        for curve in plot.curves:
            points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
            line = "solid" if curve.line else "none"
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", linestyle=line, label=curve.name)
            if curve.band is not None:
                axes.fill_between(curve.x, *curve.band, alpha=0.2)
        if plot.logarithmic:
            axes.set_xscale("log")
    for at, told in plot.x_limits:
        axes.axvline(at, color="firebrick", linestyle="dashed", label=told)
    for at, told in plot.y_limits:
        axes.axhline(at, color="firebrick", linestyle="dashed", label=told)
    for mark in plot.marks:
        axes.plot([mark.x], [mark.y], "o", markersize=12, markerfacecolor="none", markeredgecolor="black")
        axes.annotate(mark.told, (mark.x, mark.y), **_beside(axes, mark))
    if len(plot.curves) + len(plot.x_limits) + len(plot.y_limits) > 1:
        many = len(plot.curves) > MOST_INSIDE
        axes.legend(**({"fontsize": 6, "loc": "center left", "bbox_to_anchor": (1, 0.5)} if many else {"fontsize": 8}))
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set_title("\n".join([plot.title, *wrap(plot.question, 100)]), fontsize=9)
    axes.margins(x=0.12)
    if plot.logarithmic_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0, top=HEADROOM * axes.get_ylim()[1])
    axes.grid(visible=True, alpha=0.3)
    held = BytesIO()
    figure.savefig(held, format=path.suffix.lower().removeprefix("."), dpi=120)
    return held.getvalue()


def _beside(axes: Any, mark: Mark) -> dict[str, Any]:
    """Return where the words of a mark stand: on the side of it that has room."""
    low, high = axes.get_xlim()
    right = mark.x > (low + high) / 2
    side = "right" if right else "left"
    return {"xytext": (-10 if right else 10, -18), "textcoords": "offset points", "fontsize": 8, "ha": side}
