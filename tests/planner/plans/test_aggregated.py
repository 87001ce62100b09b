"""Aggregated instances in the search: which shape wins, that nothing better is left out, what a plan of them says."""

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from planner.checks.check import check_deployed
from planner.checks.deployed import from_plan
from planner.checks.margins import sureness
from planner.instances.aggregated import AggregatedServer
from planner.instances.candidates import BUDGETS, AggregatedCandidate, Count, aggregated_room, budgets_of
from planner.instances.space import built, groups, machines_of, role_rows, role_space, row_deployment
from planner.manifest.checks import check_manifest
from planner.offers.aggregated_kinds import AggregatedKind
from planner.offers.aggregated_offers import aggregated_offers, bounds_of, largest_room, step_limit
from planner.plans.aggregated import AggregatedPlan
from planner.plans.assemble import assemble
from planner.plans.expectation import expect
from planner.plans.plan import DisaggregatedPlan
from planner.search.changes.refusal import answered
from planner.search.fleet import Fleet
from planner.search.search import search
from planner.search.solve import find, lasting
from planner.search.ways import gather_fleet
from planner.serving.aggregated import play_aggregated
from planner.serving.capacity import Limits
from planner.serving.deployed import step_times, workload_of
from planner.serving.played import FEW
from planner.serving.streams import Stream
from planner.workload import reserved_kv_tokens
from podplan.offered import LONG_MEASURED
from podplan.planning import plan as planned
from tests.questions import small_question

DENSE: dict[str, Any] = {"model": "qwen3-8b", "devices": 2, "lengths": (512.0, 64.0), "shape": "auto"}
LIGHT = {"lengths": (512.0, 64.0), "ttft_seconds": 30.0, "tpot_seconds": 1.0}


@cache
def answer(beside: bool = False, **asked: Any):
    """Return the answer to a small question over both shapes, with what stands beside its plan where that is asked."""
    return search(small_question(**DENSE | asked), beside=beside)


def test_one_device_serves_only_aggregated() -> None:
    """A dense model on one device: there is no second one for the other role, so the instance takes both."""
    found = answer(devices=1)
    assert isinstance(found.best, AggregatedPlan)
    assert found.best.devices == 1
    assert found.best.transfer_seconds == 0
    assert answer(devices=1, shape="disaggregated").best is None


def test_the_interval_is_about_the_plans_own_tpot() -> None:
    """A closed loop's step with as many requests is another one: the printed TPOT lies inside the printed interval."""
    found = answer(devices=1).best
    prediction = found.mixed.prediction
    assert prediction.tpot_seconds == found.tpot.mean
    assert prediction.interval.low < found.tpot.mean < prediction.interval.high
    assert prediction.interval.high / found.tpot.mean - 1 == pytest.approx(
        1 - prediction.interval.low / found.tpot.mean
    )


def test_nothing_is_carried_where_a_bare_step_is_late() -> None:
    """One request in a hundred may be late by a full step each, and the others still have no step of a millisecond."""
    question = small_question(**{**DENSE, "devices": 8, "shape": "aggregated", "tpot_seconds": 0.001})
    for own in built(question, "mixed", role_rows(question, "mixed")):
        bounds = bounds_of(question, own, Count())
        assert not bounds.bound(step_limit(question, bounds.accepted), 0.99, largest_room(question, own.group)).any()


