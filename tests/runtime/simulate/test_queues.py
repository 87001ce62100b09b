"""Degenerate manifests are queues with closed forms: M/M/1, M/D/1, M/G/1, M/M/c; the fast mode is the stepped one."""

import io
from typing import Any

import numpy as np
import pytest

from planner.manifest.costs import StepCostModel
from planner.manifest.layout import Degrees, Instance
from planner.manifest.schema import Manifest, Routing
from runtime.simulate.observe import Observer
from runtime.simulate.options import SimulationOptions
from runtime.simulate.quantiles import interval
from runtime.simulate.run import simulate
from runtime.simulate.workload import Modulation, Requests, closed_loop, modulated, open_loop
from tests.manifests import build, manifest, pool, requests
from tests.planner.closed_forms.waits import erlang_c
from tests.planner.serving.costs import linear_cost

ITERATION_SECONDS = 1e-3
COUNT = 8_000
CACHE = {"block_tokens": 1, "bytes_per_token_per_device": 1e-9, "capacity_tokens_per_rank": 10_000_000}


def constant(seconds: float, ranks: int) -> StepCostModel:
    """Return a step that always takes as long."""
    return StepCostModel.from_step_cost(linear_cost(seconds, 0.0, ranks=ranks))


def servers(count: int) -> Manifest:
    """Return a decode pool of ``count`` ranks of one slot; an answer's tokens are its service, prefill is free."""
    degrees = Degrees(attention_tp=1, attention_dp=count, moe_ep=count)
    free = Degrees(attention_tp=1, attention_dp=1)
    slots = list(range(16)) * (1 if 16 % count == 0 else count)
    pools: list[dict[str, Any]] = [
        pool("prefill", free, [Instance(name="p", nodes=[0])], kv=CACHE),
        pool("decode", degrees, [Instance(name="d", nodes=[1])], kv=CACHE, slots=slots),
    ]
    pools[0]["step_costs"] = {name: constant(1e-9, 1) for name in ("prefill", "decode")}
    pools[0]["limits"] = {"requests_per_dp_rank": 1, "tokens_per_device": 1_000_000}
    pools[1]["step_costs"] = {name: constant(ITERATION_SECONDS, count) for name in ("prefill", "decode")}
    pools[1]["limits"] = {"requests_per_dp_rank": 1, "tokens_per_device": 1}
    made = build(pools, {})
    links = made.kv_transfer
    return made.model_copy(update={"kv_transfer": links.model_copy(update={"latency_seconds": 0.0})})


