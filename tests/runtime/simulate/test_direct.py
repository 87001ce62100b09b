"""Runs through the compiled loops beside the event engine: the same rules, the same requests, the same figures."""

from itertools import pairwise

import pytest

from planner.manifest.schema import Manifest, Routing
from runtime.simulate import run as event_engine
from runtime.simulate.direct import run_direct
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions
from runtime.simulate.workload import Requests, open_loop, with_running
from tests.manifests import manifest

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


def test_requests_that_run_at_the_start_are_served_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They load decode from the first moment on in both."""
    made = manifest()
    found = _both(made, with_running(open_loop(made.workload, 60.0, COUNT), 50), monkeypatch)
    assert found[0].completed == found[1].completed
    assert found[0].tpot_seconds is not None and found[1].tpot_seconds is not None
    assert found[0].tpot_seconds.mean == pytest.approx(found[1].tpot_seconds.mean, rel=0.01)


def test_parts_make_no_difference() -> None:
    """A stream in parts gives the figures of the whole."""
    made = manifest()
    whole = open_loop(made.workload, 60.0, COUNT)
    parts = [whole.piece(first, last) for first, last in pairwise([0, 700, 1900, COUNT])]
    options = SimulationOptions(mtp="expected", warmup_seconds=5.0)
    one, other = run_direct(made, [whole], options), run_direct(made, parts, options)
    assert one.ttft_seconds == other.ttft_seconds
    assert one.e2e_seconds is not None and other.e2e_seconds is not None
    assert one.e2e_seconds.mean == pytest.approx(other.e2e_seconds.mean, rel=1e-9)
