"""Every trace format of serving tools: fields, units, sessions, and how a format is seen."""

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ground.errors import BadInput
from ground.traces import Trace, read_trace, repeat, requests_per_second, stream_trace, with_arrivals

DATA = Path(__file__).parents[3] / "shared" / "data" / "traces"
WINDOW = "0,1,2,Gamma,1,1\n"


def written(folder: Path, content: str) -> Path:
    """Return a file that holds ``content``."""
    path = folder / "trace"
    path.write_text(content)
    return path


def lines(*rows: dict[str, object]) -> str:
    """Return JSON lines."""
    return "\n".join(json.dumps(row) for row in rows)


MOONCAKE = [
    {"timestamp": 0, "input_length": 9, "output_length": 2},
    {"timestamp": 2000, "input_length": 8, "output_length": 3},
]
SECONDS = [{**row, "timestamp": int(str(row["timestamp"])) / 1000} for row in MOONCAKE]
WEKA = {
    "id": "a",
    "requests": [
        {"t": 0.0, "type": "n", "in": 9, "out": 2, "hash_ids": [1]},
        {"t": 2.0, "type": "subagent", "requests": [{"t": 2.0, "type": "n", "in": 8, "out": 3, "hash_ids": [1]}]},
    ],
}
USAGE = "gen_ai.usage."
SPANS = [
    {"startTimeUnixNano": "1700000000000000000", "attributes": {f"{USAGE}input_tokens": 9, f"{USAGE}output_tokens": 2}},
    {
        "start_time": "2023-11-14T22:13:22.000000Z",
        "attributes": [
            {"key": f"{USAGE}input_tokens", "value": {"intValue": "8"}},
            {"key": f"{USAGE}output_tokens", "value": {"intValue": "3"}},
        ],
    },
]

