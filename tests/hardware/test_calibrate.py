"""Fits from measured times: known curves come back, bad rows do not bend them, and the catalogue's are reproducible."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ground.yamldata import to_yaml
from hardware.calibrate import calibrate, overlay
from hardware.fits import CALIBRATION, Product, attention_seconds, collective_seconds, exchange_seconds, matmul_seconds
from hardware.loader import hardware_names, load_hardware
from hardware.measurements import Measurement, read_measurements
from hardware.spec import MatmulFit

HARDWARE = load_hardware("h100")
SHAPES = [(rows, 8192, depth) for rows in (1, 8, 32, 128, 512, 2048, 8192) for depth in (1024, 8192)]


def products(fit: MatmulFit, factor: float = 1.0) -> list[Measurement]:
    """Return the times that ``fit`` gives on ``SHAPES``, the last one times ``factor``."""
    times = [float(matmul_seconds(HARDWARE.device, "bf16", fit, Product(1, *shape))) for shape in SHAPES]
    times[-1] *= factor
    names = ("rows", "columns", "depth")
    return [
        Measurement(
            "gemm", {"dtype": "bf16"}, {"groups": 1.0} | dict(zip(names, shape, strict=True)), seconds, "1", "here"
        )
        for shape, seconds in zip(SHAPES, times, strict=True)
    ]


@settings(max_examples=12, deadline=None)
@given(st.floats(0.3, 0.95), st.floats(0, 200), st.floats(0.5, 0.98), st.floats(0, 0.9), st.floats(1e-6, 2e-5))
def test_a_known_curve_comes_back(peak: float, half: float, memory: float, serial: float, floor: float) -> None:
    """Times that a fit produced are met within 3 % by the fit found for them, whatever the entry had before."""
    true = replace(
        HARDWARE.kernels.gemm["bf16"],
        peak_fraction=peak,
        half_rows=half,
        memory_fraction=memory,
        serial_fraction=serial,
        floor_seconds=floor,
    )
    (found,) = calibrate(HARDWARE, products(true))
    assert np.median(np.abs(found.after)) < 0.03
    assert found.fit.kind == "fitted" and found.fit.source == "here"


def test_one_bad_row_does_not_bend_the_curve() -> None:
    """A time three times too long moves the others' errors by less than 3 %."""
    true = HARDWARE.kernels.gemm["bf16"]
    (found,) = calibrate(HARDWARE, products(true, factor=3.0))
    assert np.abs(found.after[:-1]).max() < 0.03
    assert found.worst.shape["rows"] == SHAPES[-1][0]


@pytest.mark.parametrize("name", hardware_names())
def test_the_catalogue_is_reproducible(name: str) -> None:
    """Every fit of an entry that rests on packaged measurements comes out of them again, within 5 % in the median."""
    hw = load_hardware(name)
    rows = read_measurements(sorted(CALIBRATION.glob("*.csv")), name)
    if not rows:
        return
    for found in calibrate(hw, rows):
        ratio = (1 + found.after) / (1 + found.before)
        assert np.median(np.abs(ratio - 1)) <= 0.05, found.family
        assert found.median_after <= 0.08, found.family


def test_collectives_attention_and_exchanges_come_back() -> None:
    """Times of other kinds, produced by other fits than the entry's, are met within a per cent."""
    hw = load_hardware("cm384")
    rows = []
    for size in (2.0**10, 2.0**16, 2.0**22, 2.0**28):
        fit = replace(
            hw.collectives[5], protocols=[replace(p, latency_seconds=9e-6) for p in hw.collectives[5].protocols]
        )
        seconds = float(collective_seconds(hw, fit, size, 8.0))
        words = {"scope": fit.scope, "in_graph": "no"}
        rows.append(Measurement(fit.op, words, {"ranks": 8.0, "message_bytes": size}, seconds, "1", "here"))
    attention = replace(hw.kernels.mla_decode, peak_fraction=0.5)
    for flops, moved in ((1e12, 1e6), (0.0, 1e10)):
        seconds = float(attention_seconds(hw.device, attention, flops, moved, 4096.0))
        rows.append(
            Measurement("mla_decode", {}, {"flops": flops, "bytes": moved, "mean_keys": 4096.0}, seconds, "1", "here")
        )
    exchange = hw.exchanges[0]
    for payload in (1e6, 8e6, 3e7):
        shape = {"degree": 48.0, "payload_bytes": payload}
        seconds = 1.3 * float(exchange_seconds(hw, exchange, payload, 48.0))
        rows.append(Measurement(exchange.direction, {"mode": exchange.mode}, shape, seconds, "1", "here"))
    found = calibrate(hw, rows)
    assert [each.median_after < 0.01 for each in found] == [True, True, True]
    assert 48 in [point["degree"] for point in overlay(hw, "x", found)["exchanges"][0]["points"]]


def test_launches_and_copies_fill_host_and_vector(tmp_path: Path) -> None:
    """A written overlay is read as hardware, with the measured values and nothing else changed."""
    rows = [
        Measurement("eager_launch", {}, {}, 7e-6, "1", "here"),
        Measurement("eager_launch", {}, {}, 8e-6, "1", "here"),
    ]
    rows += [Measurement("memory_copy", {}, {"bytes": 2e9}, 1e-3, "1", "here")]
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(overlay(HARDWARE, "mine", calibrate(HARDWARE, rows))))
    mine = load_hardware(str(path))
    assert mine.name == "mine"
    assert mine.host.eager_launch_seconds.value == pytest.approx(7.5e-6)
    assert mine.host.graph_launch_seconds == HARDWARE.host.graph_launch_seconds
    assert mine.kernels.gemm == HARDWARE.kernels.gemm
    bandwidth = HARDWARE.device.memory_bandwidth_bytes_per_second.value * mine.kernels.vector.memory_fraction
    assert 2e9 / bandwidth + mine.kernels.vector.floor_seconds == pytest.approx(1e-3, rel=0.02)
