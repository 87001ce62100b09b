"""Names, aliases, paths and refusals of the hardware catalogue."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ground.errors import BadInput
from ground.validation import plain
from hardware.loader import CATALOG, hardware_aliases, hardware_names, load_hardware

OPS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"}


def test_the_catalogue_holds_every_machine_with_usable_facts() -> None:
    """Every cluster that the documentation names is there."""
    ascend = ["910b", "910b3", "910b4", "910b4-1", "910c", "950dt", "950pr", "cm384"]
    hopper = ["h100", "h20", "h20-3e", "h200", "h800"]
    others = ["a100", "b200", "b300", "gb200", "gb300", "l40s", "mi300x", "mi325x", "mi355x", "rtx-pro-6000"]
    assert hardware_names() == tuple(sorted([*ascend, *hopper, *others]))
    assert {path.suffix for path in CATALOG.iterdir()} == {".yaml"}


@pytest.mark.parametrize("name", hardware_names())
def test_every_entry_is_found_and_keeps_the_schema(tmp_path: Path, name: str) -> None:
    """By its name in any case and its aliases; checked as a file of one's own it is the same to the numbers' types."""
    entry = load_hardware(name.upper())
    assert entry.name == name
    assert sorted(entry.aliases) == sorted(alias for alias, to in hardware_aliases().items() if to == name)
    assert all(load_hardware(alias.upper()) is entry for alias in entry.aliases)
    assert repr(load_hardware(shutil.copy(CATALOG / f"{name}.yaml", tmp_path))) == repr(entry)


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"kv_plan": "ib"}, "kv_plan"),
        ({"kv_plane": "ethernet"}, "ethernet"),
        ({"nodes": {"value": 1, "kind": "assumed"}}, "source"),
    ],
    ids=["unknown key", "unknown plane", "no source"],
)
def test_a_file_of_ones_own_is_checked(tmp_path: Path, own: dict[str, Any], named: str) -> None:
    """Misspelt fields, planes that the entry does not describe and numbers without a source are refused by name."""
    data = plain(load_hardware("h100"), mode="json", exclude_none=True) | {"name": "mine"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    assert load_hardware(str(path)).name == "mine"
    path.write_text(yaml.safe_dump(data | own), encoding="utf-8")
    with pytest.raises(BadInput, match=named):
        load_hardware(str(path))


@pytest.mark.parametrize("name", hardware_names())
def test_every_entry_is_complete(name: str) -> None:
    """Every peak can be multiplied, dense and grouped; every scope has every collective, outside a graph; tokens are
    exchanged both ways in both modes, once each; what is assumed says what it was taken from.
    """
    hw = load_hardware(name)
    assert set(hw.device.peak_flops_per_second) == set(hw.kernels.gemm) == set(hw.kernels.grouped_gemm)
    known = {(fit.op, fit.scope) for fit in hw.collectives if not fit.in_graph}
    assert known == {(op, scope.name) for op in OPS for scope in hw.scopes}
    found = sorted((fit.direction, fit.mode) for fit in hw.exchanges)
    assert found == [(way, mode) for way in ("combine", "dispatch") for mode in ("low_latency", "normal")]
    fits = [*hw.kernels.gemm.values(), *hw.kernels.grouped_gemm.values(), *hw.collectives, *hw.exchanges]
    fits += [hw.kernels.mla_decode, hw.kernels.gqa_decode, hw.kernels.prefill_attention, hw.kernels.vector]
    assert [fit.source for fit in fits if fit.kind == "assumed" and not fit.note] == []


def test_cloudmatrix_adds_up() -> None:
    """48 nodes of 16 dies are 768 dies and 384 chips, 49.2 TB of memory (arXiv 2506.12708, section 3)."""
    hw = load_hardware("cm384")
    devices = hw.nodes.value * hw.devices_per_node.value
    assert devices == 768
    assert devices / hw.devices_per_chip.value == 384
    assert devices * hw.device.memory_bytes.value == pytest.approx(49.2e12, rel=0.01)
