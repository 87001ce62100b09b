"""`podplan.supernode`: sizes of a supernode by what their switches cost and how full jobs leave them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ground.errors import BadInput
from ground.units import number_of, parse_count
from hardware.loader import load_hardware
from planner.supernodes import Blocks, Fabric, allocated
from podplan.result import Result, Row

MEAN, LARGEST = 10.08, 64
"""CloudMatrix384 section 6.1.2: chips of a block on average; the largest is not stated."""
MOST_CHIPS = 16_384
_EXAMPLE = "mean=10.08,largest=64, 1:50,8:30,64:5 (chips:weight) or a manifest"


@dataclass(frozen=True, kw_only=True)
class SupernodeResult(Result):
    """Supernodes of several sizes.

    Attributes:
        blocks: the blocks that fill them.
        table: a row per size.
    """

    blocks: Blocks
    table: tuple[Row, ...]

    @property
    def headline(self) -> str:
        """What fills them."""
        return f"blocks of {self.blocks.mean:.4g} chips on average, {self.blocks.sizes[-1]} at most"

    def rows(self) -> tuple[Row, ...]:
        """Return a row per size."""
        return self.table

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan supernode --json`` prints."""
        held = zip(self.blocks.sizes.tolist(), self.blocks.shares.tolist(), strict=True)
        return {"blocks": [{"chips": size, "share": share} for size, share in held], "rows": [*map(dict, self.table)]}


def supernode(hw: str = "cm384", *, sizes: str | Sequence[int] = "", blocks: str | None = None) -> SupernodeResult:
    """Compare supernodes of several sizes, in chips.

    Args:
        hw: the machine whose nodes they are made of.
        sizes: chips of each [that of the machine and its parts].
        blocks: chips of the groups that must share one: ``mean=M,largest=L``, ``chips:weight,...``, or manifests whose
            instances they are, by commas.

    Raises:
        BadInput: a size or block that cannot be.
    """
    spec = load_hardware(hw)
    per_node = int(spec.devices_per_node.value / spec.devices_per_chip.value)
    texts = sizes.split(",") if isinstance(sizes, str) and sizes else [str(size) for size in sizes]
    whole = int(spec.nodes.value) * per_node
    asked = [parse_count(text, "--sizes") for text in texts] or [whole * part // 12 for part in (6, 7, 8, 9, 11, 12)]
    held, fabric = read_blocks(blocks), Fabric()
    for chips in asked:
        if chips % per_node or chips > MOST_CHIPS:
            raise BadInput(f"--sizes: {chips} chips are no whole nodes of {per_node}, at most {MOST_CHIPS}")
    return SupernodeResult(blocks=held, table=tuple(_row(chips, per_node, held, fabric) for chips in asked))


def _row(chips: int, per_node: int, blocks: Blocks, fabric: Fabric) -> Row:
    nodes = chips // per_node
    switches = fabric.switches(nodes)
    return {
        "chips": chips,
        "nodes": nodes,
        "switches": switches,
        "switch_ports_used": fabric.use(nodes),
        "chips_per_switch": chips / switches,
        "chips_allocated": allocated(chips, blocks),
        "allocated_chips_per_switch": chips / switches * allocated(chips, blocks),
    }


def read_blocks(text: str | None) -> Blocks:
    """Return the blocks that a flag gives."""
    if text is None:
        return Blocks.doubling(MEAN, LARGEST)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if all(map(os.path.isfile, parts)):  # not Path.is_file, which raises at names that are too long
        from planner.manifest.document import read_manifest  # only manifests need it

        pools = [pool for part in parts for pool in read_manifest(Path(part)).pools]
        return Blocks.of([(-(-int(2 * pool.chips_per_instance) // 2), len(pool.instances)) for pool in pools])
    pairs = [part.partition("=" if "=" in part else ":") for part in parts]
    values = {name.strip(): number_of(value) for name, _, value in pairs}
    if any(not 0 < value < 1e9 for value in values.values()) or not values:
        raise BadInput(f"--blocks: {text[:40]!r} is not {_EXAMPLE}")
    if values.keys() <= {"mean", "largest"}:
        return Blocks.doubling(values.get("mean", MEAN), max(int(values.get("largest", LARGEST)), 1))
    return Blocks.of([(parse_count(name, "--blocks"), weight) for name, weight in values.items()])
