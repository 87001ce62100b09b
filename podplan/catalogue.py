"""`podplan.models` and `podplan.hardware`: what is known, and where every value of it comes from."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from ground.sourced import Sourced, Stated
from ground.validation import plain
from hardware.formats import multiplied, storable
from hardware.gaps import gaps
from hardware.loader import hardware_names, load_hardware
from hardware.spec import Fitted, HardwareSpec
from models.loader import load_model, model_names
from models.parameters import count_parameters
from models.spec import ModelSpec
from podplan.result import Result, Row, picked


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
        "name": spec.name,
        "title": spec.title,
        "aliases": spec.aliases,
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
        "assumed": [
            {"field": path, "source": held.source, "note": held.note} for path, held in values if held.kind == "assumed"
        ],
        "missing": [{"field": gap.field, "instead": gap.instead} for gap in gaps(spec)],
    }


def sourced_values(spec: Stated, path: str = "") -> Iterator[tuple[str, Sourced | Fitted]]:
    """Yield every value and every fit below ``spec`` with its dotted path, in the order of the schema.

    Items of a list are called by their name, or by what tells them apart.
    """
    for each in fields(spec):
        yield from _sourced(getattr(spec, each.name), f"{path}.{each.name}" if path else each.name)


def _sourced(value: object, path: str) -> Iterator[tuple[str, Sourced | Fitted]]:
    if isinstance(value, Sourced | Fitted):
        yield path, value
    elif isinstance(value, Stated):
        yield from sourced_values(value, path)
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from _sourced(held, f"{path}.{key}")
    elif isinstance(value, list):
        for position, held in enumerate(value):
            yield from _sourced(held, f"{path}[{_called(held, position)}]")


def _called(item: object, position: int) -> str:
    names = [getattr(item, key, None) for key in ("name", "op", "scope", "direction", "mode")]
    return " ".join(str(name) for name in names if isinstance(name, str)) or str(position)


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
