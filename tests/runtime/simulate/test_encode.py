"""Encode instances in a run: what is played of a plan beside what the plan says, and a request by hand."""

import json
from functools import cache
from io import StringIO

import pytest

from planner.manifest.schema import Manifest
from planner.manifest.stepcost import evaluate
from planner.manifest.terms import StepLoad
from planner.plans.assemble import assemble
from planner.question import Shape
from runtime.simulate.faults import parse_fault
from runtime.simulate.metrics import SimulationResult
from runtime.simulate.observe import Observer
from runtime.simulate.options import SimulationOptions
from runtime.simulate.quantiles import interval
from runtime.simulate.run import simulate
from runtime.simulate.workload import closed_loop, open_loop
from tests.manifests import requests
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
    assert result.utilisation["encode"] > 0.8 * encode.predicted.utilisation  # passes are less than full


def test_a_lone_request_takes_encode_transfer_and_prefill() -> None:
    """Its first token comes after a pass over its pictures, their embeddings' way and a pass of its prompt."""
    own = manifest("disaggregated")
    encode, prefill = own.pools[0], own.pools[1]
    tokens, pictures = round(own.workload.input_tokens), own.workload.picture_tokens
    result = simulate(own, requests((0.0, tokens, 2, 0)))
    crossing = own.embedding_transfer
    sent = pictures * crossing.bytes_per_token / crossing.bandwidth_bytes_per_second + crossing.latency_seconds
    seen = StepLoad(prefill_tokens=pictures, finishing_prompts=1.0, mean_tokens=pictures)
    pairs = tokens * (tokens + 1) / 2
    read = StepLoad(prefill_tokens=tokens, prefill_pairs=pairs, finishing_prompts=1.0, mean_tokens=tokens)
    loads = ((encode, seen), (prefill, read))
    alone = sent + sum(float(evaluate(pool.step_costs["prefill"].to_step_cost(), load).seconds) for pool, load in loads)
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


def _hit(own: Manifest, requests: int, *faults: str) -> tuple[SimulationResult, int]:
    """Return a run under faults, and how many requests had their pictures encoded in passes that began."""
    told = StringIO()
    options = SimulationOptions(faults=tuple(map(parse_fault, faults)))
    result = simulate(own, open_loop(own.workload, RATE, requests), options, Observer(timeline=told))
    assert result.completed == requests
    passes = [event["args"]["requests"] for event in json.loads(told.getvalue()) if event["name"] == "encode"]
    return result, round(sum(passes))


@pytest.mark.parametrize("shape", ["disaggregated", "aggregated"])
def test_pictures_of_a_lost_encode_instance_are_encoded_again(shape: Shape) -> None:
    """No request is lost: those of the instance go to another, and wait where there is none."""
    own = manifest(shape)
    lost = [f"device {each.name}/0 at 10s for 20s" for each in own.pools[0].instances]
    whole, _ = _hit(own, 1_000)
    one, encoded = _hit(own, 1_000, lost[0])
    assert 1_000 <= encoded <= 1_000 + one.retried_requests
    assert one.retried_requests > 0
    assert one.ttft_seconds.p90 > whole.ttft_seconds.p90
    none, _ = _hit(own, 1_000, *lost)
    assert none.ttft_seconds.p90 > 20.0


def test_embeddings_wait_for_a_link() -> None:
    """An encode instance whose link falters sends nothing meanwhile, and no request begins again."""
    own = manifest("disaggregated")
    found, encoded = _hit(own, 600, *(f"link {each.name} at 10s for 3s" for each in own.pools[0].instances))
    assert (encoded, found.retried_requests) == (600, 0)
    assert found.ttft_seconds.p90 > 2.0


def test_prompts_that_lost_their_kv_are_encoded_again() -> None:
    """A lost decode instance sends its requests back to encode, as no instance keeps embeddings."""
    own = manifest("disaggregated")
    found, encoded = _hit(own, 600, f"device {own.pools[-1].instances[0].name}/0 at 10s for 20s")
    assert found.retried_requests > 0
    assert encoded >= 600 + found.retried_requests
