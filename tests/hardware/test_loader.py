"""Names, aliases, paths and refusals of the hardware catalogue."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ground.errors import BadInput
from ground.files import read_yaml
from ground.validation import plain
from hardware.loader import CATALOG, catalogue_entry, hardware_aliases, hardware_names, load_hardware

OPS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"}


def raw(name: str) -> dict[str, Any]:
    """Return an entry as plain data."""
    return plain(load_hardware(name), mode="json", exclude_none=True)


def write(folder: Path, data: dict[str, Any]) -> str:
    """Write an entry to a file and return its path as text."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return str(path)


def test_the_catalogue_holds_every_machine_with_usable_facts() -> None:
    """Every cluster that the documentation names is there."""
    ascend = ["910b", "910b3", "910b4", "910b4-1", "910c", "950dt", "950pr", "cm384"]
    hopper = ["h100", "h20", "h20-3e", "h200", "h800"]
    others = ["a100", "b200", "b300", "gb200", "gb300", "l40s", "mi300x", "mi325x", "mi355x", "rtx-pro-6000"]
    assert hardware_names() == sorted([*ascend, *hopper, *others])


@pytest.mark.parametrize("name", hardware_names())
def test_every_entry_loads_under_its_own_name(name: str) -> None:
    """An entry is called like its file and is found in any case."""
    assert load_hardware(name.upper()).name == name


@pytest.mark.parametrize("name", hardware_names())
def test_every_entry_keeps_the_schema(tmp_path: Path, name: str) -> None:
    """A file of one's own is checked against the schema: as such each entry gives the same, to the types of numbers."""
    checked = load_hardware(shutil.copy(CATALOG / f"{name}.yaml", tmp_path))
    assert repr(checked) == repr(load_hardware(name))


@pytest.mark.parametrize("name", hardware_names())
def test_aliases_of_the_loader_are_those_of_the_entry(name: str) -> None:
    """The loader's table repeats the entries' aliases exactly."""
    assert sorted(load_hardware(name).aliases) == sorted(
        alias for alias, to in hardware_aliases().items() if to == name
    )


def test_an_alias_finds_its_entry() -> None:
    """A spelled-out product name is accepted for the short one."""
    assert load_hardware("CloudMatrix384").name == "cm384"


def test_a_path_is_read(tmp_path: Path) -> None:
    """A cluster of one's own comes from a file."""
    data = raw("h100") | {"name": "mine"}
    assert load_hardware(write(tmp_path, data)).name == "mine"


def test_loading_reads_one_file_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for one entry does not parse the others."""
    read: list[Path] = []

    def spy(path: Path) -> object:
        read.append(path)
        return read_yaml(path)

    monkeypatch.setattr("hardware.loader.read_yaml", spy)
    catalogue_entry.cache_clear()
    assert load_hardware("h20") is load_hardware("H20")
    assert read == [CATALOG / "h20.yaml"]


def test_an_unknown_name_suggests_the_nearest() -> None:
    """A slip of the finger is answered with what was probably meant."""
    with pytest.raises(BadInput, match="did you mean"):
        load_hardware("cm38")


def test_a_missing_file_is_named() -> None:
    """A path that does not exist is the user's error."""
    with pytest.raises(BadInput, match=r"nowhere\.yaml"):
        load_hardware("nowhere.yaml")


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    """A misspelt field is an error, not ignored."""
    with pytest.raises(BadInput, match="kv_plan"):
        load_hardware(write(tmp_path, raw("h100") | {"kv_plan": "ib"}))


def test_an_unknown_plane_is_refused(tmp_path: Path) -> None:
    """KV cannot travel over a plane that the entry does not describe."""
    with pytest.raises(BadInput, match="ethernet"):
        load_hardware(write(tmp_path, raw("h100") | {"kv_plane": "ethernet"}))


def test_a_value_without_a_source_is_refused(tmp_path: Path) -> None:
    """No number enters without saying where it comes from."""
    data = raw("h100")
    del data["device"]["memory_bytes"]["source"]
    with pytest.raises(BadInput, match="source"):
        load_hardware(write(tmp_path, data))


@pytest.mark.parametrize("name", hardware_names())
def test_assumed_values_say_why(name: str) -> None:
    """An assumed fit explains what it was taken from."""
    hw = load_hardware(name)
    fits = [*hw.kernels.gemm.values(), *hw.kernels.grouped_gemm.values(), *hw.collectives, *hw.exchanges]
    fits += [hw.kernels.mla_decode, hw.kernels.gqa_decode, hw.kernels.prefill_attention, hw.kernels.vector]
    assert [fit.source for fit in fits if fit.kind == "assumed" and not fit.note] == []


@pytest.mark.parametrize("name", hardware_names())
def test_every_scope_knows_every_collective(name: str) -> None:
    """No group of devices is without a fit for any collective."""
    hw = load_hardware(name)
    known = {(fit.op, fit.scope) for fit in hw.collectives if not fit.in_graph}
    assert known == {(op, scope.name) for op in OPS for scope in hw.scopes}


@pytest.mark.parametrize("name", hardware_names())
def test_every_peak_has_its_kernels(name: str) -> None:
    """A dtype with a peak can be multiplied, dense and grouped."""
    hw = load_hardware(name)
    assert set(hw.device.peak_flops_per_second) == set(hw.kernels.gemm) == set(hw.kernels.grouped_gemm)


@pytest.mark.parametrize("name", hardware_names())
def test_every_entry_exchanges_both_ways_in_both_modes(name: str) -> None:
    """Dispatch and combine exist for decode and for prefill, once each."""
    found = sorted((fit.direction, fit.mode) for fit in load_hardware(name).exchanges)
    assert found == [(way, mode) for way in ("combine", "dispatch") for mode in ("low_latency", "normal")]


def test_cloudmatrix_adds_up() -> None:
    """48 nodes of 16 dies are 768 dies and 384 chips, 49.2 TB of memory (arXiv 2506.12708, section 3)."""
    hw = load_hardware("cm384")
    devices = hw.nodes.value * hw.devices_per_node.value
    assert devices == 768
    assert devices / hw.devices_per_chip.value == 384
    assert devices * hw.device.memory_bytes.value == pytest.approx(49.2e12, rel=0.01)


def test_catalogue_holds_nothing_but_entries() -> None:
    """Whatever lies in the folder is an entry."""
    assert {path.suffix for path in CATALOG.iterdir()} == {".yaml"}
