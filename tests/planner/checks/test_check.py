"""Verdicts: margins, confidence and losses, against the queues that they are made of."""

from dataclasses import replace
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest

from planner.checks.check import check_deployed, check_question
from planner.checks.deployed import Deployed, DeployedPool, Lost, Standing, from_plan, plan_on, standing
from planner.checks.manifests import from_manifest
from planner.checks.margins import Margin, held_confidence, margins_at, sureness, worst_loss
from planner.checks.on_trace import held_at
from planner.closed_forms.birth_death import DecodeState
from planner.instances.operating import PrefillServer
from planner.plans.assemble import assemble
from planner.plans.plan import DisaggregatedPlan
from planner.question import Pin, Question
from planner.search.search import search
from planner.search.sure import rate_with
from planner.serving.capacity import Limits
from planner.serving.deployed import workload_of
from planner.serving.latency import Latency
from planner.serving.played import MANY
from planner.workload import Lengths, Workload
from tests.planner.checks.test_traced import bursty
from tests.plans import small_manifest, small_plan
from tests.questions import best_of, small_question

NODES = {"model": "qwen3-8b", "hardware": "h100", "devices": 24, "weights": "bf16"}
"""Three of them."""


def test_margins_are_shares_of_the_limit() -> None:
    """Half the limit is 50 % of room; a rate that is carried twice is 100 %; no latency at all is no room."""
    assert Margin(name="ttft", limit=2.0, value=1.0).share == pytest.approx(0.5)
    assert Margin(name="rate", limit=10.0, value=20.0).share == pytest.approx(1.0)
    late, beyond = (Margin(name="tpot", limit=1.0, value=value) for value in (1.01, None))
    assert not late.holds and beyond.share is None


def test_predicted_figures_are_the_plans_own() -> None:
    """At a confidence of one half the standing of a plan at its rate is what the plan says."""
    plan = small_plan()
    found = standing(from_plan(plan), plan.requests_per_second)
    assert found.ttft.p99 == pytest.approx(plan.ttft.p99)
    assert found.tpot.p99 == pytest.approx(plan.tpot.p99)
    asked = {"model": "llama-3.1-8b", "hardware": "cm384", "devices": 4, "lengths": (2048.0, 1.0), "ttft_seconds": 5.0}
    best = best_of(**asked, shape="aggregated")  # told over more requests than pools are sized on
    verdict = check_question(small_question(**asked, shape="aggregated", rate_per_second=best.requests_per_second))
    assert best.played.asked_requests > MANY and verdict.margins[0].value == best.ttft.p99


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_who_waits_for_decode_fills_prefill(confidence: float) -> None:
    """A pool without room is as full as a plan says, and with longer times waits are as much longer: 0.8 of them."""
    line = replace(DecodeState.idle(10.0), waiting_probability=0.8, mean_wait_seconds=4.0)
    alone, deviation = Latency.from_samples(np.full(9, 0.5)), 0.1
    prefill = DeployedPool(
        role="prefill", instances=2, at=lambda *_: Standing(ttft=alone), deviation=deviation, room_prompts=0.0
    )
    decode = DeployedPool(role="decode", instances=1, at=lambda *_: Standing(line=line), deviation=2 * deviation)
    slow, slower = (1 + share * NormalDist().inv_cdf(confidence) for share in (deviation, 2 * deviation))
    ttft = standing(Deployed(pools=(prefill, decode), losses={}), 10.0, confidence).ttft
    assert ttft.mean == pytest.approx(slow * 0.5 + slower * 0.8 * 4.0 / 0.8)


def test_more_confidence_is_more_time() -> None:
    """Latencies rise with the confidence, and the confidence held is where they meet the limit."""
    plan = small_plan()
    deployed = from_plan(plan)
    rate = plan.requests_per_second * 0.7
    times = [standing(deployed, rate, level) for level in (0.2, 0.5, 0.8)]
    assert all(found.ttft is not None and found.tpot is not None for found in times)
    ttft, tpot = ([getattr(found, name).p99 for found in times] for name in ("ttft", "tpot"))
    assert ttft == sorted(ttft)
    assert tpot == sorted(tpot)
    limits = Limits(ttft_seconds=ttft[2], percentile=99)
    assert held_confidence(deployed, limits, rate) == pytest.approx(0.8, abs=0.02)


def test_what_is_gone_is_missed_in_the_queue() -> None:
    """After losing one of c prefill instances each of the others gets c/(c - 1) of its rate, and is one of fewer."""
    plan = small_plan()
    known = from_plan(plan)
    deployed = replace(known, pools=(replace(known.pools[0], instances=4), known.pools[1]))
    rate = 1.5 * plan.requests_per_second / plan.prefill.instances
    found = standing(deployed, rate, lost=Lost(prefill=1))
    alone = PrefillServer(plan.question, plan.prefill.candidate).ttft(rate / 3, 3)
    assert found.ttft.p99 == pytest.approx(alone.p99)
    assert standing(deployed, rate, lost=Lost(prefill=4)).ttft is None


