"""Data classes from plain data that is known to be right."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from ground.records import Limits, from_dict


@dataclass(frozen=True, kw_only=True)
class _Fan:
    kind: Literal["fan"] = "fan"
    blades: int


@dataclass(frozen=True, kw_only=True)
class _Pump:
    kind: Literal["pump", "compressor"] = "pump"
    litres: float


@dataclass(frozen=True, kw_only=True)
class _Machine:
    name: str
    parts: Annotated[list[_Fan], Limits(min_length=1)]
    cooler: _Fan | _Pump
    spare: _Fan | None = None
    peaks: dict[str, _Pump]
    share: Annotated[float, Limits(gt=0)] | None = None


def test_parts_are_what_their_fields_are() -> None:
    """Lists, mappings, what may be absent, one of several by its kind; whole numbers of a float field are floats."""
    data = {
        "name": "x",
        "parts": [{"blades": 3}, {"blades": 4}],
        "cooler": {"kind": "compressor", "litres": 2},
        "spare": {"blades": 5},
        "peaks": {"high": {"litres": 1}},
        "share": 1,
    }
    machine = from_dict(_Machine, data)
    assert machine == _Machine(
        name="x",
        parts=[_Fan(blades=3), _Fan(blades=4)],
        cooler=_Pump(kind="compressor", litres=2.0),
        spare=_Fan(blades=5),
        peaks={"high": _Pump(litres=1.0)},
        share=1.0,
    )
    assert isinstance(machine.share, float)
    assert isinstance(machine.peaks["high"].litres, float)


def test_what_is_not_known_is_no_field() -> None:
    """Data that is not right after all makes nothing."""
    with pytest.raises((TypeError, KeyError)):
        from_dict(_Fan, {"blades": 3, "colour": "red"})
    with pytest.raises(TypeError):
        from_dict(_Fan, {})