@pytest.mark.usefixtures("long_streams")
@pytest.mark.parametrize("ttft_seconds", [1.0, 0.04])
def test_all_kinds_by_hand_are_no_better(ttft_seconds: float) -> None:
    """Brute force over every row and token budget on few devices reaches the search's rate and no more."""
    question = small_question(**{**DENSE, "shape": "aggregated", "ttft_seconds": ttft_seconds})
    found = search(question, beside=False).best
    rate, reached = found.requests_per_second, False
    for group in groups(question, "mixed", role_rows(question, "mixed"), 0):
        for row in group.rows:
            deployment = row_deployment(group.deployment, row)
            for budget in BUDGETS:
                room = aggregated_room(
                    deployment,
                    np.array([float(budget)]),
                    reserved_kv_tokens(question.workload),
                    np.array([float(budget)]),
                )
                if room[0] < 1:
                    continue
                for slots in {int(room[0]), min(int(room[0]), found.mixed.candidate.batch)}:
                    candidate = AggregatedCandidate(
                        row=row, deployment=deployment, drafts=0, microbatches=1, batch=slots, batched_tokens=budget
                    )
                    count, server = 2 // row.strategy.devices, AggregatedServer(question, candidate)
                    assert not server.pool_carries(count, 1.012 * rate)
                    # TTFT at the percentile does not rise evenly with the rate, so the rate itself is tried, too.
                    reached = reached or server.pool_carries(count, rate) or server.pool_carries(count, 0.988 * rate)
    assert reached


@pytest.mark.parametrize(
    ("model", "machine", "asked"),
    [
        ("qwen3-30b-a3b", "rtx-pro-6000", {"lengths": (4096.0, 128.0), "ttft_seconds": 5.0, "tpot_seconds": 0.03}),
        ("llama-3.1-8b", "l40s", {"lengths": (512.0, 64.0), "squared_cv": 0.09, "percentile": 95.0}),
    ],
)
def test_no_batch_by_hand_carries_more(model: str, machine: str, asked: dict[str, Any]) -> None:
    """TPOT allows fewer running requests than memory holds: with too many slots it is late, with too few TTFT."""
    question = small_question(model, machine, 2, shape="aggregated", engine="sglang@0.5.23", **asked)
    kind = next(each for each in kinds(question) if each.row.strategy.devices == 1)
    rate, chosen = kind.pool_capacity(2), kind.at(2).candidate
    sized = kinds(replace(question, objective="chips", rate_per_second=0.999 * rate))

    assert chosen.batch < kind.room.max()
    assert next(each for each in sized if each.row == kind.row).pool_carries(2, 0.999 * rate)
    for factor in (0.1, 0.5, 0.8, 1.25, 2.0, 10.0):
        slots = max(round(factor * chosen.batch), 1)
        own = kind._with_slots(chosen.batched_tokens, slots)
        assert own.pool_capacity(2) < rate, slots
    assert kind._with_slots(chosen.batched_tokens, 10 * chosen.batch).pool_capacity(2) < 0.9 * rate


@pytest.mark.usefixtures("long_streams")
@pytest.mark.parametrize("engine", ["reference", "vllm@0.33.0"])
@pytest.mark.parametrize("lengths", [(512.0, 64.0), (64.0, 256.0)])
def test_no_pipeline_carries_more_than_its_bound(engine: str, lengths: tuple[float, float]) -> None:
    """With two, four or eight batches in flight, prompts or answers that weigh more, and each token budget."""
    asked = {**DENSE, "devices": 8, "lengths": lengths, "shape": "aggregated", "engine": engine}
    asked |= {"ttft_seconds": 1e4, "tpot_seconds": 1e3, "most_utilisation": 1.0}  # saturation knows no limits
    found = [kind for kind in kinds(small_question(**asked)) if kind.row.strategy.pp > 1]
    assert {kind.row.strategy.pp for kind in found} == {2, 4, 8}
    for kind in found:
        for server in kind.servers[::3]:
            bound = kind.bound_per_second[budgets_of(kind.question).index(server.candidate.batched_tokens)]
            assert server.player.saturation_per_second <= bound * (1 + 1e-3)


