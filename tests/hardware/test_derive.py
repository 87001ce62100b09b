"""Entries that are based on a sibling: what they take over, how it is scaled and marked, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ground.validation import plain
from hardware.loader import hardware_names, load_hardware
from hardware.spec import CollectiveFit, HardwareSpec
from hardware.values import sourced_values

HERE = "https://example.org/measured"


def value(number: float) -> dict[str, Any]:
    """Return a sourced number; ``here`` is spelt out by the entry's ``sources``."""
    return {"value": number, "kind": "datasheet", "source": "here"}


def small(base: str = "h100", **more: Any) -> dict[str, Any]:
    """Return the least that an entry of its own must say: name, sibling, peaks and memory."""
    return {
        "schema_version": 1,
        "name": "mine",
        "title": "A server of one's own",
        "sources": {"here": HERE},
        "based_on": {"name": base, "why": "the same server with another GPU"},
        "device": {
            "title": "A GPU",
            "peak_flops_per_second": {"bf16": value(2.0e15)},
            "memory_bytes": value(2.0e11),
            "memory_bandwidth_bytes_per_second": value(8.0e12),
        },
    } | more


def load(folder: Path, data: dict[str, Any], name: str = "mine.yaml") -> HardwareSpec:
    """Write an entry and load it."""
    (folder / name).write_text(yaml.safe_dump(data), encoding="utf-8")
    return load_hardware(str(folder / name))


def scopes(node_rate: float, cluster_rate: float) -> list[dict[str, Any]]:
    """Return a server of eight and a cluster at other bandwidths than the H100's 450 and 50 GB/s."""
    return [
        {"name": name, "devices": value(size), "plane": plane, "bandwidth_bytes_per_second": value(rate)}
        | {"latency_seconds": value(3e-6)}
        for name, size, plane, rate in (("node", 8, "nvlink", node_rate), ("cluster", 0, "ib", cluster_rate))
    ]


def collective(hw: HardwareSpec, op: str, scope: str) -> CollectiveFit:
    """Return the fit outside a graph."""
    return next(fit for fit in hw.collectives if (fit.op, fit.scope, fit.in_graph) == (op, scope, False))


def test_an_entry_needs_no_more_than_its_device(tmp_path: Path) -> None:
    """Kernels keep their shares of peak and bandwidth; every one is assumed, without residual, and says whose it is."""
    mine, base = load(tmp_path, small()), load_hardware("h100")
    fit, other = mine.kernels.gemm["bf16"], base.kernels.gemm["bf16"]
    assert (fit.peak_fraction, fit.memory_fraction) == (other.peak_fraction, other.memory_fraction)
    assert fit.source == other.source
    assert mine.device.memory_bytes.source == HERE
    own = {"device.peak_flops_per_second.bf16", "device.memory_bytes", "device.memory_bandwidth_bytes_per_second"}
    taken = {path: held for path, held in sourced_values(mine) if path not in own}
    assert all(held.kind == "assumed" and (held.note or "").startswith("of h100") for held in taken.values())
    assert all(getattr(held, "median_residual", None) is None for held in taken.values())
    assert set(mine.kernels.grouped_gemm) == {"bf16"}  # for the entry states no peak of FP8, as its sibling does


def test_rates_follow_the_bandwidths(tmp_path: Path) -> None:
    """Twice the link inside a server and half the network: rates follow, start-up times do not."""
    mine, base = load(tmp_path, small(scopes=scopes(9e11, 2.5e10))), load_hardware("h100")
    for scope, ratio in (("node", 2.0), ("cluster", 0.5)):
        ours, theirs = (collective(hw, "all_gather", scope).protocols[0] for hw in (mine, base))
        assert ours.bandwidth_bytes_per_second == pytest.approx(ratio * theirs.bandwidth_bytes_per_second)
        assert ours.latency_seconds == theirs.latency_seconds
    ratios = {
        point.degree: point.bandwidth_bytes_per_second / other.bandwidth_bytes_per_second
        for point, other in zip(mine.exchanges[0].points, base.exchanges[0].points, strict=True)
    }
    assert ratios.pop(8) == pytest.approx(2.0)
    assert list(ratios.values()) == pytest.approx([0.5] * len(ratios))
    assert "of h100: rates times 2, 0.5 as the links" in (mine.exchanges[0].note or "")


