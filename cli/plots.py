"""Pictures: plots as PNG or SVG by matplotlib, imported when one is asked for, and as inline SVG without scripts.

Inline are curves with limits, stacked bars, and the map of a cluster's ranks.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement

from ground.errors import BadInput
from ground.units import format_count

FORMATS = (".png", ".svg")
MOST_INSIDE = 12  # curves whose names stand inside the axes
HEADROOM = 1.1  # of the axis over the highest point, whose ring and words need room
WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 24, 45
COLOURS = (
    *("#2563a8", "#c2570c", "#2f855a", "#8a4fbf", "#b83280", "#718096", "#b7791f"),
    *("#2c7a7b", "#9b2c2c", "#4a5568", "#d69e2e", "#0987a0", "#97266d", "#276749"),
)
HUES = {"encode": 280, "prefill": 212, "decode": 24, "mixed": 150}
TICKS = 5
BAR, ROW, CELL = 26, 48, 12
NODES_A_ROW = 48


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
    names: list[str] | None = None  # of the bars; None for lines
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
        aside, side = (-10, "right") if mark.x > sum(axes.get_xlim()) / 2 else (10, "left")  # where there is room
        axes.annotate(mark.told, (mark.x, mark.y), xytext=(aside, -18), textcoords="offset points", fontsize=8, ha=side)
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


def drawn(parent: Element, tag: str, text: str = "", /, **attributes: object) -> Element:
    """Return a new element within ``parent``; ``_`` in a name stands for ``-``, which Python's keywords have not."""
    given = {key.rstrip("_").replace("_", "-"): f"{each:g}" if isinstance(each, float) else str(each)
             for key, each in attributes.items()}  # fmt: skip
    made = SubElement(parent, tag, given)
    made.text = text or None
    return made


def _picture(width: float, height: float, told: str) -> Element:
    picture = Element("svg", {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "role": "img"})
    drawn(picture, "title", told)
    return picture


def ticks(most: float) -> list[float]:
    """Return round numbers from zero to the first one from ``most`` on.

    >>> ticks(47.0)
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    """
    exact = most / TICKS
    power = 10.0 ** math.floor(math.log10(exact))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= exact * (1 - 1e-9))
    return [step * place for place in range(math.ceil(most / step - 1e-9) + 1)]


