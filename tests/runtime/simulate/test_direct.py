"""Runs through the compiled loops beside the event engine: the same rules, the same requests, the same figures."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.manifest.layout import Degrees, Instance
from planner.manifest.schema import Manifest, Routing
from planner.plans.recorded import expect_recorded
from planner.workload import TraceRows
from runtime.simulate import run as event_engine
from runtime.simulate.direct import Blocked, run_direct
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions
from runtime.simulate.workload import Requests, open_loop, with_running
from tests.manifests import build, manifest, pool

COUNT = 4_000


def _both(made: Manifest, requests: Requests, monkeypatch: pytest.MonkeyPatch) -> list[SimulationResult]:
    options = SimulationOptions(mtp="expected", warmup_seconds=requests.arrival_seconds[COUNT // 10])
    direct = run_direct(made, [requests], options)
    monkeypatch.setattr(event_engine, "plain", lambda *_: False)
    return [direct, event_engine.simulate(made, requests, options)]


@pytest.mark.parametrize("prefill", ["round_robin", "least_load"])
@pytest.mark.parametrize("decode", ["least_kv", "least_requests", "round_robin"])
def test_latencies_are_those_of_the_event_engine(prefill: str, decode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every router and placement: means within 1 %, tails within 3 %, each request counted once."""
    routing = Routing.model_validate({"prefill": prefill, "decode": decode})
    made = manifest(prefill=2, decode=2).model_copy(update={"routing": routing})
    found = _both(made, open_loop(made.workload, 60.0, COUNT), monkeypatch)
    direct, stepped = (each.to_dict() for each in found)
    for name in ("requests", "completed", "failed", "running"):
        assert direct[name] == stepped[name]
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        assert direct[name]["mean"] == pytest.approx(stepped[name]["mean"], rel=0.01)  # type: ignore[index]
        assert direct[name]["p99"] == pytest.approx(stepped[name]["p99"], rel=0.03)  # type: ignore[index]
    for role, share in stepped["utilisation"].items():  # type: ignore[attr-defined]
        assert direct["utilisation"][role] == pytest.approx(share, abs=0.02)  # type: ignore[index]