def test_the_worst_loss_leaves_least_room() -> None:
    """No loss of that kind leaves less room than the one that is told."""
    plan = small_plan(**NODES)
    deployed = from_plan(plan)
    limits, rate = Limits.of(plan.question), plan.requests_per_second * 0.4
    worst = worst_loss(deployed, limits, rate, "node")
    rooms = []
    for lost in deployed.losses["node"]:
        found = standing(deployed, rate, lost=lost)
        pairs = ((found.ttft, limits.ttft_seconds), (found.tpot, limits.tpot_seconds))
        rooms.append(min(-1e9 if a is None else 1 - a.p99 / (limit or 1.0) for a, limit in pairs))
    told = min(-1e9 if margin.share is None else margin.share for margin in worst.margins)
    assert told == pytest.approx(min(rooms))


def _asked(**changes: object) -> Question:
    return replace(small_plan(**NODES).question, **changes)  # type: ignore[arg-type]


def test_a_question_holds_up_to_what_the_devices_carry() -> None:
    """At 99 % of the best plan's rate every limit holds, at 103 % the devices bind and the rate is named."""
    most = small_plan(**NODES).requests_per_second
    assert check_question(_asked(rate_per_second=0.99 * most)).holds
    verdict = check_question(_asked(rate_per_second=1.03 * most))
    assert not verdict.holds
    assert verdict.binding == "devices"
    assert "nearest changes: --rate" in verdict.explanation
    named = int(verdict.explanation.rpartition("--devices ")[2])
    larger = replace(_asked().prefill, devices=named)
    assert check_question(_asked(prefill=larger, decode=larger, rate_per_second=1.03 * most)).holds


@pytest.mark.parametrize("decodes", [1, 3])
def test_the_rate_with_a_confidence_is_where_that_is_held(decodes: int) -> None:
    """What pools carry with 0.9, and the confidence with which limits hold at that rate, are one statement.

    Several decode instances with few slots would help each other out, which neither counts on.
    """
    pins = (("prefill", Pin(instances=8)), ("decode", Pin(instances=decodes, batch=24)))
    asked = small_question(devices=8 + decodes, lengths=(1024.0, 1024.0), tpot_seconds=0.01, pins=pins)
    plan = search(asked, beside=False).best
    manifest = assemble(plan, {})
    for deployed in (from_plan(plan), from_manifest(manifest, workload_of(manifest.workload))):
        held = held_confidence(deployed, Limits.of(asked), rate_with(plan, 0.9))
        assert held == pytest.approx(0.9, abs=0.02)


def test_a_utilisation_limit_bounds_the_confidence_as_the_rate() -> None:
    """Pools at the utilisation that is planned with carry less with 0.9, and so are no surer than 0.9."""
    plan = search(replace(_asked(), most_utilisation=0.7, ttft_seconds=5.0), beside=False).best
    sure = sureness(plan)
    assert sure.rate_per_second < plan.requests_per_second
    assert sure.held == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("confidence", [0.6, 0.8, 0.95])
def test_a_plan_tells_no_less_confidence_than_was_asked_for(confidence: float) -> None:
    """Though the confidence is told to about 1 %; it is hardly more, for the rate is the largest that has it."""
    plan = search(replace(small_plan().question, confidence=confidence), beside=False).best
    held = sureness(plan).held
    assert held is not None and confidence <= held < confidence + 0.04


def test_what_survives_a_loss_is_told_of_the_survivors() -> None:
    """Spares that the loss takes give neither confidence at the plan's rate nor a higher rate with 0.9."""
    plan = search(_asked(survive="node"), beside=False).best
    limits, rate = Limits.of(plan.question), plan.requests_per_second

    assert held_confidence(from_plan(plan), limits, rate) > 0.9
    assert held_confidence(from_plan(plan), limits, rate, "node") == pytest.approx(0.5, abs=0.06)
    assert rate_with(plan, 0.5) == pytest.approx(plan.requests_per_second, rel=1e-3)
    assert rate_with(plan, 0.9) < plan.requests_per_second


def test_survivors_hold_and_failures_are_measured() -> None:
    """A plan for the loss keeps the limits after it; where none does, by how much the limits fail is told."""
    question = _asked(survive="node", rate_per_second=1.0)
    verdict = check_question(question)
    assert verdict.holds
    assert verdict.after_loss.holds
    plan = verdict.plan
    lost = plan.lost("node")["decode"]
    assert plan.decode.instances > lost
    too_much = replace(question, rate_per_second=0.98 * small_plan(**NODES).requests_per_second)
    failed = check_question(too_much)
    assert not failed.holds
    assert not failed.after_loss.holds
    beyond = check_question(replace(question, rate_per_second=1.2 * small_plan(**NODES).requests_per_second))
    assert "without a loss 24 devices carry" in beyond.explanation and "no rate at all" not in beyond.explanation


