"""`plan hardware`."""

from pathlib import Path

import pytest

from cli.main import main
from hardware.loader import gaps, hardware_names, load_hardware
from hardware.values import sourced_values
from tests.shell import answered, printed, refused


def test_one_entry_shows_every_value_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    """As many rows as the entry has values and fits."""
    shown = printed(capsys, "hardware", "CM384")
    for path, held in sourced_values(load_hardware("cm384")):
        assert any(line.startswith(f"{path} ") for line in shown.splitlines())
        assert all(word in shown for word in held.source.split())


def test_check_tells_what_is_assumed_and_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON say the same."""
    spec = load_hardware("cm384")
    assumed = [path for path, held in sourced_values(spec) if held.kind == "assumed"]
    shown = printed(capsys, "hardware", "cm384", "--check")
    assert shown.count("\n  assumed  ") == len(assumed)
    (entry,) = answered(capsys, "hardware", "cm384", "--check")["hardware"]
    assert [item["field"] for item in entry["assumed"]] == assumed
    assert [item["field"] for item in entry["missing"]] == [gap.field for gap in gaps(spec)]


def test_check_says_what_an_entry_is_based_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Whose figures stand in, and which types its weights may have."""
    assert "based on gb200: the same rack" in printed(capsys, "hardware", "gb300", "--check")
    (entry,) = answered(capsys, "hardware", "l40s", "--check")["hardware"]
    assert entry["based_on"]["name"] == "h100"
    assert entry["weights"] == {"multiplied": ["bf16", "fp8", "int8"], "dequantised": ["int4", "mxfp4", "nvfp4"]}
    assert "price_usd_per_chip_hour" in [item["field"] for item in entry["missing"]]


def test_check_lists_everything_that_is_wrong_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All fields at once, so that an entry is mended in one go; without --check the first alone."""
    path = tmp_path / "mine.yaml"
    path.write_text("schema_version: 1\nname: mine\ntitel: My machine\ndevice: {title: GPU}\n", encoding="utf-8")
    assert main(["hardware", str(path), "--check"]) == 2
    shown = capsys.readouterr().out
    for told in ("titel is not a known key; did you mean title", "device.memory_bytes is missing", "scopes is missing"):
        assert f"wrong    {told}" in shown
    (entry,) = answered(capsys, "hardware", str(path), "--check", code=2)["hardware"]
    assert len(entry["problems"]) == shown.count("  wrong  ")
    assert main(["hardware", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    path.write_text("name: mine\nbased_on: {name: h101, why: sibling}\n", encoding="utf-8")
    assert main(["hardware", str(path), "--check"]) == 2
    assert "wrong    hardware 'h101' is neither one of" in capsys.readouterr().out
    path.write_text("name: [", encoding="utf-8")
    refused(capsys, "line", "hardware", str(path), "--check")


def test_every_entry_is_listed_with_its_size(capsys):
    """All of CloudMatrix384 is 48 nodes, 384 chips and 768 dies (arXiv 2506.12708 section 3)."""
    shown = printed(capsys, "hardware")
    assert all(name in shown for name in hardware_names())
    entries = {entry["name"]: entry for entry in answered(capsys, "hardware")["hardware"]}
    assert (entries["cm384"]["nodes"], entries["cm384"]["chips"], entries["cm384"]["devices"]) == (48, 384, 768)
    assert answered(capsys, "hardware", "cm384")["spec"]["name"] == "cm384"


def test_an_engines_experts_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line per measured shape; without an engine there is nothing to draw."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "experts.svg"
    assert main(["hardware", "h200", "--engine", "vllm", "--plot", str(picture)]) == 0
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    refused(capsys, "give --engine with it", "hardware", "h200", "--plot", str(picture), "--force")
