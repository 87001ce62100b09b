"""From pydantic's report to one sentence."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from pydantic import Field, model_validator

from ground.errors import BadInput
from ground.records import Limits, Name, Sourced, Stated
from ground.strict import Strict
from ground.validation import plain, validate


class _Fan(Strict):
    kind: Literal["fan"] = "fan"
    blades: int = Field(gt=0)


class _Pump(Strict):
    kind: Literal["pump"] = "pump"
    litres: float


class _Machine(Strict):
    name: str
    parts: list[_Fan] = []
    cooler: _Fan | _Pump | None = Field(default=None, discriminator="kind")
    peaks: dict[Literal["bf16", "fp8"], Sourced] = {}

    @model_validator(mode="after")
    def _has_parts(self) -> "_Machine":
        if self.name == "empty":
            raise ValueError("a machine needs parts")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatedFan(Stated):
    kind: Literal["fan"] = "fan"
    blades: Annotated[int, Limits(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatedPump(Stated):
    kind: Literal["pump"] = "pump"
    litres: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatedMachine(Stated):
    name: str
    parts: list[_StatedFan] = field(default_factory=list)
    cooler: _StatedFan | _StatedPump | None = field(default=None, metadata={"discriminator": "kind"})
    peaks: dict[Literal["bf16", "fp8"], Sourced] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "empty":
            raise ValueError("a machine needs parts")


@pytest.mark.parametrize("model", [_Machine, _StatedMachine], ids=["model", "data class"])
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "m.yaml: must be a mapping of keys to values, not nothing"),
        ([], "m.yaml: must be a mapping of keys to values, not a list"),
        ({}, "m.yaml: name is missing"),
        ({"nmae": "x"}, "m.yaml: nmae is not a known key; did you mean name?"),
        ({"name": "x", "zzz": 1}, "m.yaml: zzz is not a known key; accepted are name, parts, cooler, peaks"),
        ({"name": 3}, "m.yaml: name: must be a valid string, not 3"),
        (
            {"name": "x", "parts": [{"blades": 2}, {"blades": 0}]},
            "m.yaml: parts[1].blades: must be greater than 0, not 0",
        ),
        ({"name": "x", "parts": [{"blade": 2}]}, "m.yaml: parts[0].blade is not a known key; did you mean blades?"),
        (
            {"name": "x", "cooler": {"kind": "fan", "blade": 1}},
            "m.yaml: cooler.blade is not a known key; did you mean blades?",
        ),
        ({"name": "x", "cooler": {"kind": "pump", "litres": "a"}}, "m.yaml: cooler.litres: must be a valid number, "),
        ({"name": "x", "cooler": {"kind": "ice"}}, "m.yaml: cooler: key 'kind' must be 'fan', 'pump', not 'ice'"),
        (
            {"name": "x", "cooler": {"kind": "i" * 90}},
            f"m.yaml: cooler: key 'kind' must be 'fan', 'pump', not '{'i' * 56}...",
        ),
        ({"name": "x", "cooler": {}}, "m.yaml: cooler: key 'kind' must be given"),
        ({"name": "x", "peaks": {"bf16": {"value": 1, "kind": "datasheet"}}}, "m.yaml: peaks.bf16.source is missing"),
        ({"name": "empty"}, "m.yaml: a machine needs parts"),
    ],
)
def test_the_first_wrong_field_is_named(model: type[object], data: object, told: str) -> None:
    """The path is the one in the file, without pydantic's own tags, and near keys are offered."""
    with pytest.raises(BadInput) as caught:
        validate(model, data, "m.yaml")
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("model", [_Machine, _StatedMachine], ids=["model", "data class"])
def test_what_is_right_is_returned(model: type[_Machine]) -> None:
    """A valid mapping becomes the model."""
    machine = validate(model, {"name": "x", "parts": [{"blades": 3}]}, "m.yaml")
    assert machine.parts[0].blades == 3


def test_a_data_class_becomes_plain_data_again() -> None:
    """What is written is what was read, with the defaults or without."""
    data = {"name": "x", "parts": [{"kind": "fan", "blades": 3}], "cooler": {"kind": "pump", "litres": 0.5}}
    machine = validate(_StatedMachine, data, "m.yaml")
    assert plain(machine) == {**data, "peaks": {}}
    assert plain(machine, exclude_defaults=True) == data | {"parts": [{"blades": 3}], "cooler": {"litres": 0.5}}


@dataclass(frozen=True)
class _Called:
    name: Name


@pytest.mark.parametrize("name", ["--help", "-rf", "a\nb", "", " a", "a\x1b[31m", "a" * 201])
def test_a_name_is_printable_and_no_flag(name: str) -> None:
    """What a model is called reaches shells and terminals."""
    assert validate(_Called, {"name": "Qwen3 8B/é"}, "f").name == "Qwen3 8B/é"
    with pytest.raises(BadInput, match="must be a name of 1 to 200 printable characters"):
        validate(_Called, {"name": name}, "f")