@pytest.mark.parametrize("asked", [DENSE, {"model": "deepseek-v2-lite", "hardware": "910b"}], ids=str)
def test_no_prompt_alone_is_quicker_than_its_bound(asked: dict[str, Any]) -> None:
    """In each number of batches in flight and with each token budget; the bound is close, for it prunes rows."""
    asked = {**asked, "devices": 8, "lengths": (4096.0, 64.0), "shape": "aggregated", "engine": "vllm@0.33.0"}
    question, parts = small_question(**asked, ttft_seconds=10.0), dict[int, list[float]]()
    one = np.ones(1, dtype=np.int64)
    prompt = Stream(arrival_seconds=np.zeros(1), prompt_tokens=4096 * one, reused_tokens=0 * one, answer_tokens=one)
    found = {kind.row: kind for kind in kinds(question)}
    for whole in built(question, "mixed", list(found)):
        for number, row in enumerate(whole.group.rows):
            bounds = bounds_of(question, whole.select(np.array([number])), Count()).with_budgets(budgets_of(question))
            least = dict(zip(budgets_of(question), bounds.longest_in_batches().tolist(), strict=True))
            for server in found[row].servers:
                alone = float(play_aggregated(server.pool, prompt).first_token_seconds[0])
                parts.setdefault(row.strategy.pp, []).append(least[server.candidate.batched_tokens] / alone)
    assert set(parts) >= {1, 2, 4}
    for found_of in parts.values():
        assert max(found_of) < 1.02  # as close as tables are
        assert np.median(found_of) > 0.9


@pytest.mark.usefixtures("long_streams")
def test_a_budget_between_those_listed_carries_more() -> None:
    """Prompts that are all alike take a step less where the budget leaves a part of one beside those that run."""
    question = small_question("gpt-oss-120b", "h100", 4, lengths=(3000.0, 512.0), ttft_seconds=2.0, shape="aggregated")
    kind = next(
        each for each in kinds(question) if (each.row.strategy.attention_dp, each.row.strategy.moe_ep) == (4, 4)
    )
    rate, chosen = kind.pool_capacity(1), kind.at(1).candidate

    assert chosen.batched_tokens not in BUDGETS
    assert not any(server.pool_carries(1, 1.003 * rate) for server in kind.servers)


@pytest.mark.usefixtures("long_streams")
def test_a_rate_that_only_a_budget_between_those_listed_carries_is_carried() -> None:
    """Every listed budget is late at the rate, so that the neighbours of the least late one have to be tried."""
    asked = {**DENSE, "devices": 1, "lengths": (4000.0, 100.0), "ttft_seconds": 0.6, "tpot_seconds": 0.03}
    question = small_question(**{**asked, "shape": "aggregated"})
    (kind,) = kinds(question)
    rate = 0.999 * kind.pool_capacity(2)
    (sized,) = kinds(replace(question, objective="chips", rate_per_second=rate))

    assert not any(server.pool_carries(2, rate) for server in sized.servers)
    assert sized.pool_carries(2, rate)


def kinds(question: Any) -> list[AggregatedKind]:
    """Return all kinds of aggregated instances of a question."""
    offers, _ = aggregated_offers(
        question, role_rows(question, "mixed"), Count(), lambda sizes: np.full(sizes.shape, 1e-9)
    )
    found = [offers.build(number) for number in range(len(offers))]
    return [kind for kind in found if isinstance(kind, AggregatedKind)]


