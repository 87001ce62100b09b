"""Traces: both formats, plain and packed, and what is wrong with line and field."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from ground.errors import BadInput
from ground.traces import (
    dequantize,
    first_requests,
    read_trace,
    requests_per_second,
    reused_tokens,
    scale_rate,
    stamp_grid_seconds,
    window,
)

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:51.2224671,879,55\r\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3000, "input_length": 1500, "output_length": 6, "hash_ids": [0, 1, 2]}\n'
)


def write(folder: Path, text: str | bytes, packed: bool = False) -> Path:
    """Return a file with ``text``."""
    raw = text.encode() if isinstance(text, str) else text
    path = folder / "trace"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_azure_trace_keeps_seven_digits(tmp_path: Path, packed: bool) -> None:
    """Arrivals count from the first request with 100-nanosecond stamps intact."""
    trace = read_trace(write(tmp_path, AZURE, packed))
    np.testing.assert_allclose(trace.arrival_seconds, [0.0, 4.314579, 4.5418771], rtol=0, atol=1e-9)
    assert trace.input_tokens.tolist() == [374, 396, 879] and trace.output_tokens.tolist() == [44, 109, 55]
    assert trace.format == "azure" and trace.hash_ids is None
    assert requests_per_second(trace) == pytest.approx(2 / 4.5418771)


@pytest.mark.parametrize("packed", [False, True])
def test_mooncake_trace_counts_milliseconds(tmp_path: Path, packed: bool) -> None:
    """Stamps are milliseconds and reuse follows the chained 512-token blocks."""
    trace = read_trace(write(tmp_path, MOONCAKE, packed))
    assert trace.arrival_seconds.tolist() == [0.0, 3.0]
    assert reused_tokens(trace).tolist() == [0, 1024]


def test_stamps_on_a_grid_are_spread_on_request(tmp_path: Path) -> None:
    """Ten requests per 3-second stamp become near-uniform arrivals; the same seed gives the same ones."""
    rows = "".join(f'{{"timestamp": {3000 * (i // 10)}, "input_length": 9, "output_length": 2}}\n' for i in range(200))
    path = write(tmp_path, rows)
    raw, spread = read_trace(path), read_trace(path, dequantize_seed=7)
    assert stamp_grid_seconds(raw) == 3.0 and raw.spread_seconds == 0.0
    assert spread.spread_seconds == 3.0 and np.unique(spread.arrival_seconds).size == 200
    assert np.array_equal(spread.arrival_seconds, dequantize(raw, 7).arrival_seconds)
    assert np.all(np.diff(spread.arrival_seconds) >= 0)


def test_window_and_rate(tmp_path: Path) -> None:
    """A window counts from its first request, and a factor plays faster."""
    trace = read_trace(write(tmp_path, AZURE))
    assert window(trace, 4.0, 5.0).arrival_seconds == pytest.approx([0.0, 0.2272981])
    assert scale_rate(trace, 2.0).arrival_seconds[-1] == pytest.approx(4.5418771 / 2)
    assert len(first_requests(trace, 2)) == 2
    with pytest.raises(BadInput, match="no request"):
        window(trace, 100.0, 200.0)
    with pytest.raises(BadInput, match="factor"):
        scale_rate(trace, 0.0)


@pytest.mark.parametrize(("content", "message"), [(b"\xff\xfe", "UTF-8"), (b"\x1f\x8bnonsense", "gzip")])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """In one sentence; wrong texts stand in tests/cli/refusals.txt."""
    with pytest.raises(BadInput, match=message) as caught:
        read_trace(write(tmp_path, content))
    assert "\n" not in str(caught.value)


def test_absent_file_and_unknown_format_are_refused(tmp_path: Path) -> None:
    """Neither becomes a traceback."""
    for name in ("absent", "x" * 5000):
        with pytest.raises(BadInput, match=r"no such file|cannot be read"):
            read_trace(tmp_path / name)
    with pytest.raises(BadInput, match="line 1: TIMESTAMP is missing"):
        read_trace(write(tmp_path, MOONCAKE), "azure")


def test_packed_file_that_unfolds_without_end_is_refused(tmp_path: Path) -> None:
    """A line of zeros that packs a thousandfold stops at the limit."""
    with pytest.raises(BadInput, match="too large"):
        read_trace(write(tmp_path, b"0" * 5_000_000, packed=True))
