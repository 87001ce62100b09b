"""`plan supernode`: sizes of a supernode by what their switches cost and how full jobs leave them."""

from typing import Annotated

from cli.options import Json, Text, argument, option
from cli.output import Screen, print_json
from podplan.supernodes import supernode as compared


def command(
    hw: Annotated[str, argument("HARDWARE", "Catalogue name or path to a hardware YAML.")] = "cm384",
    sizes: Annotated[Text, option("--sizes", "CHIPS", "Sizes by commas, such as 224,384 [parts of it].")] = None,
    blocks: Annotated[
        Text,
        option("--blocks", "B", "Chips that must share one: mean=10.08,largest=64, 1:50,8:30 or manifests [first]."),
    ] = None,
    json: Json = False,
) -> None:
    """Say how many switches supernodes of several sizes take, and how full jobs leave them.

    \b
    Examples:
      plan supernode cm384
      plan supernode cm384 --sizes 192,256,288,352,384 --blocks mean=11.28,largest=128
      plan supernode cm384 --blocks plan-r1/manifest.yaml,plan-qwen/manifest.yaml

    Blocks come in any order; one that does not fit begins the next supernode.
    """
    found = compared(hw, sizes=sizes or "", blocks=blocks)
    if json:
        print_json(found.to_dict())
        return
    screen = Screen()
    names = ["chips", "nodes", "switches", "ports used", "chips per switch", "chips allocated", "allocated per switch"]
    shown = [[_cell(value) for value in row.values()] for row in found.rows()]
    screen.text(f"{hw}, {found.headline}:")
    screen.table(names, shown, right=names)


def _cell(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, float) and value <= 1 else f"{value:.4g}"