def test_a_manifest_is_weighed_as_the_plan_that_it_came_from() -> None:
    """Its queues give the plan's latencies, and it states the deviations; its own intervals have the same order."""
    plan, manifest = small_plan(), small_manifest()
    silent = manifest.model_copy(
        update={"pools": [pool.model_copy(update={"predicted": None}) for pool in manifest.pools]}
    )
    workload = workload_of(manifest.workload)
    deployed, own, known = from_manifest(manifest, workload), from_manifest(silent, workload), from_plan(plan)
    for pool, bare, other in zip(deployed.pools, own.pools, known.pools, strict=True):
        assert pool.role == other.role
        assert pool.deviation == other.deviation
        assert bare.deviation == pytest.approx(other.deviation, rel=0.3)
    verdict = check_deployed(deployed, Limits.of(plan.question), plan.requests_per_second)
    assert verdict.margins[1].value == pytest.approx(plan.tpot.p99, rel=0.05)


def test_a_manifest_plays_as_many_requests_as_its_own_percentile_needs() -> None:
    """At p99 twice as many were played as the plan is told over at p99.9, and TTFT was 7 % longer."""
    asked = small_question("deepseek-v2-lite", "l40s", 2, engine="vllm@0.33.0", percentile=99.9, tpot_seconds=0.3)
    lengths = Workload(input_tokens=Lengths(mean=128.0, squared_cv=0.09), output_tokens=Lengths(mean=16.0))
    plan = search(replace(asked, workload=lengths), beside=False).best
    manifest = assemble(plan, {})
    margins = margins_at(from_manifest(manifest, lengths), Limits.of(plan.question), plan.requests_per_second)
    assert margins[0].value == pytest.approx(plan.ttft.at(99.9), rel=1e-6)


def test_prompts_of_many_lengths_are_played_on_the_manifests_own_pass_times() -> None:
    """A table of all budgets put qwen3-8b on six cards 1.0 % beyond its TTFT limit at the rate that planning gave."""
    question = small_question(
        "qwen3-8b", "rtx-pro-6000", 6, lengths=(128.0, 16.0), squared_cv=1.0, ttft_seconds=0.3, tpot_seconds=0.3
    )
    plan = search(question, beside=False).best
    manifest = assemble(plan, {"model": "qwen3-8b"})
    workload = workload_of(manifest.workload)
    deployed = from_manifest(manifest, workload)
    for rate, requests in product((1.0, 0.5 * plan.requests_per_second, plan.requests_per_second), (MANY, None)):
        own = plan.under(plan.question, requests=requests)(rate).ttft
        found = standing(deployed, rate, requests=requests)
        assert found.ttft.at(99) == pytest.approx(own.at(99), rel=1e-6)
    assert plan.ttft.at(99) <= 0.3


def test_a_trace_is_what_a_plan_is_weighed_on() -> None:
    """Margins are of its own requests, held to the last per cent; stationary queues of its mean rate see no burst."""
    trace, question = bursty(6.0, 1200), small_question("qwen3-8b", "h100", 2)
    plain = check_question(question)
    rate = 0.9 * plain.rate_per_second
    assert check_question(replace(question, rate_per_second=rate)).holds
    verdict = check_question(replace(question, rate_per_second=rate), trace=trace)
    assert verdict.played and not verdict.holds and verdict.plan is not None
    carried = next(margin.value for margin in verdict.margins if margin.name == "rate")
    assert carried is not None and carried < rate
    held = check_question(replace(question, rate_per_second=0.98 * carried), trace=trace)
    assert held.holds and held.played
    assert isinstance(held.plan, DisaggregatedPlan)
    found = held_at(replace(held.plan, requests_per_second=0.98 * carried), trace)
    ttft = next(margin.value for margin in held.margins if margin.name == "ttft")
    assert ttft == pytest.approx(np.percentile(found.recorded.ttft_seconds, 99.0), rel=1e-6)


def test_losses_and_confidence_are_played_too() -> None:
    """Fewer instances and longer service make the trace's requests wait longer."""
    plan = small_plan(**NODES)
    played = plan_on(plan, bursty(3.0))
    rate = 0.6 * plan.requests_per_second
    whole, slower = standing(played, rate), standing(played, rate, confidence=0.9)
    lost = standing(played, rate, lost=played.losses["node"][0])
    assert whole.ttft and slower.ttft and lost.ttft
    assert whole.ttft.mean < slower.ttft.mean
    assert whole.ttft.mean < lost.ttft.mean
    assert plan_on(plan, None).asked_at_most is None


def test_the_pool_that_a_loss_ends_is_named() -> None:
    """Of an aggregated deployment of one instance nothing is left, and no prefill or decode is told of."""
    pool = DeployedPool(role="mixed", instances=1, at=lambda *_: Standing(), deviation=0.1)
    alone = Deployed(pools=(pool,), losses={"node": (Lost(mixed=1),)})
    limits = Limits(ttft_seconds=2.0, tpot_seconds=0.05, percentile=99)
    found = check_deployed(alone, limits, 1.0, loss="node")
    assert found.explanation == (
        "the pool cannot keep up with the rate; after losing one node, no mixed instance is left"
    )