def curves(plot: Plot) -> Element:
    """Return curves from zero on, limits as dashed lines, marks with their words."""
    points = [(x, y) for curve in plot.curves for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
    points += [(mark.x, mark.y) for mark in plot.marks]
    across = ticks(max([x for x, _ in points] + [at for at, _ in plot.x_limits], default=1.0) or 1.0)
    up = ticks(max([y for _, y in points] + [at for at, _ in plot.y_limits], default=1.0) or 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        return (LEFT + x / across[-1] * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / up[-1] * (HEIGHT - TOP - BOTTOM))

    picture = _picture(WIDTH, HEIGHT, plot.title)
    _axes(picture, plot, [(place(x, 0)[0], x) for x in across], [(place(0, y)[1], y) for y in up])
    for number, curve in enumerate(plot.curves):
        colour = COLOURS[number % len(COLOURS)]
        at = [place(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
        if curve.line:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
            drawn(picture, "polyline", points=line, fill="none", stroke=colour, stroke_width=2)
        for x, y in at:
            drawn(picture, "circle", cx=round(x, 1), cy=round(y, 1), r=3, fill=colour)
        drawn(picture, "text", curve.name, x=LEFT + 10 + 110 * number, y=11, fill=colour)
    for limit, told in plot.y_limits:
        _, y = place(0, limit)
        drawn(picture, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="limit")
        drawn(picture, "text", told, x=LEFT + 5, y=y + 13, class_="limit")
    for limit, told in plot.x_limits:
        x, _ = place(limit, 0)
        drawn(picture, "line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="limit")
        drawn(picture, "text", told, x=x + 4, y=TOP + 10, class_="limit")
    for mark in plot.marks:
        x, y = place(mark.x, mark.y)
        drawn(picture, "circle", cx=x, cy=y, r=7, fill="none", stroke="#111", stroke_width=2)
        aside, anchor = (-10, "end") if x > WIDTH / 2 else (10, "start")
        drawn(picture, "text", mark.told, x=x + aside, y=y + 18, text_anchor=anchor)
    return picture


def _axes(
    picture: Element, plot: Plot, across: Iterable[tuple[float, float]], up: Iterable[tuple[float, float]]
) -> None:
    bottom = HEIGHT - BOTTOM
    for at, value in up:
        drawn(picture, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid")
        drawn(picture, "text", format_count(value), x=LEFT - 6, y=at + 4, text_anchor="end")
    for at, value in across:
        drawn(picture, "line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="grid")
        drawn(picture, "text", format_count(value), x=at, y=bottom + 17, text_anchor="middle")
    drawn(picture, "text", plot.x_label, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle")
    middle = (TOP + bottom) / 2
    turned = f"rotate(-90 14 {middle:g})"
    drawn(picture, "text", plot.y_label, x=14, y=middle, text_anchor="middle", transform=turned)


def stacked(told: str, bars: Mapping[str, Sequence[tuple[str, float, str]]]) -> Element:
    """Return a bar per name, of parts with their values and words, each as long as the others; no part is zero."""
    names = list(dict.fromkeys(part for parts in bars.values() for part, value, _ in parts if value > 0))
    legend = TOP + 18 * math.ceil(len(names) / 3)
    picture = _picture(WIDTH, legend + ROW * len(bars), told)
    for number, name in enumerate(names):
        x, y = 10 + number % 3 * (WIDTH - 20) / 3, 10.0 + 18 * (number // 3)
        drawn(picture, "rect", x=x, y=y - 8, width=10, height=10, fill=_colour(names, name))
        drawn(picture, "text", name, x=x + 15, y=y + 1)
    for row, (bar, parts) in enumerate(bars.items()):
        x, y = 10.0, legend + ROW * row + 14.0
        most = sum(value for _, value, _ in parts)
        drawn(picture, "text", bar, x=x, y=y - 3)
        for part, value, words in parts:
            if value <= 0:
                continue
            width = value / most * (WIDTH - 20)
            rect = drawn(picture, "rect", x=x, y=y, width=width, height=BAR, fill=_colour(names, part))
            drawn(rect, "title", f"{part}: {words}")
            if width > 7 * len(words):
                drawn(picture, "text", words, x=x + 4, y=y + 17, fill="#1a202c" if part == "free" else "#fff")
            x += width
    return picture


def _colour(names: Sequence[str], name: str) -> str:
    return "#e2e8f0" if name == "free" else COLOURS[names.index(name) % len(COLOURS)]


def rank_map(nodes: int, per_node: int, ranks: Iterable[tuple[str, int, int, int, str]]) -> Element:
    """Return every device of a cluster, a column per node; those that hold ranks in the colour of their instance.

    ``ranks`` are of role, number of the instance, node, device in the node, and words.
    """
    block = CELL * per_node + 18
    rows = math.ceil(nodes / NODES_A_ROW)
    wide = min(nodes, NODES_A_ROW)
    picture = _picture(CELL * wide + 20, block * rows + 4, f"{nodes} nodes of {per_node} devices")

    def corner(node: int, device: int) -> dict[str, float]:
        return {"x": 10 + CELL * (node % NODES_A_ROW), "y": block * (node // NODES_A_ROW) + 16 + CELL * device}

    for node in range(nodes):
        at = corner(node, 0)
        drawn(picture, "rect", **at, width=CELL - 1, height=CELL * per_node - 1, class_="idle")
        if node % 8 == 0:
            drawn(picture, "text", str(node), x=at["x"], y=at["y"] - 4)
    for role, instance, node, device, words in ranks:
        fill = f"hsl({HUES.get(role, 280)} 60% {(42, 66, 54)[instance % 3]}%)"
        rect = drawn(picture, "rect", **corner(node, device), width=CELL - 1, height=CELL - 1, fill=fill)
        drawn(rect, "title", words)
    return picture
