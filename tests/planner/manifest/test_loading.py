"""Weights on their way: Table 2 of CloudMatrix384, by its own arithmetic."""

import pytest

from hardware.loader import load_hardware
from models.loader import load_model
from planner.manifest.loading import checkpoint_bytes, slowest_plane, stored_seconds
from planner.manifest.schema import Manifest, Recovery
from tests.manifests import manifest as made


def test_eight_instances_share_the_store() -> None:
    """671 GB of R1 in INT8 at 2.5 GB/s: 268 s for one instance, eight times that for eight (paper: 320, 2,560)."""
    checkpoint, plane = checkpoint_bytes(load_model("deepseek-r1"), "int8"), slowest_plane(load_hardware("cm384"))[1]
    seconds = [stored_seconds(checkpoint, 37e9, 2.5e9, plane, count) for count in (1, 8)]
    assert seconds[0] == pytest.approx(268, rel=0.01)
    assert seconds[1] / seconds[0] == pytest.approx(2560 / 320)


def test_a_device_reads_no_faster_than_its_plane() -> None:
    """Of a small model on a fast store the device's own plane is the limit."""
    assert stored_seconds(1e9, 1e9, 1e12, 2.5e9) == pytest.approx(0.4)


def test_a_restart_follows_model_and_source() -> None:
    """Start-up and load; eight at once take eight loads off the store, and no longer off pooled memory."""
    manifest = made()
    pool = manifest.pools[0]
    alone, together = (manifest.start_seconds(pool, count) for count in (1, 1000))
    assert together > alone > manifest.recovery.startup_seconds
    kept = _with(manifest, pool_bytes_per_second=1e9)
    assert kept.load_seconds(pool, 1000) == pool.memory_bytes_per_device.weights / 1e9
    assert _with(manifest, restart_seconds=7.0).start_seconds(pool) == 7.0


def _with(manifest: Manifest, **recovery: float) -> Manifest:
    return manifest.model_copy(update={"recovery": Recovery.model_validate(recovery)})
