"""`plan manifest`."""

import json
from pathlib import Path

import pytest

from planner.manifest.document import dump_manifest
from tests.manifests import manifest
from tests.shell import answered, printed, refused


def test_a_valid_manifest_is_told_with_its_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0; with --json one object."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(manifest(decode=2)))
    assert "2 x DP=8, EP=8" in printed(capsys, "manifest", "validate", str(path))
    assert answered(capsys, "manifest", "validate", str(path))["valid"] is True


def test_a_wrong_field_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and one sentence with file and path."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump_manifest(manifest()).replace("microbatches: 2", "microbatches: 3", 1))
    refused(capsys, "pools[0].microbatches", "manifest", "validate", str(path))


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The document that editors and CI check manifests with."""
    assert json.loads(printed(capsys, "manifest", "schema"))["$schema"].endswith("2020-12/schema")