def test_links_and_room_are_measured_in_the_window_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten idle minutes before the first request change nothing, in the compiled loops and in the event engine."""
    made = manifest(prefill=2, decode=2)
    requests = open_loop(made.workload, 60.0, COUNT)
    later = replace(requests, arrival_seconds=requests.arrival_seconds + 600)
    plain = event_engine.plain
    for chosen in (plain, lambda *_: False):
        monkeypatch.setattr(event_engine, "plain", chosen)
        now = event_engine.simulate(made, requests, SimulationOptions())
        then = event_engine.simulate(made, later, SimulationOptions(warmup_seconds=600.0))
        assert then.link_utilisation == pytest.approx(now.link_utilisation, rel=1e-6)
        assert then.occupancy["slots"] == pytest.approx(now.occupancy["slots"], rel=0.2)  # of few samples
        assert then.mean_transfer_wait_seconds == pytest.approx(now.mean_transfer_wait_seconds, rel=0.01)


@pytest.mark.parametrize("engine", ["reference", "vllm", "sglang"])
@pytest.mark.parametrize(
    ("prefill", "chunks", "ranks", "capacity"),
    [("round_robin", "decode_first", 4, 9_000), ("least_load", "prefill_first", 1, 30_000)],
)
def test_aggregated_instances_are_those_of_the_event_engine(engine, prefill, chunks, ranks, capacity, monkeypatch):
    """Every order and admission, with little KV and some requests in decode at first: the same steps to rounding."""
    routing = {"prefill": prefill, "decode": "round_robin", "chunks": chunks}
    degrees = Degrees(attention_tp=1, attention_dp=ranks, moe_ep=ranks)
    limits = {"requests_per_dp_rank": 64, "tokens_per_device": 512}
    kv = {"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": capacity}
    instances = [Instance(name=f"m{number}", nodes=[number]) for number in range(2)]
    made = build([pool("mixed", degrees, instances, limits=limits, kv=kv)], {"output_cv2": 0.5, "input_cv2": 1.0})
    made = Manifest.model_validate(made.model_dump() | {"engine": {"id": engine, "version": "0.0"}, "routing": routing})
    offered = with_running(open_loop(made.workload, 100.0, COUNT), 6)
    direct, stepped = (each.to_dict() for each in _both(made, offered, monkeypatch))
    for name in ("requests", "completed", "failed", "running", "steps"):
        assert direct[name] == stepped[name]
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds", "queueing_seconds", "utilisation"):
        assert direct[name] == pytest.approx(stepped[name], rel=1e-6)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_schedules_as_the_answer_says(engine: str) -> None:
    """A short run of another engine's manifest has its rule, too: what is measured is what is expected of the trace."""
    degrees = Degrees(attention_tp=1, attention_dp=1, moe_ep=1)
    made = build([pool("mixed", degrees, [Instance(name="m", nodes=[0])])], {"output_cv2": 0.5, "input_cv2": 1.0})
    order = "prefill_first" if engine == "sglang" else "decode_first"
    update = {"engine": {"id": engine, "version": "0.0"}, "routing": {"prefill": "round_robin", "chunks": order}}
    made = Manifest.model_validate(made.model_dump() | update)
    offered = open_loop(made.workload, 40.0, 500)
    rows = TraceRows(
        arrival_seconds=offered.arrival_seconds, input_tokens=offered.input_tokens, output_tokens=offered.output_tokens
    )
    told, found = expect_recorded(made, rows).prediction, event_engine.simulate(made, offered)
    assert found.ttft_seconds.mean == pytest.approx(told.ttft_seconds.mean, rel=0.01)
    assert found.tpot_seconds.p99 == pytest.approx(told.tpot_seconds.p99, rel=0.02)


def test_requests_that_run_at_the_start_are_served_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They load decode from the first moment on in both."""
    made = manifest()
    found = _both(made, with_running(open_loop(made.workload, 60.0, COUNT), 50), monkeypatch)
    assert found[0].completed == found[1].completed
    assert found[0].tpot_seconds.mean == pytest.approx(found[1].tpot_seconds.mean, rel=0.01)


def test_parts_make_no_difference() -> None:
    """A stream in parts gives the figures of the whole."""
    made = manifest()
    whole = open_loop(made.workload, 60.0, COUNT)
    parts = [whole.piece(first, last) for first, last in pairwise([0, 700, 1900, COUNT])]
    options = SimulationOptions(mtp="expected", warmup_seconds=5.0)
    one, other = run_direct(made, [whole], options), run_direct(made, parts, options)
    assert one.ttft_seconds == other.ttft_seconds
    assert one.e2e_seconds.mean == pytest.approx(other.e2e_seconds.mean, rel=1e-9)


@pytest.mark.parametrize(("room", "blocks"), [(12, False), (5, True)])
def test_prompts_that_found_no_room_amid_a_part_are_noticed(room: int, blocks: bool) -> None:
    """Eight prompts come at once and decode takes one at a time; long after the last of them the run ends."""
    one = Degrees(attention_tp=1, attention_dp=1, moe_ep=1)
    limits = {"requests_per_dp_rank": 1, "tokens_per_device": 512}
    kv = {"block_tokens": 16, "bytes_per_token_per_device": 160.0, "capacity_tokens_per_rank": room * 512}
    made = manifest(degrees=one, decode_limits=limits, prefill_limits=limits, prefill_kv=kv)
    arrivals = np.append(np.full(8, 1.0), 10.0 * np.arange(1, 60))
    offered = replace(open_loop(made.workload, 1.0, arrivals.size), arrival_seconds=arrivals)
    with pytest.raises(Blocked) if blocks else nullcontext():
        run_direct(made, [offered], SimulationOptions(mtp="expected"))
