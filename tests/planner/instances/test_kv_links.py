"""Links that KV crosses: what is played beside closed forms and the runtime."""

from dataclasses import replace

import numpy as np
import pytest

from planner.closed_forms.birth_death import DecodeQueue
from planner.closed_forms.bulk_lattice import Passes
from planner.costs.cache import Cache
from planner.instances.kv_links import (
    MOST_LINK_UTILISATION,
    KvLinks,
    LinkSide,
    Sink,
    Source,
    _ended,
    link_state,
    mean_wait,
)
from planner.plans.assemble import assemble
from planner.plans.expectation import expect
from planner.plans.plan import DisaggregatedPlan
from planner.plans.worked import worked_plan
from planner.question import Machines, Question
from planner.search.search import search
from planner.serving.deployed import workload_of
from planner.serving.streams import Stream
from planner.workload import Lengths, Workload
from runtime.simulate.options import SimulationOptions
from runtime.simulate.run import simulate
from runtime.simulate.workload import open_loop, with_running
from tests.planner.closed_forms.waits import pollaczek_khinchine_wait
from tests.plans import small_plan
from tests.questions import small_question

MEAN = 1000 * 1e5 / 1e9


def _links(groups=(4, 8), devices=(1, 1), rate=1e9) -> KvLinks:
    prefill, decode = (LinkSide(groups=count, devices=size) for count, size in zip(groups, devices, strict=True))
    return KvLinks(
        prefill=prefill, decode=decode, link_bytes_per_second=rate, latency_seconds=0.001, cache=Cache(token_bytes=1e5)
    )


def _workload(answer=2.0) -> Workload:
    return Workload(input_tokens=Lengths(mean=1000.0), output_tokens=Lengths(mean=answer))


def _passes(seconds: float, most: int = 1) -> Passes:
    return Passes.tabulated(lambda prompts: np.full(prompts.size, seconds), most)


def _sink(instances: int, most: int = 1_000_000, seconds: float = 1e-3) -> Sink:
    queue = DecodeQueue(
        iterations_per_request=Lengths(mean=1.0),
        iteration_seconds=lambda running: np.full(running.size, seconds),
        most_requests=most,
    )
    return Sink(queue, instances)


def test_channels_are_links_over_those_of_a_transfer():
    """Groups of 8 devices send to groups of 2 over four channels, and as fast as two links."""
    links = _links(groups=(3, 5), devices=(8, 2))
    assert (links.channels(links.prefill), links.channels(links.decode)) == (4, 1)
    assert (links.servers(links.prefill), links.servers(links.decode)) == (12, 5)
    assert links.held_seconds(np.array([1000.0])) == pytest.approx([1000 * 1e5 / 2e9])


def test_a_single_link_under_poisson_is_md1():
    """Passes that take no time, one link out and very many in: Pollaczek-Khinchine."""
    links, source = _links(groups=(1, 1000)), Source(_passes(1e-9), 1)
    found = link_state(
        links, 0.7 / MEAN, _workload(), lambda: mean_wait(links, 0.7 / MEAN, _workload(), source, _sink(1))
    )
    assert found.wait_seconds == pytest.approx(pollaczek_khinchine_wait(0.7 / MEAN, MEAN, 0.0), rel=0.1)
    assert found.utilisation["prefill"] == pytest.approx(0.7)
    assert found.transfer_seconds == pytest.approx(MEAN + 0.001)


def test_overloaded_links_have_no_state():
    """More bytes than the links carry: none."""
    assert link_state(_links(groups=(1, 8)), 11.0, _workload(), lambda: 0.0) is None


def test_fast_links_are_negligible():
    """A plane that carries a prompt in a millisecond at a hundredth of its load makes nobody wait."""
    assert mean_wait(_links(rate=1e12), 100.0, _workload(), Source(_passes(1e-3, 4), 1), _sink(1)) < 1e-5


def test_prompts_of_a_pass_wait_for_one_another():
    """A group that is always full ends five prompts at once: they wait for two transfers on average."""
    source = Source(_passes(1.0, 5), 1)
    found = mean_wait(_links(groups=(1, 1000)), 4.99, _workload(), source, _sink(1))
    assert found == pytest.approx(2 * MEAN, rel=0.05)


def test_a_long_prompt_shares_its_last_pass() -> None:
    """Passes of two mean prompts in 2 s: one of 2.5 mean prompts goes in its second pass with who came by then."""
    source = Source(Passes(prompts=np.array([1.0, 2.0]), seconds=np.array([1.0, 2.0])), 1)
    stream = Stream(
        arrival_seconds=np.array([0.0, 1.5, 3.5, 9.0]),
        prompt_tokens=np.array([5, 1, 1, 1]),
        reused_tokens=np.zeros(4, dtype=np.int64),
        answer_tokens=np.ones(4, dtype=np.int64),
    )
    ready, group = _ended(stream, source, 2)
    assert ready == pytest.approx([3.0, 3.0, 4.0, 9.5])
    assert group.tolist() == [0, 1, 0, 1]
    reusing = replace(stream, prompt_tokens=np.array([6, 2, 2, 2]), reused_tokens=np.array([4, 0, 0, 0]))
    assert _ended(reusing, source, 2)[0] == pytest.approx([1.0, 2.5, 4.5, 10.0])


