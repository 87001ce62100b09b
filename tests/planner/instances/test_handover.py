"""Decode behind its own prefill instances, where answers are short beside prefill passes."""

from typing import Any

import numpy as np
import pytest

from planner.instances.handover import Handover
from planner.plans.assemble import assemble
from planner.plans.expectation import expect
from planner.plans.plan import DisaggregatedPlan
from planner.search.search import search
from planner.serving.decode import play_separate
from planner.serving.deployed import workload_of
from planner.serving.played import MANY
from planner.serving.streams import stationary
from podplan.options import QuestionFlags, flags_of
from podplan.question import read_question
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import open_loop

ASKED: list[dict[str, Any]] = [
    {"model": "qwen3-8b", "hw": "b200", "isl": 4096, "osl": 8, "tpot": 0.015},
    {"model": "qwen3-8b", "hw": "h200", "isl": 8192, "osl": 128, "tpot": 0.05},
    {"model": "qwen3-30b-a3b", "hw": "h100", "isl": 4096, "osl": 32, "tpot": 0.03, "ttft": 20},
    {"model": "qwen3-8b", "hw": "h100", "isl": 1000, "osl": 32, "osl_cv": 2, "tpot": 0.05},
]
_NEAR = 0.98
"""Share of the largest rate: at that rate itself four streams of 160,000 to 640,000 requests differ by 8 % in p99."""


def planned(**flags: Any) -> DisaggregatedPlan:
    """Return the plan of two pools on four devices."""
    asked = {"devices": 4, "engine": "vllm", "ttft": 5, "shape": "disaggregated", **flags}
    return search(read_question(flags_of(QuestionFlags, asked)).question, beside=False).best


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_short_answers_take_in_the_runtime_what_is_told(asked: dict[str, Any]) -> None:
    """The mean of TPOT within 3 %, p99 within 8 %: prompts of a pass wait for each other's KV and join together.

    Those waits, of the same play, within 10 %, which near saturation takes a long stream to tell. Answers of one token,
    a twenty-fifth of the last ones, take neither links nor time in decode.
    """
    most = planned(**asked)
    plan = most.under(most.question)(_NEAR * most.requests_per_second)
    assert plan is not None
    manifest = assemble(plan, {})
    stream = open_loop(manifest.workload, plan.requests_per_second, 160_000)
    found = simulate(manifest, stream, SimulationOptions())
    assert plan.handed_over
    assert plan.tpot.mean == pytest.approx(found.tpot_seconds.mean, rel=0.03)
    assert plan.tpot.p99 == pytest.approx(found.tpot_seconds.p99, rel=0.08)
    assert plan.links.wait_seconds == pytest.approx(found.mean_transfer_wait_seconds, rel=0.1)
    assert plan.links.utilisation == pytest.approx(found.link_utilisation, rel=0.02)
    in_decode = found.e2e_seconds.mean - found.ttft_seconds.mean
    assert plan.e2e.mean - plan.ttft.mean == pytest.approx(in_decode, rel=0.03)


def test_a_manifest_tells_what_its_plan_does() -> None:
    """The queues of a manifest are played as those of its plan are."""
    plan = planned(**ASKED[0])
    manifest, rate = assemble(plan, {}), 0.8 * plan.requests_per_second
    told = expect(manifest, workload_of(manifest.workload), rate).prediction
    own = plan.under(plan.question)(rate)
    assert told.tpot_seconds.p99 == pytest.approx(own.tpot.p99, rel=1e-3)


def test_slow_prefill_is_played_as_long_before_decode() -> None:
    """Near saturation prompts that differ leave in long swells: TPOT is that of other streams, eight times as long."""
    lengths = {"isl": 3000, "isl_cv": 2, "osl": 200, "osl_cv": 2, "max_utilisation": 0.95}
    plan = planned(model="qwen3-8b", hw="h100", ttft=1000, tpot=1000, **lengths)
    asked, pools = plan.question, plan.decoder(plan.question).handover.pools  # of one decode instance, as the plan has
    stream = stationary(asked.workload, 320_000, seed=1, most_tokens=asked.model.max_position)
    found = play_separate(pools, stream.at_rate(plan.requests_per_second)).tpot_seconds[stream.counting]
    assert plan.played.asked_requests > MANY
    assert plan.tpot.mean == pytest.approx(np.nanmean(found), rel=0.01)


def test_long_answers_have_a_closed_form() -> None:
    """Prefill at 5 % of its load takes prompts one by one: a looser TTFT, and so a larger budget, cost 1 % of rate."""
    line = {"model": "qwen3-30b-a3b", "hw": "l40s", "engine": "vllm", "isl": 1000, "osl": 256, "tpot": 0.03}
    tight, loose = (planned(**line, ttft=ttft) for ttft in (0.3, 3.0))
    assert loose.prefill.candidate.tokens_per_device > tight.prefill.candidate.tokens_per_device
    assert loose.requests_per_second == tight.requests_per_second and not loose.handed_over


def test_prefill_is_told_over_the_stream_that_decode_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check plays both over it; TTFT over prefill's own was 0.07 % longer."""
    monkeypatch.setattr(Handover, "lasting", lambda *_: 240_000)
    plan = planned(**ASKED[0], isl_cv=0.5)
    at = (plan.under(plan.question, requests=count)(0.8 * plan.requests_per_second) for count in (None, 240_000))
    assert len({each.ttft.at(99) for each in at}) == 1