def offered(services: np.ndarray, rate: float, seed: int) -> Requests:
    """Return Poisson arrivals with services in iterations."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, services.size)
    rows = zip(np.cumsum(gaps).tolist(), (services + 1).tolist(), strict=True)
    return requests(*((at, 1, count, 0) for at, count in rows))


@pytest.mark.parametrize(
    ("name", "count", "load"), [("M/M/1", 1, 0.5), ("M/D/1", 1, 0.7), ("M/G/1", 1, 0.4), ("M/M/c", 4, 0.7)]
)
def test_closed_forms_lie_within_the_confidence_interval(name: str, count: int, load: float) -> None:
    """Mean E2E of a run against Pollaczek-Khinchine and Erlang C, within three standard errors of batch means.

    A service starts at the end of the iteration under way, on average half of one of its hundreds later, where other
    servers run.
    """
    random = np.random.default_rng(7)
    drawn = {
        "M/M/1": lambda: random.exponential(200, COUNT),
        "M/D/1": lambda: np.full(COUNT, 200.0),
        "M/G/1": lambda: random.choice([50.0, 650.0], COUNT, p=[0.75, 0.25]),
        "M/M/c": lambda: random.exponential(800, COUNT),
    }[name]()
    services = np.maximum(np.rint(drawn), 1).astype(np.int64)
    mean = float(services.mean()) * ITERATION_SECONDS
    rate = load * count / mean
    result = simulate(servers(count), offered(services, rate, 11))
    assert result.completed == COUNT
    if count == 1:
        second = float((services.astype(float) ** 2).mean()) * ITERATION_SECONDS**2
        expected = mean + rate * second / (2 * (1 - rate * mean))
    else:
        expected = mean + erlang_c(count, count * load) / (count / mean - rate) + ITERATION_SECONDS / 2
    measured, half_width = interval(result.batches.means("e2e"))
    assert half_width < 0.1 * expected
    assert abs(measured - expected) < 1.5 * half_width  # of 95 %, so about three standard errors


@pytest.mark.parametrize("drafts", [0, 1])
@pytest.mark.parametrize("routing", [Routing(), Routing(prefill="collaborative", decode="least_requests")])
def test_summed_iterations_equal_stepped_ones(drafts: int, routing: Routing) -> None:
    """Every latency statistic, busy time and count agrees to 1e-9 although far fewer events run."""
    workload = {"output_tokens": 120, "output_cv2": 1.0, "input_cv2": 1.0}
    made = manifest(prefill=2, decode=2, drafts=drafts, workload=workload).model_copy(update={"routing": routing})
    stream = open_loop(made.workload, 12.0, 150, 3)
    fast, stepped = (simulate(made, stream, SimulationOptions(stepping=stepping)) for stepping in (False, True))
    assert fast.steps == stepped.steps
    assert fast.events < stepped.events / 3
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        one, other = getattr(fast, name), getattr(stepped, name)
        for key in ("mean", "p50", "p90", "p99"):
            assert getattr(one, key) == pytest.approx(getattr(other, key), rel=1e-9)
    assert fast.utilisation == pytest.approx(stepped.utilisation, rel=1e-9)


def test_littles_law_holds_in_what_is_sampled() -> None:
    """Mean requests in the system, sampled in time, = throughput x mean time in the system."""
    made = manifest(prefill=1, decode=1, workload={"output_tokens": 300, "input_cv2": 1.0, "output_cv2": 1.0})
    series = io.StringIO()
    observer = Observer(series=series, series_seconds=0.005)
    result = simulate(made, open_loop(made.workload, 60.0, 1500, 2), observer=observer)
    rows = [line.split(",") for line in series.getvalue().splitlines()[1:]]
    inside = np.mean([float(row[1]) for row in rows])
    assert inside == pytest.approx(result.requests_per_second * result.e2e_seconds.mean, rel=0.03)


def test_bursts_have_the_mean_rate_and_clump() -> None:
    """A Markov-modulated stream keeps its mean rate; counts vary far more than Poisson's."""
    made = manifest()
    stream = modulated(made.workload, 20.0, 40_000, Modulation(burst=8.0, share=0.1, mean_burst_seconds=5.0), 3)
    arrivals = stream.arrival_seconds
    assert np.all(np.diff(arrivals) >= 0)
    assert 40_000 / arrivals[-1] == pytest.approx(20.0, rel=0.1)
    counts = np.bincount(arrivals.astype(int))
    assert counts.var() / counts.mean() > 5


def test_turns_of_a_session_follow_each_other() -> None:
    """The second turn comes its delay after the first one's end, whenever that is."""
    waits = {"session": np.array([0, 0]), "delay_seconds": np.array([np.nan, 2.0])}
    turns = requests((0.0, 512, 50, 0), (0.001, 512, 2, 0), **waits)
    rows = io.StringIO()
    result = simulate(manifest(), turns, observer=Observer(requests=rows))
    first, second = (line.split(",") for line in rows.getvalue().splitlines()[1:])
    assert result.completed == 2
    assert float(second[3]) == pytest.approx(float(first[6]) + 2.0, rel=1e-6)


def test_a_closed_loop_starts_together() -> None:
    """All of the first ones arrive at once."""
    rows = io.StringIO()
    simulate(manifest(), closed_loop(manifest().workload, 6, 12), observer=Observer(requests=rows))
    arrivals = [float(line.split(",")[3]) for line in rows.getvalue().splitlines()[1:]]
    assert arrivals.count(0.0) == 6
