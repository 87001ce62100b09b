"""Migrations: what their steps take and promise, and that steps lead from stage to stage."""

from pathlib import Path
from typing import Any

import pytest

from ground.errors import BadInput
from planner.manifest.document import dump_manifest
from planner.manifest.migration import Promise, Start, Step, manifest_hash, read_migration, same_content, union
from tests.manifests import manifest

ONE, TWO = manifest(decode=1), manifest(decode=2)
START = Start(name="decode-1", how="load", seconds=7.0, bytes=1e9)
STEP = Step(drain_seconds=5.0, start=[START], carries_per_second=2.0, below_seconds=3.0, stage="b.yaml")
PROMISE = Promise(requests_per_second=2.0, confidence=0.9, seconds=7.0, below_seconds=25.0, attainment_within=0.8)


def test_a_step_takes_its_longest_parts_one_after_the_other() -> None:
    """What drains goes before what starts; without either it takes no time."""
    later = START.model_copy(update={"seconds": 9.0})
    assert STEP.seconds == 7.0
    assert STEP.model_copy(update={"drain": ["decode-0"], "start": [START, later]}).seconds == 14.0
    assert STEP.model_copy(update={"start": []}).seconds == 0.0


def test_what_is_promised_of_a_window() -> None:
    """A quarter of 100 seconds is below the limits; a window without an hour of its own promises nothing."""
    assert PROMISE.attainment(100.0) == pytest.approx(0.8 * 0.75)
    assert PROMISE.attainment(20.0) == PROMISE.attainment(0.0) == 0.0


def test_stages_together_have_every_instance_once() -> None:
    """Pools that differ in their instances alone are one."""
    both = union((ONE, TWO, ONE))
    assert [[each.name for each in pool.instances] for pool in both.pools] == [["prefill-0"], ["decode-0", "decode-1"]]
    assert same_content(ONE.pools[1], TWO.pools[1]) and not same_content(*ONE.pools)
    narrow = ONE.model_copy(update={"pools": [ONE.pools[0], ONE.pools[1].model_copy(update={"microbatches": 1})]})
    assert len(union((ONE, narrow)).pools) == 3


def written(folder: Path, begin: Any = ONE, **step: Any) -> Path:
    """Write a migration from one decode instance to two, and return its path."""
    for name, stage in (("a", begin), ("b", TWO)):
        (folder / f"{name}.yaml").write_text(dump_manifest(stage), encoding="utf-8")
    migration = {
        "migration_version": 1,
        "begin": "a.yaml",
        "begin_sha256": manifest_hash(ONE),
        "steps": [STEP.model_dump() | step],
        "promise": PROMISE.model_dump(),
    }
    from ground.files import to_yaml

    path = folder / "migration.yaml"
    path.write_text(to_yaml(migration), encoding="utf-8")
    return path


def test_steps_lead_from_stage_to_stage(tmp_path: Path) -> None:
    """Each stage is read; a changed first one, another one, and steps that lead elsewhere are refused."""
    path = written(tmp_path)
    assert read_migration(path).stages == read_migration(path, ONE).stages == (ONE, TWO)
    with pytest.raises(BadInput, match="begin at another manifest; plan them from this one"):
        read_migration(path, TWO)
    for step in ({"drain": ["other"]}, {"drain": ["decode-0"]}, {"start": []}):
        with pytest.raises(BadInput, match=r"steps\[0\]: drain and start do not lead from a\.yaml to b\.yaml"):
            read_migration(written(tmp_path, **step))
    again = START.model_copy(update={"name": "decode-0"}).model_dump()
    with pytest.raises(BadInput, match="do not lead from"):
        read_migration(written(tmp_path, start=[START.model_dump(), again]))
    with pytest.raises(BadInput, match=r"begin_sha256: a\.yaml was changed"):
        read_migration(written(tmp_path, TWO))
    for old, new in (("begin: a.yaml", "begin: ../etc/a.yaml"), ("migration_version: 1", "migration_version: 2")):
        path = written(tmp_path)
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        with pytest.raises(BadInput, match=old.partition(":")[0]):
            read_migration(path)
