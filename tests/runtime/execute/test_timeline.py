"""One iteration on the clock and its trace: overlap can be seen in it."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hardware.loader import load_hardware
from planner.manifest.checks import spec_hash
from planner.manifest.document import dump_manifest
from planner.manifest.schema import Manifest
from runtime.execute.clock import Transfer
from runtime.execute.run import Settings
from runtime.execute.timeline import Iteration, chrome_trace, clocked_iteration, purpose_of
from tests.runtime.execute.deployments import deployed, slim
from tests.shell import answered, printed, refused


def on_910b(manifest: Manifest) -> Manifest:
    """Return a manifest with the links of 910B servers."""
    hardware = load_hardware("910b")
    cluster = manifest.clusters["toy"].model_copy(update={"spec": hardware, "sha256": spec_hash(hardware)})
    return manifest.model_copy(update={"clusters": {"toy": cluster}})


@pytest.fixture(scope="module")
def hybrid() -> Iteration:
    """MixServe's hybrid on two nodes of eight, two microbatches."""
    return clocked_iteration(on_910b(deployed(slim("deepseek-r1"), "TP=8 + DP=2, TP=8 + EP=2")), Settings())


def overlaps(one: Any, other: Any) -> bool:
    """Whether two events share time."""
    return bool(one.start < other.end and other.start < one.end)


def test_links_inside_and_between_nodes_work_at_once(hybrid: Iteration) -> None:
    """MixServe Figure 9: while rank 0 sends between nodes, its node reduces or gathers."""
    sent = [transfer for transfer in hybrid.transfers if transfer.sender == 0]
    between = [transfer for transfer in sent if transfer.plane == "roce"]
    inside = [transfer for transfer in sent if transfer.plane == "hccs"]
    assert between and inside
    assert any(overlaps(one, other) for one in between for other in inside)


def test_one_microbatch_computes_while_the_other_exchanges(hybrid: Iteration) -> None:
    """Two microbatches interleave on a device, and its computing never overlaps itself."""
    computing = sorted((s for s in hybrid.spans if s.name == "compute" and s.rank == 0), key=lambda s: s.start)
    assert len(computing) > 4
    assert all(one.end <= other.start + 1e-15 for one, other in pairwise(computing))
    exchanging = [s for s in hybrid.spans if s.rank == 0 and s.name.startswith("hybrid") and "microbatch 1" in s.label]
    first = [s for s in computing if "microbatch 0" in s.label]
    assert any(overlaps(one, other) for one in exchanging for other in first)


def test_ports_carry_one_message_at_a_time(hybrid: Iteration) -> None:
    """Transfers of one sender over RoCE begin after the one before has left."""
    sent = sorted((t for t in hybrid.transfers if t.sender == 0 and t.plane == "roce"), key=lambda t: t.start)

    def leaves(transfer: Transfer) -> float:
        return transfer.start + transfer.payload_bytes / 2.5e10

    assert all(leaves(one) <= other.start + 1e-12 for one, other in pairwise(sent))


def test_collectives_are_summed_by_what_they_are_for(hybrid: Iteration) -> None:
    """Name, purpose, group, bytes and seconds; hybrid exchange and attention's all-reduce are there."""
    rows = {(row.name, row.purpose, row.ranks): row for row in hybrid.collectives}
    assert rows["all-reduce", "attention", 8].mean_bytes > 0
    assert any(name == "hybrid dispatch" for name, _, _ in rows)
    assert all(row.longest_seconds >= row.mean_seconds * (1 - 1e-9) for row in hybrid.collectives)
    assert purpose_of("decode 0, microbatch 1, layer 3, attention") == "attention"


def test_the_trace_is_chromes(hybrid: Iteration) -> None:
    """Complete events with microseconds, a lane per plane and direction."""
    trace = chrome_trace(hybrid)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {"roce out", "roce in", "hccs out", "hccs in", "compute"} <= {event["tid"] for event in events}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events)
    assert json.loads(json.dumps(trace)) == trace


def test_the_command_writes_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clock in text and JSON; a file that is there is not written over without --force."""
    path, trace = tmp_path / "manifest.yaml", tmp_path / "trace.json"
    path.write_text(dump_manifest(deployed(slim("qwen3-235b-a22b"), "TP=2 + DP=4, EP=8")))
    flags = ["execute", str(path), "--iterations", "1", "--timeline", str(trace)]
    data = answered(capsys, *flags, "--clock")
    assert data["iteration"]["seconds"] > 0
    assert {"operation", "ranks", "bytes", "clock_seconds", "form_seconds", "gap", "why"} <= set(data["clock"][0])
    assert json.loads(trace.read_text())["traceEvents"]
    refused(capsys, "give --force", *flags)
    assert "closed form" in printed(capsys, *flags, "--clock", "--force")
