"""Encode instances in a run: what is played of a plan beside what the plan says, and a request by hand."""

from functools import cache

import numpy as np
import pytest

from planner.manifest.schema import Manifest
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.plans.assemble import assemble
from planner.question import Shape
from runtime.simulate.options import SimulationOptions
from runtime.simulate.quantiles import interval
from runtime.simulate.run import simulate
from runtime.simulate.workload import Requests, closed_loop, open_loop
from tests.planner.plans.test_encode import best

RATE = 20.0


@cache
def manifest(shape: Shape) -> Manifest:
    """Return the manifest of a plan for 20 requests a second."""
    return assemble(best("separate", shape, RATE), {})


@pytest.mark.parametrize("shape", ["disaggregated", "aggregated"])
def test_the_plan_is_what_a_run_measures(shape: Shape) -> None:
    """Mean TTFT, through encode and what follows, lies within three standard errors and 3 % of the plan's."""
    own = manifest(shape)
    result = simulate(own, open_loop(own.workload, RATE, 8_000))
    assert result.completed == 8_000
    found = interval(result.batches.means("ttft"))
    planned = own.predicted.ttft_seconds.mean
    assert abs(result.ttft_seconds.mean - planned) <= 1.5 * found[1] + 0.03 * planned
    encode = own.pools[0]
    assert encode.predicted.utilisation is not None
    assert result.utilisation["encode"] > 0.8 * encode.predicted.utilisation  # passes are less than full


def test_a_lone_request_takes_encode_transfer_and_prefill() -> None:
    """Its first token comes after a pass over its pictures, their embeddings' way and a pass of its prompt."""
    own = manifest("disaggregated")
    encode, prefill = own.pools[0], own.pools[1]
    tokens, pictures = round(own.workload.input_tokens), own.workload.picture_tokens
    one = Requests(
        arrival_seconds=np.zeros(1),
        input_tokens=np.array([tokens]),
        output_tokens=np.array([2]),
        reused_tokens=np.zeros(1, dtype=np.int64),
    )
    result = simulate(own, one)
    assert own.embedding_transfer is not None
    crossing = own.embedding_transfer
    sent = pictures * crossing.bytes_per_token / crossing.bandwidth_bytes_per_second + crossing.latency_seconds
    first = evaluate(
        encode.step_costs["prefill"].to_step_cost(),
        StepLoad(prefill_tokens=pictures, finishing_prompts=1.0, mean_tokens=pictures),
    )
    second = evaluate(
        prefill.step_costs["prefill"].to_step_cost(),
        StepLoad(
            prefill_tokens=float(tokens),
            prefill_pairs=tokens * (tokens + 1) / 2,
            finishing_prompts=1.0,
            mean_tokens=float(tokens),
        ),
    )
    alone = float(first.seconds) + sent + float(second.seconds)
    assert result.ttft_seconds.mean == pytest.approx(alone, rel=1e-3)  # prefill is read off a table


def test_a_closed_loop_passes_through_encode() -> None:
    """Requests that follow completions are encoded, too, and none is lost."""
    own = manifest("aggregated")
    result = simulate(own, closed_loop(own.workload, 8, 200))
    assert result.completed == 200
    assert result.steps["encode"] > 0


def test_requests_whose_pictures_are_encoded_when_a_run_ends_are_running() -> None:
    """Cut before any first token, all requests are still there."""
    own = manifest("disaggregated")
    offered = open_loop(own.workload, RATE, 40)
    until = float(offered.arrival_seconds[-1])
    result = simulate(own, offered, SimulationOptions(until_seconds=until))
    assert result.requests == 40 == result.completed + result.running
    assert result.running > 0