def test_decode_that_has_room_on_one_rank_is_waited_for():
    """Two prompts a second for ranks that hold one request each: whoever finds room pulls it from an idle rank."""
    source = Source(_passes(0.5, 4), 4)
    found = mean_wait(_links(groups=(4, 40)), 8.0, _workload(answer=101.0), source, _sink(1, most=40, seconds=0.02))
    assert found < 0.2 * MEAN


def test_drafts_that_are_refused_let_prompts_meet_at_a_rank():
    """Equal answers make room on one rank after the other; with drafts ranks lose two requests at once at times."""
    drafts = {"tokens_per_iteration": 1.7, "iterations_per_request": Lengths(mean=1023 / 1.7)}
    equal = replace(_sink(1, seconds=0.075).queue, **drafts)
    links, source = _links(groups=(48, 40), rate=15e9), Source(_passes(0.3, 24), 2)
    workload = _workload(answer=1024.0)
    kept, drawn = (
        mean_wait(links, 64.0, workload, source, Sink(queue, 1))
        for queue in (equal, replace(equal, tokens_squared_cv=0.07))
    )
    assert kept < 0.01 * MEAN / 15 < 0.05 * MEAN / 15 < drawn


def _slower(machines: Machines, factor: float) -> Machines:
    hardware = machines.hardware
    planes = [
        replace(
            plane,
            bandwidth_bytes_per_second=replace(
                plane.bandwidth_bytes_per_second, value=plane.bandwidth_bytes_per_second.value / factor
            ),
        )
        if plane.name == hardware.kv_plane
        else plane
        for plane in hardware.planes
    ]
    return replace(machines, hardware=replace(hardware, planes=planes))


def _on_slow_planes(question: Question, factor: float) -> Question:
    prefill, decode = (_slower(machines, factor) for machines in (question.prefill, question.decode))
    return replace(question, prefill=prefill, decode=decode)


@pytest.fixture(scope="module")
def bound() -> DisaggregatedPlan:
    """A plan whose KV crosses a plane a tenth as fast as an H100 node's."""
    return search(_on_slow_planes(small_question(), 10), beside=False).best


def test_a_supernode_does_not_notice():
    """On CloudMatrix's plane transfers and their waits are less than a hundredth of a request's time."""
    plan = small_plan()
    assert plan.links.seconds < 0.01 * plan.e2e_mean_seconds
    assert "kv_links" not in plan.binding_limit


def test_slow_links_bind(bound):
    """They are what stops the plan, at the load that a plan may count on, and the sentence says so."""
    assert bound.binding_limit.endswith("kv_links")
    assert max(bound.links.utilisation.values()) == pytest.approx(MOST_LINK_UTILISATION, rel=1e-3)
    assert "links that KV crosses" in bound.explanation
    assert bound.requests_per_second < search(small_question(), beside=False).best.requests_per_second


def test_transfers_that_take_most_of_tpot_slow_a_plan_down_and_do_not_refuse_it():
    """Answers of eight tokens over slow links: a rate at which they wait little, within the limit, with a gap told."""
    question = _on_slow_planes(small_question(devices=4, lengths=(1024.0, 8.0)), 60)
    answer = search(question)
    assert answer.best.tpot.at(question.percentile) <= question.tpot_seconds
    assert answer.best.requests_per_second == pytest.approx(answer.bound.reached)
    assert answer.bound.gap > 0


def test_the_arithmetic_is_told(bound):
    """Bytes over links and rate, and the wait, stand among decode's lines."""
    lines = worked_plan(bound)[-1].lines
    assert any("KV transfer" in line and "waiting" in line for line in lines)


@pytest.mark.parametrize(("answer", "share", "close"), [(64.0, 0.9, 0.05), (512.0, 0.95, 0.2), (1024.0, 0.9, 0.2)])
def test_slow_links_against_the_runtime(answer: float, share: float, close: float) -> None:
    """Both sides' load within 3 %, TPOT within 5 %; the wait within 5 % of short answers, 20 % of long ones.

    The runtime begins with the long answers that run on average, so that it need not fill first. Thousands of 512
    tokens run in one instance: where they began at random places they would wait three to five times as long.
    """
    question = small_question(lengths=(1024.0, answer), ttft_seconds=2.0)
    plan = search(_on_slow_planes(question, 10), beside=False).best
    assert plan.handed_over == (answer < 100)
    manifest, rate = assemble(plan, {}), share * plan.requests_per_second
    told = expect(manifest, workload_of(manifest.workload), rate).prediction
    if plan.handed_over:
        stream = open_loop(manifest.workload, rate, 40_000)
    else:
        stream = with_running(open_loop(manifest.workload, rate, 30_000), round(rate * plan.tpot.mean * answer))
    found = simulate(manifest, stream, SimulationOptions(measured_until_seconds=float(stream.arrival_seconds[-1])))
    assert told.mean_transfer_wait_seconds == pytest.approx(found.mean_transfer_wait_seconds, rel=close)
    assert told.link_utilisation == pytest.approx(found.link_utilisation, rel=0.03)
    assert told.tpot_seconds.mean == pytest.approx(found.tpot_seconds.mean, rel=0.05)


def test_more_than_the_links_carry_has_no_prediction(bound):
    """Past saturation of the links a stationary stream has none, and the reason names them."""
    manifest = assemble(bound, {})
    found = expect(manifest, workload_of(manifest.workload), 1.3 * bound.requests_per_second)
    assert found.prediction is None
    assert "links" in found.basis
