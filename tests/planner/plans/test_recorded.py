"""Recorded streams against the runtime: bursts, drift, overload, empty starts, and the public traces where they are."""

from pathlib import Path

import numpy as np
import pytest

from ground.errors import BadInput
from planner.manifest.schema import Manifest
from planner.plans.recorded import expect_recorded
from planner.workload import Trace
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import Requests
from tests.plans import small_manifest

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
AZURE, MOONCAKE = "azure_llm_2023_conv_first20min.csv.gz", "mooncake_conversation_first20min.jsonl.gz"


def _drifting(rate: float, count: int = 1500, seed: int = 0) -> Requests:
    """Requests whose rate swings by half around ``rate``, of lengths with a CV of 1, half of them largely reused."""
    random = np.random.default_rng(seed)
    marks = np.cumsum(random.exponential(1.0, count)) / rate
    arrival = marks + 0.5 * marks[-1] / (4 * np.pi) * np.sin(4 * np.pi * marks / marks[-1])
    tokens = np.clip(np.rint(random.lognormal(6.6, 0.83, count)), 16, 30_000).astype(np.int64)
    reused = (tokens * np.where(random.random(count) < 0.3, 0.9, 0.0)).astype(np.int64)
    answers = np.clip(np.rint(random.gamma(1.5, 85, count)), 1, 2000).astype(np.int64)
    return Requests(arrival_seconds=arrival, input_tokens=tokens, output_tokens=answers, reused_tokens=reused)


def _rows(requests: Requests) -> Trace:
    return Trace(
        arrival_seconds=requests.arrival_seconds,
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        reused_tokens=requests.reused_tokens,
    )


def _agree(manifest: Manifest, requests: Requests, result: SimulationResult, mean: float, p99: float) -> None:
    told = expect_recorded(manifest, _rows(requests)).prediction
    assert told is not None
    assert told.ttft_seconds is not None
    assert told.tpot_seconds is not None
    assert result.ttft_seconds is not None
    assert result.tpot_seconds is not None
    assert told.ttft_seconds.mean == pytest.approx(result.ttft_seconds.mean, rel=mean)
    assert told.ttft_seconds.p99 == pytest.approx(result.ttft_seconds.p99, rel=p99)
    assert told.tpot_seconds.mean == pytest.approx(result.tpot_seconds.mean, rel=0.05)
    assert told.requests_per_second == pytest.approx(result.requests_per_second, rel=0.06)
    assert told.slo_attainment == pytest.approx(result.slo_attainment, abs=0.05)


@pytest.mark.parametrize("part", [0.4, 0.8, 1.4])
def test_drift_bursts_and_overload_against_the_runtime(part):
    """From light load to more than the plan carries: the mean within 5 %, p99 within 10 %, a backlog where there is."""
    manifest = small_manifest()
    planned = manifest.workload.requests_per_second
    assert planned is not None
    requests = _drifting(part * planned)
    _agree(manifest, requests, simulate(manifest, requests, SimulationOptions()), 0.05, 0.1)


def _columns(trace: Trace) -> dict[str, object]:
    """Return the columns of a trace."""
    return {name: getattr(trace, name) for name in Trace.__dataclass_fields__}


def test_warm_up_leaves_out_the_first_requests():
    """What is counted are the requests from then on, beside those before them."""
    manifest, requests = small_manifest(), _drifting(50.0, count=600)
    whole, late = (expect_recorded(manifest, _rows(requests), warmup).prediction for warmup in (0.0, 5.0))
    assert whole.ttft_seconds.mean != late.ttft_seconds.mean
    with pytest.raises(BadInput, match="--warmup"):
        expect_recorded(manifest, _rows(requests), 1e9)


@pytest.mark.parametrize("name", [AZURE, MOONCAKE])
@pytest.mark.parametrize("part", [0.6])
def test_public_windows_against_the_runtime(name, part):
    """Azure's and Mooncake's first ten minutes, played faster on a small plan: the mean TTFT within 15 %.

    The plan is made for other prompts and Mooncake overloads it: behind the backlog turns begin before the KV of the
    turn before them is there, so less is reused than the order of arrivals tells.
    """
    from ground.traces import read_trace, reused_tokens, scale_rate, window
    from runtime.simulate.workload import from_trace

    if not (TRACES / name).exists():
        pytest.skip("the public traces are not part of podplan")
    manifest = small_manifest()
    trace = window(read_trace(TRACES / name, None, dequantize_seed=0, seed=0), 0.0, 600.0)
    rate = len(trace) / float(trace.arrival_seconds[-1])
    planned = manifest.workload.requests_per_second
    assert planned is not None
    share = float(manifest.workload.input_tokens / trace.input_tokens.mean())
    played = scale_rate(trace, part * planned * min(share, 1.0) / rate)
    requests = from_trace(played, manifest.workload, 0)
    reused = requests.reused_tokens if played.hash_ids is None else reused_tokens(played)
    told = expect_recorded(manifest, Trace(**(_columns(_rows(requests)) | {"reused_tokens": reused}))).prediction
    result = simulate(manifest, requests, SimulationOptions())
    assert told.ttft_seconds.mean == pytest.approx(result.ttft_seconds.mean, rel=0.15)
