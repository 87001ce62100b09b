"""`plan supernode`: sizes of a supernode by what their switches cost and how full jobs leave them."""

from cli.options import JSON, Text, options
from cli.output import Screen, print_json
from podplan.options import argument, flag
from podplan.supernodes import supernode as compared


@options
def command(
    hw: str = argument("HARDWARE", "Catalogue name or path to a hardware YAML.", default="cm384"),
    sizes: Text = flag("CHIPS", "Sizes by commas, such as 224,384 [parts of it]."),
    blocks: Text = flag("B", "Chips that must share one: mean=10.08,largest=64, 1:50,8:30 or manifests [first]."),
    json: bool = JSON,
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
