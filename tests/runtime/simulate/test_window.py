"""What is measured of a run, and starting it with requests in decode."""

import numpy as np
import pytest

from planner.manifest.layout import Degrees, Instance
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import open_loop, with_running
from tests.manifests import build, manifest, pool


def test_requests_outside_the_window_load_the_system_and_are_not_counted() -> None:
    """Offered are those that arrive in it; all of them end, for arrivals go on behind it."""
    made = manifest()
    requests = open_loop(made.workload, 20.0, 500, 1)
    result = simulate(made, requests, SimulationOptions(warmup_seconds=4.0, measured_until_seconds=20.0))
    arrivals = requests.arrival_seconds
    assert result.requests == int(((arrivals >= 4.0) & (arrivals <= 20.0)).sum())
    assert result.completed == result.requests
    assert result.duration_seconds == 16.0
    assert result.requests_per_second == pytest.approx(20.0, rel=0.15)
    assert all(0 < share <= 1 + 1e-9 for share in result.utilisation.values())


def test_a_running_start_meets_the_same_stationary_state_as_an_empty_one() -> None:
    """After many residences nothing tells how a run began."""
    made = manifest(workload={"output_tokens": 400})
    stream = open_loop(made.workload, 8.0, 320, 3)
    options = SimulationOptions(warmup_seconds=12.0, measured_until_seconds=32.0)
    cold, warm = simulate(made, stream, options), simulate(made, with_running(stream, 10, 3), options)
    assert warm.requests == cold.requests
    assert warm.tpot_seconds.mean == pytest.approx(cold.tpot_seconds.mean, rel=0.01)


def test_running_requests_are_at_a_uniform_point_of_their_answers() -> None:
    """Fixed lengths: prompt and answer add up, and half of the answer is out on average."""
    made = manifest(workload={"output_tokens": 1000})
    requests = with_running(open_loop(made.workload, 8.0, 100), 4000)
    inputs, outputs = requests.input_tokens[:4000], requests.output_tokens[:4000]
    assert np.all(inputs + outputs == 512 + 1000)
    assert outputs.mean() == pytest.approx(500, rel=0.05)
    assert requests.under_way == 4000


def test_a_running_request_has_something_left_to_decode() -> None:
    """Answers of one token are never in decode: prefill gives it."""
    made = manifest(workload={"output_tokens": 1})
    none = with_running(open_loop(made.workload, 8.0, 100), 40)
    assert none.under_way == 0 and simulate(made, none).completed == 100
    mixed = manifest(workload={"output_tokens": 2, "output_cv2": 4.0})
    stream = open_loop(mixed.workload, 8.0, 400)
    assert (stream.output_tokens == 1).any()
    requests = with_running(stream, 400)
    assert requests.under_way == 400 and requests.output_tokens[:400].min() > 1
    assert simulate(mixed, requests).completed == 400  # those of the stream are counted


def test_running_requests_of_aggregated_instances_do_not_compute_their_prompts_again() -> None:
    """Who comes just after eight requests that are in decode waits for the step that runs, not for eight prompts."""
    one = Degrees(attention_tp=1, attention_dp=1)
    made = build([pool("mixed", one, [Instance(name="a", nodes=[0])])], {"output_tokens": 50})
    stream = open_loop(made.workload, 1000.0, 1, 5)
    alone, beside = simulate(made, stream), simulate(made, with_running(stream, 8, 5))
    assert beside.ttft_seconds.mean < 2 * alone.ttft_seconds.mean
