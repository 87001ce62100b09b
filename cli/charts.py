"""Charts as inline SVG, without scripts: curves with limits, stacked bars, and the map of a cluster's ranks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement

from cli.plots import Plot
from ground.units import format_count

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 24, 45
COLOURS = (
    *("#2563a8", "#c2570c", "#2f855a", "#8a4fbf", "#b83280", "#718096", "#b7791f"),
    *("#2c7a7b", "#9b2c2c", "#4a5568", "#d69e2e", "#0987a0", "#97266d", "#276749"),
)
HUES = {"prefill": 212, "decode": 24, "mixed": 150}
TICKS = 5
BAR, ROW, CELL = 26, 48, 12
NODES_A_ROW = 48


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
    marks = [(mark.x, mark.y) for mark in plot.marks]
    across = ticks(max([x for x, _ in (*points, *marks)] + [at for at, _ in plot.x_limits], default=1.0) or 1.0)
    up = ticks(max([y for _, y in (*points, *marks)] + [at for at, _ in plot.y_limits], default=1.0) or 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x / across[-1] * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / up[-1] * (HEIGHT - TOP - BOTTOM),
        )

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
    edge_x, edge_y = WIDTH - RIGHT, HEIGHT - BOTTOM
    for limit, told in plot.y_limits:
        _, y = place(0, limit)
        drawn(picture, "line", x1=LEFT, x2=edge_x, y1=y, y2=y, class_="limit")
        drawn(picture, "text", told, x=LEFT + 5, y=y + 13, class_="limit")
    for limit, told in plot.x_limits:
        x, _ = place(limit, 0)
        drawn(picture, "line", x1=x, x2=x, y1=TOP, y2=edge_y, class_="limit")
        drawn(picture, "text", told, x=x + 4, y=TOP + 10, class_="limit")
    for mark in plot.marks:
        x, y = place(mark.x, mark.y)
        drawn(picture, "circle", cx=x, cy=y, r=7, fill="none", stroke="#111", stroke_width=2)
        right = x > WIDTH / 2
        drawn(
            picture, "text", mark.told, x=x + (-10 if right else 10), y=y + 18, text_anchor="end" if right else "start"
        )
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