SEEN = [
    ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,9,2\n2023-11-16 18:00:02,8,3"),
    ("mooncake", lines(*MOONCAKE)),
    ("mooncake", json.dumps(MOONCAKE, indent=1)),
    ("mooncake", lines(*({"created_time": r["timestamp"], "input_tokens": r["input_length"], "output_tokens": r["output_length"]} for r in MOONCAKE))),  # noqa: E501
    ("bailian", lines(*({**row, "chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1} for row in SECONDS))),
    ("guidellm", "timestamp,input_length,output_length\n0.0,9,2\n2.0,8,3"),
    ("burstgpt", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,9,2,11,API log\n6,GPT-4,7,0,7,API log\n7,GPT-4,8,3,11,API log"),  # noqa: E501
    ("baseten", lines(*({"timestamp_start_unix_ms": 1700000000000 + int(str(r["timestamp"])), "prompt": "", "input_tokens": r["input_length"], "output_tokens": r["output_length"]} for r in MOONCAKE))),  # noqa: E501
    ("vidur", "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,9,2\n3.5,8,3"),
    ("llmservingsim", lines({"input_toks": 9, "output_toks": 2, "arrival_time_ns": 0}, {"input_toks": 8, "output_toks": 3, "arrival_time_ns": 2_000_000_000})),  # noqa: E501
    ("weka", lines(WEKA)),
    ("otel", json.dumps({"trace_id": "x", "spans": SPANS}, indent=1)),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text"), SEEN, ids=[f"{name}-{i}" for i, (name, _) in enumerate(SEEN)])
def test_format_is_seen_and_its_unit_is_kept(tmp_path: Path, format: str, text: str) -> None:
    """Two requests two seconds apart in the units of every tool; declaring the format reads the same."""
    path = written(tmp_path, text)
    for trace in (read_trace(path), read_trace(path, format)):  # type: ignore[arg-type]
        assert trace.format == format and trace.timed
        assert trace.arrival_seconds == pytest.approx([0.0, 2.0], abs=1e-6)
        assert trace.input_tokens.tolist() == [9, 8] and trace.output_tokens.tolist() == [2, 3]


def test_seconds_in_a_millisecond_format_are_refused_by_their_rate(tmp_path: Path) -> None:
    """The same key holds both units: 10 requests a second read as milliseconds would be 10,000."""
    rows = [{"timestamp": i / 10, "input_length": 9, "output_length": 2} for i in range(50)]
    path = written(tmp_path, lines(*rows))
    with pytest.raises(BadInput, match="1e\\+04 requests per second; name the format"):
        read_trace(path)
    assert requests_per_second(read_trace(path, "guidellm")) == pytest.approx(10.0)
    assert "is that the unit?" in read_trace(path, "dynamo").notes[0]


def test_turns_of_a_session_wait_for_the_turn_before(tmp_path: Path) -> None:
    """Later turns have a delay, stated or from the stamps; the first has none."""
    rows = (
        {"timestamp": 0, "session_id": "a", "input_length": 9, "output_length": 2},
        {"delay": 500, "session_id": "a", "input_length": 9, "output_length": 2},
        {"timestamp": 100, "session_id": "b", "input_length": 9, "output_length": 2},
        {"timestamp": 400, "session_id": "b", "input_length": 9, "output_length": 2},
    )
    trace = read_trace(written(tmp_path, lines(*rows)))
    assert trace.session.tolist() == [0, 1, 1, 0]
    np.testing.assert_allclose(trace.delay_seconds, [np.nan, np.nan, 0.3, 0.5])
    agents = {
        "session_id": "s",
        "arrival_time_ns": 0,
        "sub_requests": [
            {"input_toks": 9, "output_toks": 2, "tool_duration_ns": 1_000_000},
            {"input_toks": 8, "output_toks": 3},
        ],
    }
    delays = read_trace(written(tmp_path, lines(agents))).delay_seconds
    assert delays[1] == pytest.approx(1e-3)


def test_blocks_of_different_conversations_do_not_meet(tmp_path: Path) -> None:
    """Weka's identifiers are local: block 1 of one conversation is not block 1 of another."""
    trace = read_trace(written(tmp_path, lines(WEKA, {**WEKA, "id": "b"})))
    assert trace.hash_ids is not None and trace.block_tokens == 64
    assert len({int(ids[0]) for ids in trace.hash_ids}) == 2


def test_lengths_without_arrivals_get_drawn_ones(tmp_path: Path) -> None:
    """Sarathi's length files and text sets state no times; texts are counted at four bytes a token."""
    trace = read_trace(written(tmp_path, "num_prefill_tokens,num_decode_tokens,pd_ratio\n9,2,4.5\n8,3,2.7"))
    assert not trace.timed and "arrivals are drawn" in trace.notes[0]
    drawn = with_arrivals(trace, 10.0, 0.0, seed=0)
    assert drawn.timed and drawn.arrival_seconds.tolist() == [0.0, 0.1]
    talk = [{"id": "x", "conversations": [{"from": "human", "value": "a" * 36}, {"from": "gpt", "value": "b" * 8}]}]
    shared = read_trace(written(tmp_path, json.dumps(talk)))
    assert (shared.format, shared.input_tokens.tolist(), shared.output_tokens.tolist()) == ("sharegpt", [9], [2])
    custom = read_trace(written(tmp_path, lines({"prompt": "a" * 36, "output_tokens": 2})))
    assert custom.format == "vllm-custom" and custom.input_tokens.tolist() == [9]


def test_bad_rows_are_skipped_as_many_as_allowed(tmp_path: Path) -> None:
    """Each is told with line and field; one more than allowed is refused."""
    path = written(tmp_path, lines(*MOONCAKE) + '\n{"timestamp": 1}\nnonsense\n')
    trace = read_trace(path, skip_bad_rows=2)
    assert len(trace) == 2
    assert "line 3: input_length is missing" in trace.skipped[0] and "line 4" in trace.skipped[1]
    with pytest.raises(BadInput, match="line 4"):
        read_trace(path, skip_bad_rows=1)
    table = read_trace(written(tmp_path, 'timestamp,input_length,output_length\n"0\n0,9,2\n1\n'), skip_bad_rows=2)
    assert len(table) == 1 and "line 2: is not a line of a CSV file" in table.skipped[0]


def test_a_stream_is_the_trace_in_parts(tmp_path: Path) -> None:
    """Slightly disordered rows come out in order, and nothing but a far step back is refused."""
    random = np.random.default_rng(1)
    stamps = np.arange(500) * 100 + random.integers(0, 900, 500)
    rows = [{"timestamp": int(t), "input_length": int(t) + 1, "output_length": 2} for t in stamps]
    path = written(tmp_path, lines(*rows))
    whole, parts = read_trace(path), list(stream_trace(path, rows_per_part=64))
    assert len(parts) > 5
    np.testing.assert_allclose(np.concatenate([p.arrival_seconds for p in parts]), whole.arrival_seconds, atol=1e-9)
    assert np.concatenate([p.input_tokens for p in parts]).tolist() == whole.input_tokens.tolist()
    with pytest.raises(BadInput, match="sort the file"):
        list(stream_trace(written(tmp_path, lines(*reversed(rows))), rows_per_part=64))
    with pytest.raises(BadInput, match="sessions and rows without arrivals need the whole file"):
        list(stream_trace(written(tmp_path, lines({**MOONCAKE[0], "session_id": "a"}))))
    exact = written(tmp_path, lines(*MOONCAKE))
    assert [len(part) for part in stream_trace(exact, rows_per_part=2)] == [1, 1]


def test_a_repeated_trace_goes_on_at_its_rate(tmp_path: Path) -> None:
    """Twice is twice as long at the same mean rate."""
    trace = read_trace(written(tmp_path, lines(*MOONCAKE)))
    twice = repeat(trace, 2)
    assert twice.arrival_seconds.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert requests_per_second(twice) == requests_per_second(trace)
    turns = [{**row, "session_id": name} for name in ("a", "b") for row in MOONCAKE]
    again = repeat(read_trace(written(tmp_path, lines(*turns))), 2)
    assert again.session.tolist() == [0, 1, 0, 1, 2, 3, 2, 3] and np.nansum(again.delay_seconds) == 8.0


def test_a_document_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON that spans lines is held whole, so it may be smaller than JSON lines; a packed one must be whole."""
    text = json.dumps(MOONCAKE, indent=1)
    monkeypatch.setattr("ground.trace_lines.MOST_DOCUMENT_BYTES", len(text))
    assert len(read_trace(written(tmp_path, text))) == 2
    with pytest.raises(BadInput, match="a JSON document has at most"):
        read_trace(written(tmp_path, text + "\n"))
    monkeypatch.undo()
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(BadInput, match=r"packed: cannot be read \("):
        read_trace(path)


def client_set(folder: Path) -> Path:
    """Return a set of two clients, one smooth and one bursty."""
    for number, (family, shape) in enumerate([("Gamma", 1.0), ("Weibull", 0.4)]):
        windows = "".join(f"{600 * i},{0.5 if i else 0},2,{family if i else ''},{shape},3\n" for i in range(3))
        (folder / f"chunk-{number}-trace.csv").write_text(windows)
        lengths = {"0": {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{0: 0.5, 20: 0.5}"}}
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(lengths))
    return folder


def test_a_client_set_becomes_a_stream(tmp_path: Path) -> None:
    """Rates are exact per window, lengths follow the distributions, and a seed draws the same again."""
    path = client_set(tmp_path)
    (path / "README.md").write_text("what stands beside them is not read")
    trace, again, other = read_trace(path, seed=1), read_trace(path, seed=1), read_trace(path, seed=2)
    assert isinstance(trace, Trace) and trace.format == "servegen"
    assert len(trace) == 2 * 2 * 300
    assert set(trace.input_tokens.tolist()) == {100, 300} and set(trace.output_tokens.tolist()) == {1, 20}
    assert np.array_equal(trace.arrival_seconds, again.arrival_seconds)
    assert not np.array_equal(trace.arrival_seconds, other.arrival_seconds)


@pytest.mark.parametrize(
    ("windows", "lengths", "told"),
    [
        (None, None, "has no chunk-N-trace.csv"),
        (WINDOW, None, "has no dataset.json"),
        ("0,1,2,Poisson,1,1\n", "{9: 1}", r"chunk-000000-trace\.csv, line 1: needs a rate"),
        ("0,1\n", "{9: 1}", "has 2 fields"),
        ("1e11,1,2,Gamma,1,1\n", "{9: 1}", "needs a time within"),
        ("\n", "{9: 1}", "has no window"),
        ("9,1,2,Gamma,1,1\n0,1,2,Gamma,1,1\n", "{9: 1}", "in order of time"),
        ("0,0,2,Gamma,1,1\n", "{9: 1}", "no client sends"),
        ("0,9e5,2,Gamma,1,1\n", "{9: 1}", "requests in a window are more"),
        ("0,9e5,2,Gamma,1,1\n5,9e5,2,Gamma,1,1\n", "{9: 1}", "leave clients or windows out"),
        (WINDOW, "", "unexpected EOF|invalid syntax"),
        (WINDOW, "{9: -1}", "negative or not finite"),
        (b"\xff", "{9: 1}", "is not UTF-8"),
        ("0,-1,2,Gamma,1,1\n", "{9: 1}", "needs a rate from 0"),
    ],
)
def test_a_client_set_that_cannot_be_read_is_refused(tmp_path, windows, lengths, told):
    """By the file and what is wrong with it."""
    if windows is not None:
        (tmp_path / "chunk-0-trace.csv").write_bytes(windows if isinstance(windows, bytes) else windows.encode())
    if lengths is not None:
        held = {"0": {"input_tokens": lengths, "output_tokens": "{9: 1}"}}
        (tmp_path / "chunk-0-dataset.json").write_text(json.dumps(held))
    with pytest.raises(BadInput, match=told):
        read_trace(tmp_path)


def test_parquet_is_read_by_rows_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of every batch; without pyarrow, and where it finds the file broken, one sentence."""
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadInput, match="install pyarrow to read it"):
        read_trace(path)

    class Batch(list[dict[str, object]]):
        to_pylist = list[dict[str, object]].copy

    def opened(_: Path) -> SimpleNamespace:
        return SimpleNamespace(iter_batches=lambda batch_size: iter([Batch([row]) for row in held]))

    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(ArrowException=ArithmeticError))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", SimpleNamespace(ParquetFile=opened))
    held: list[dict[str, object]] = MOONCAKE
    assert read_trace(path).arrival_seconds.tolist() == [0.0, 2.0]
    held = [{**MOONCAKE[0], "input_length": "x"}]
    with pytest.raises(BadInput, match="row 1: input_length"):
        read_trace(path)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is optional")
def test_parquet_is_read_where_pyarrow_is(tmp_path: Path) -> None:
    """Baseten's columns."""
    import pyarrow
    from pyarrow import parquet

    columns = {"timestamp_start_unix_ms": [0, 2000], "input_tokens": [9, 8], "output_tokens": [2, 3]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet").arrival_seconds.tolist() == [0.0, 2.0]


@pytest.mark.skipif(not DATA.is_dir(), reason="the published traces are not here")
def test_published_traces_have_their_published_moments() -> None:
    """Azure 4.99 requests/s, Mooncake's mean prompt, ServeGen's R1 clients 16 a second over a day."""
    azure = read_trace(DATA / "azure_llm_2023_conv_first20min.csv.gz")
    assert (len(azure), round(requests_per_second(azure), 2)) == (5985, 4.99)
    assert len(read_trace(DATA / "mooncake_conversation_first20min.jsonl.gz")) == 3658
    assert not read_trace(DATA / "sharegpt_lengths_first_half.csv.gz").timed
    assert 4 < requests_per_second(read_trace(DATA / "servegen_deepseek-r1_00h-06h.tar.gz")) < 43