def test_what_is_stated_wins(tmp_path: Path) -> None:
    """A collective, a kernel and a host cost of the entry's own stand as written, beside what is taken over."""
    own = plain(collective(load_hardware("h200"), "all_reduce", "node"))
    data = small(collectives=[own], host={"eager_launch_seconds": value(9e-6)})
    mine, base = load(tmp_path, data), load_hardware("h100")
    assert plain(collective(mine, "all_reduce", "node")) == own
    assert mine.host.eager_launch_seconds.value == 9e-6
    assert mine.host.graph_launch_seconds.value == base.host.graph_launch_seconds.value
    assert len(mine.collectives) == len(base.collectives)


def test_an_overlay_of_the_same_device_keeps_what_was_measured(tmp_path: Path) -> None:
    """``same_device`` changes nothing but what the overlay states: kinds and residuals stay."""
    base = load_hardware("h200")
    fit = plain(base.kernels.gemm["bf16"]) | {"peak_fraction": 0.7, "source": "here"}
    data = {
        "schema_version": 1,
        "name": "our-h200",
        "title": "Ours",
        "sources": {"here": HERE},
        "based_on": {"name": "h200", "why": "measured here", "same_device": True},
        "kernels": {"gemm": {"bf16": fit}},
    }
    mine = load(tmp_path, data)
    assert mine.kernels.gemm["bf16"].peak_fraction == 0.7
    assert mine.kernels.gemm["fp8"] == base.kernels.gemm["fp8"]
    assert (mine.device, mine.collectives, mine.exchanges) == (base.device, base.collectives, base.exchanges)


def test_a_sibling_may_be_a_file_beside_the_entry(tmp_path: Path) -> None:
    """Paths count from the entry's folder, and a chain of siblings is followed."""
    load(tmp_path, small() | {"name": "first"}, "first.yaml")
    mine = load(tmp_path, small("first.yaml"))
    assert (mine.kernels.gemm["bf16"].note or "").startswith("of first: of h100")


def test_a_loaded_entry_loads_again_unchanged(tmp_path: Path) -> None:
    """What a manifest embeds is complete: as a file of its own it is the same entry."""
    once = load_hardware("b200")
    assert load(tmp_path, plain(once, mode="json", exclude_none=True)) == once


@pytest.mark.parametrize("name", [name for name in hardware_names() if load_hardware(name).based_on])
def test_catalogue_entries_state_their_own_device(name: str) -> None:
    """An entry based on another still has its own peaks, memory, bandwidth and price, each with its source."""
    device = load_hardware(name).device
    stated = [*device.peak_flops_per_second.values(), device.memory_bytes, device.memory_bandwidth_bytes_per_second]
    assert [held.source for held in stated if held.kind != "datasheet"] == []


def test_int8_products_take_the_shares_of_fp8_where_only_their_peak_is_stated() -> None:
    """Hopper multiplies INT8 as fast as FP8; its peak is its own, the fit is FP8's and assumed."""
    for name in ("h100", "b300", "l40s"):
        hw = load_hardware(name)
        fp8, int8 = (hw.kernels.gemm[dtype] for dtype in ("fp8", "int8"))
        assert (int8.peak_fraction, int8.memory_fraction) == (fp8.peak_fraction, fp8.memory_fraction)
        assert int8.kind == "assumed"
        assert "FP8" in (int8.note or "")
    assert load_hardware("a100").kernels.gemm["int8"].note != load_hardware("h100").kernels.gemm["int8"].note
