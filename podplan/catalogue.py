"""`podplan.models` and `podplan.hardware`: what is known, and where every value of it comes from.

`podplan.supernode`: sizes of a supernode by what their switches cost and how full jobs leave them.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ground.errors import BadInput
from ground.units import number_of, parse_count
from ground.validation import plain
from hardware.formats import multiplied, storable
from hardware.loader import gaps, hardware_names, load_hardware
from hardware.spec import HardwareSpec
from hardware.values import sourced_values
from models.loader import load_model, model_names
from models.parameters import count_parameters
from models.spec import ModelSpec
from planner.supernodes import Blocks, Fabric
from podplan.result import Result, Row, picked

MEAN, LARGEST = 10.08, 64  # CloudMatrix384 section 6.1.2: chips of a block on average; the largest is not stated
MOST_CHIPS = 16_384
_EXAMPLE = "mean=10.08,largest=64, 1:50,8:30,64:5 (chips:weight) or a manifest"


@dataclass(frozen=True, kw_only=True)
class ModelsResult(Result):
    """Models of the catalogue, or one that was asked for.

    Attributes:
        specs: each model's dimensions.
        one: whether one was asked for by its name, which is told whole.
    """

    specs: tuple[ModelSpec, ...]
    one: bool

    @property
    def headline(self) -> str:
        """Which models these are."""
        return self.specs[0].title if self.one else f"{len(self.specs)} models"

    def rows(self) -> list[Row]:
        """Return a row per model."""
        return [{key: value for key, value in _model(spec).items() if key != "aliases"} for spec in self.specs]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan models --json`` prints."""
        if self.one:
            return _model(self.specs[0]) | {"spec": plain(self.specs[0], mode="json")}
        return {"models": [_model(spec) for spec in self.specs]}


def _model(spec: ModelSpec) -> dict[str, Any]:
    counted = picked(count_parameters(spec), "parameters=total active_parameters=active")
    return picked(spec, "name title aliases") | counted


@dataclass(frozen=True, kw_only=True)
class HardwareResult(Result):
    """Machines of the catalogue, or one that was asked for.

    Attributes:
        specs: each machine's values, with their sources.
        one: whether one was asked for by its name, which is told whole.
    """

    specs: tuple[HardwareSpec, ...]
    one: bool

    @property
    def headline(self) -> str:
        """Which machines these are."""
        return self.specs[0].title if self.one else f"{len(self.specs)} machines"

    def rows(self) -> list[Row]:
        """Return a row per machine."""
        hidden = ("aliases", "multiplied")
        return [{key: value for key, value in _machine(spec).items() if key not in hidden} for spec in self.specs]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan hardware --json`` prints."""
        if self.one:
            spec = self.specs[0]
            return {"name": spec.name, "title": spec.title, "spec": plain(spec, mode="json")}
        return {"hardware": [_machine(spec) for spec in self.specs]}

    def checked(self) -> dict[str, Any]:
        """Return what is assumed and what is missing of each machine, as ``plan hardware --check --json`` prints."""
        return {"hardware": [_checked(spec) for spec in self.specs]}


def _machine(spec: HardwareSpec) -> dict[str, Any]:
    devices = spec.nodes.value * spec.devices_per_node.value
    return {
        **picked(spec, "name title aliases"),
        "nodes": int(spec.nodes.value),
        "devices": int(devices),
        "chips": int(devices / spec.devices_per_chip.value),
        "devices_per_chip": int(spec.devices_per_chip.value),
        "memory_bytes_per_device": spec.device.memory_bytes.value,
        "multiplied": list(multiplied(spec)),
    }


def _checked(spec: HardwareSpec) -> dict[str, object]:
    values = list(sourced_values(spec))
    return {
        "name": spec.name,
        "values": len(values),
        "based_on": plain(spec.based_on) if spec.based_on else None,
        "weights": {"multiplied": list(multiplied(spec)), "dequantised": list(storable(spec)[len(multiplied(spec)) :])},
        "assumed": [{"field": path, **picked(held, "source note")} for path, held in values if held.kind == "assumed"],
        "missing": [picked(gap, "field instead") for gap in gaps(spec)],
    }


def models(name: str | None = None) -> ModelsResult:
    """Return the models of the catalogue, or one by its name, config.json or model YAML; BadInput for an unknown one.

    >>> models().specs[0].layers > 0
    True
    """
    known = model_names() if name is None else [name]
    return ModelsResult(specs=tuple(load_model(each) for each in known), one=name is not None)


def hardware(name: str | None = None) -> HardwareResult:
    """Return the machines of the catalogue, or one by its name or hardware YAML; BadInput for an unknown one.

    >>> [spec.name for spec in hardware("cm384").specs]
    ['cm384']
    """
    known = hardware_names() if name is None else [name]
    return HardwareResult(specs=tuple(load_hardware(each) for each in known), one=name is not None)


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
    return SupernodeResult(blocks=held, table=tuple(fabric.of_size(chips, per_node, held) for chips in asked))


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