@pytest.mark.usefixtures("long_streams")
@pytest.mark.parametrize(
    ("model", "devices", "squared_cv", "asked"),
    [
        ("qwen3-8b", 2, 1.0, {"ttft_seconds": 1.0}),
        ("qwen3-30b-a3b", 8, 0.0, {"tpot_seconds": 0.02}),
        ("qwen3-30b-a3b", 8, 2.0, {"lengths": (4096.0, 128.0), "percentile": 50.0}),
    ],
)
def test_nothing_played_is_above_its_bound(model: str, devices: int, squared_cv: float, asked: dict[str, Any]) -> None:
    """No instance with any budget carries more than its bound, up to how steps are tabulated (within 1 %)."""
    fields = {"lengths": (1024.0, 128.0), **asked}
    question = small_question(model, "h100", devices, squared_cv=squared_cv, shape="aggregated", **fields)
    found = kinds(question)
    for kind in found[:: max(len(found) // 6, 1)]:
        for server, bound in zip(kind.servers, sorted(kind.bound_per_second, reverse=True), strict=False):
            capacity = server.pool_capacity(1, FEW)
            assert capacity <= 1.01 * bound, (kind.row, server.candidate.batched_tokens)


@pytest.mark.usefixtures("long_streams")
@pytest.mark.parametrize(
    ("engine", "model", "devices", "squared_cv"),
    [
        ("reference", "qwen3-30b-a3b", 8, 1.0),
        ("vllm@0.33.0", "qwen3-8b", 1, 0.0),
        ("sglang@0.5.23", "qwen3-8b", 1, 0.0),
        ("trtllm@1.2.1", "qwen3-30b-a3b", 8, 1.0),
    ],
)
def test_all_at_once_leave_no_sooner_than_the_bound(engine: str, model: str, devices: int, squared_cv: float) -> None:
    """Short answers under loose limits: running requests vary from step to step, and prompts may have steps alone."""
    question = small_question(model, "h100", devices, squared_cv=squared_cv, shape="aggregated", engine=engine, **LIGHT)
    found = kinds(replace(question, most_utilisation=1.0))
    close = []
    for kind in found[:: max(len(found) // 6, 1)]:
        for place in np.flatnonzero((kind.bound_per_second > 0) & (kind.room >= 1)).tolist():
            server = kind._server(budgets_of(question)[place], kind.room[place])
            stream = server.player.stream(20_000)
            played = play_aggregated(server.pool, replace(stream, arrival_seconds=np.zeros(len(stream))))
            close.append(len(stream) / played.left_seconds.max() / kind.bound_per_second[place])
    assert 0.9 < max(close) <= 1.01  # as steps are tabulated


@pytest.mark.usefixtures("long_streams")
def test_budgets_that_are_left_out_are_late_even_unloaded() -> None:
    """The longest prompt that has to be in time is late in small steps, as those are tabulated (within 1 %)."""
    question = small_question("qwen3-8b", "h100", 1, squared_cv=1.0, shape="aggregated", ttft_seconds=0.15)
    kind = max(kinds(question), key=lambda kind: float(kind.bound_per_second.max()))
    out = np.flatnonzero((kind.bound_per_second == 0) & (kind.room >= 1))
    assert out.size and kind.bound_per_second.max() > 0
    for place in out.tolist():
        server = kind._server(budgets_of(question)[place], kind.room[place])
        assert server.player.trial(1e-3 * kind.bound_per_second.max(), 1, FEW).excess > 0.99


def test_what_is_served_at_most_is_served_when_asked_for() -> None:
    """Sizing does not refuse a rate below the largest, nor find one above it."""
    most = answer(shape="aggregated").best
    for share, served in ((0.9, True), (0.97, True), (0.998, True), (1.02, False)):
        asked = answer(shape="aggregated", rate_per_second=share * most.requests_per_second, objective="chips").best
        assert (asked is not None) == served, share


def test_reuse_of_nearly_all_is_served() -> None:
    """Prompts of which a few tokens are left to compute, on a model with experts."""
    question = small_question("qwen3-30b-a3b", "h100", 8, shape="aggregated")
    workload = replace(question.workload, prefix_reuse=0.95)
    assert search(replace(question, workload=workload), beside=False).best is not None


@pytest.mark.usefixtures("long_streams")
def test_few_places_wait_as_they_are_played() -> None:
    """96 places, 512 + 128 tokens, a budget of 1,024 and 85 % load: p99 TTFT lies where independent plays have it."""
    question = small_question("qwen3-8b", "h100", 1, lengths=(512.0, 128.0), shape="aggregated")
    kind = kinds(question)[0]
    listed = next(server for server in kind.servers if server.candidate.batched_tokens == 1024)
    server = AggregatedServer(question, replace(listed.candidate, batch=96))
    state = server.state(0.85 * server.player.saturation_per_second)
    assert 0.126 <= state.ttft.p99 <= 0.3


def test_the_better_shape_wins() -> None:
    """Over both shapes no less is carried than in either, and the other shape's best stands among the runners-up."""
    shapes = {shape: answer(shape=shape).best for shape in ("auto", "aggregated", "disaggregated")}
    rates = {shape: best.requests_per_second for shape, best in shapes.items() if best is not None}
    assert rates["auto"] >= max(rates["aggregated"], rates["disaggregated"]) * (1 - 1e-6)
    assert isinstance(shapes["disaggregated"], DisaggregatedPlan)
    bound = answer(beside=True).bound
    assert bound.gap < 1e-6
    assert "aggregated" in bound.covers


def test_a_slow_pool_keeps_its_limit_for_long() -> None:
    """Where answers hold their places for long, a short stream tells a rate at which a longer one is late."""
    lengths = {"lengths": (512.0, 2048.0), "engine": "vllm@0.33.0"}
    question = small_question("qwen3-8b", "h100", 1, squared_cv=1.0, shape="aggregated", **lengths)
    searched = find(gather_fleet(Fleet.of(question)))
    short, found = searched.best, lasting(searched)
    plan = found.best
    assert short.played.excess <= 1 < short.under(question, requests=None)(short.requests_per_second).played.excess
    assert plan.played.excess <= 1 and plan.played.requests > short.played.requests
    assert found.gap == pytest.approx(short.requests_per_second / plan.requests_per_second - 1)
    assert search(question, beside=False).best.requests_per_second == plan.requests_per_second


@pytest.mark.usefixtures("long_streams")
def test_the_manifest_expects_what_the_plan_says() -> None:
    """A manifest of the plan is valid, and its queue gives the plan's latencies again."""
    plan = search(small_question(**{**DENSE, "devices": 1}), beside=False).best
    manifest = assemble(plan, {"model": "small"})
    check_manifest(manifest)
    pool = manifest.pools[0]
    assert (pool.role, manifest.kv_transfer) == ("mixed", None)
    assert pool.limits.requests_per_dp_rank == plan.mixed.candidate.batch
    other = replace(workload_of(manifest.workload), arrival_squared_cv=1.0 + 1e-12)  # not the planned traffic: solved
    found = expect(manifest, other, plan.requests_per_second).prediction
    # Where requests wait for slots, rounding decides who gets one.
    assert found.ttft_seconds.mean == pytest.approx(plan.ttft.mean, rel=5e-3)
    assert found.tpot_seconds.p99 == pytest.approx(plan.tpot.p99, rel=2e-3)


def test_a_simulation_reads_step_times_off_the_plans_cells() -> None:
    """Knots of its table differ beyond the workload's longest prompt only."""
    plan = search(small_question(**{**DENSE, "devices": 1})).best
    manifest, own = assemble(plan, {"model": "small"}), AggregatedServer(plan.question, plan.mixed.candidate).times
    found = step_times(manifest, manifest.pools[0], "mixed", manifest.pools[0].step_costs["mixed"].to_step_cost())
    assert found.lengths[own.lengths.size - 1] == own.lengths[-1] == 512
    assert found.lengths[-1] == manifest.model.spec.max_position
    for name, mine in own._asdict().items():
        theirs = getattr(found, name)
        if name in ("lengths", "loaded"):
            theirs = theirs[: mine.size] if name == "lengths" else theirs[..., : own.lengths.size, :]
        assert np.asarray(theirs) == pytest.approx(np.asarray(mine), rel=1e-9), name


@pytest.mark.usefixtures("long_streams")
def test_a_simulation_is_long_enough_for_what_the_plan_says() -> None:
    """Close to saturation a batch fills and empties over tens of residences."""
    asked = {"hw": "h100", "devices": 1, "isl": 512, "osl": 64, "ttft": "2s", "tpot": "50ms", "engine": "vllm"}
    found = planned("qwen3-8b", **asked, shape="aggregated")
    run = found.simulate()
    assert run.measured.requests == LONG_MEASURED
    # Its Poisson arrivals err by 0.2 % of the load, which TPOT multiplies.
    assert run.measured.tpot_seconds.mean == pytest.approx(found.manifest().predicted.tpot_seconds.mean, rel=0.015)
    assert found.simulate(policies=None, each_iteration=True, requests=100).measured.requests == 100


def test_rows_of_aggregated_instances() -> None:
    """Staged attention and attention apart from experts are none; dedicated shared experts are, as in decode."""
    question = small_question(model="deepseek-v2-lite", hardware="cm384", devices=32, shape="auto")
    rows = role_space(question, "mixed").rows
    assert rows
    assert not any(row.strategy.staged or row.strategy.domains for row in rows)
    assert machines_of(question, "mixed") is question.decode


def test_limits_out_of_reach_are_told() -> None:
    """Where no aggregated instance keeps a limit, the answer names it and a limit that one keeps."""
    found = answered(small_question(**{**DENSE, "devices": 1, "shape": "aggregated", "tpot_seconds": 0.001}))
    assert found.best is None
    assert found.binding_limit == "tpot"
    assert "nearest change: --tpot" in found.explanation


def test_answers_of_one_token_have_no_tpot() -> None:
    """A plan for them is made, told and weighed all the same."""
    plan = answer(devices=1, lengths=(512.0, 1.0)).best
    prediction = plan.mixed.prediction
    assert 0 < prediction.interval.low < prediction.iteration_seconds < prediction.interval.high
    assert 0 < sureness(plan).rate_per_second < plan.requests_per_second
    rate = 0.5 * plan.requests_per_second
    assert check_deployed(from_plan(plan), Limits.of(plan.question), rate, confidence=0.9).holds
    assert assemble(plan, {}).predicted.ttft_seconds is not None


def test_a_plan_travels_to_another_process() -> None:
    """With all that was played."""
    plan = answer(devices=1).best
    fresh = AggregatedServer(plan.question, plan.mixed.candidate).state(plan.requests_per_second)
    there = pickle.loads(pickle.dumps(fresh))
    assert there.ttft == fresh.ttft and there.e2e == fresh.e2e
    assert pickle.loads(pickle.dumps(plan)).ttft == plan.ttft


def test_who_asks_a_plan_again_plays_nothing_again() -> None:
    """Neither what the search played for the plan, nor what it was told over more requests."""
    plan = answer(devices=1, lengths=(500.0, 90.0)).best
    again = AggregatedServer(plan.question, plan.mixed.candidate)
    played = again.player.count.turns
    assert again.state(plan.requests_per_second, requests=plan.played.asked_requests).ttft == plan.mixed.state.ttft
    assert again.player.count.turns == played > 0


@pytest.mark.parametrize(("ttft", "percentile", "limit"), [(0.1, 90.0, "ttft"), (2.0, 60.0, "utilisation")])
def test_what_is_told_to_bind_is_reached(ttft: float, percentile: float, limit: str) -> None:
    """Saturation is told where the pool is saturated, however near TTFT is to its limit."""
    limits = {"ttft_seconds": ttft, "tpot_seconds": 1.0, "percentile": percentile}
    plan = answer(**limits, devices=1, shape="aggregated").best
    assert isinstance(plan, AggregatedPlan) and plan.binding_limit == f"devices, {limit}"
    assert (plan.mixed.utilisation == pytest.approx(plan.question.most_utilisation)) == (limit == "utilisation")


@pytest.mark.usefixtures("long_streams")
def test_a_rate_just_below_the_largest_has_a_size() -> None:
    """Few requests show no need for fewer slots there, many do: 169 of 189 keep TPOT, as the largest rate takes."""
    asked = {"hw": "l40s", "devices": 1, "engine": "sglang", "shape": "aggregated"}
    most = planned("llama-3.2-1b", **asked).best
    assert most is not None and most.mixed.candidate.batch == 169
    sized = planned("llama-3.2-1b", **asked, rate=0.999 * most.requests_per_second).best
    assert sized is not None and sized.mixed.candidate.batch < 189
