"""Aggregated instances in the search: which shape wins, that nothing better is left out, what a plan of them says."""

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from cli.plan_view import interval_text
from planner.checks.check import Limits, check_deployed
from planner.checks.deployed import from_plan
from planner.instances.decode_candidates import Count
from planner.instances.space import groups, machines_of, role_rows, role_space, row_deployment
from planner.manifest.checks import check_manifest
from planner.mixed import screen as mixed_screen
from planner.mixed.candidates import BUDGETS, MixedCandidate, mixed_room
from planner.mixed.kinds import MixedKind, group_screen, step_limit
from planner.mixed.offers import holding
from planner.mixed.server import MixedServer
from planner.plans.aggregated import AggregatedPlan
from planner.plans.assemble import assemble
from planner.plans.expectation import expect, workload_of
from planner.plans.plan import DisaggregatedPlan
from planner.search.search import search
from planner.workload import reserved_kv_tokens
from podplan.plan_data import plan_json
from tests.questions import small_question

DENSE: dict[str, Any] = {"model": "qwen3-8b", "devices": 2, "lengths": (512.0, 64.0), "shape": "auto"}


@cache
def answer(**asked: Any):
    """Return the answer to a small question over both shapes."""
    return search(small_question(**{**DENSE, **asked}))


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
    assert isinstance(found, AggregatedPlan)
    prediction = found.mixed.prediction
    assert prediction.tpot_seconds == found.tpot.mean
    assert prediction.interval.low < found.tpot.mean < prediction.interval.high
    assert prediction.interval.high / found.tpot.mean - 1 == pytest.approx(
        1 - prediction.interval.low / found.tpot.mean
    )


def test_it_is_told_how_well_a_sample_knows_ttft() -> None:
    """Nothing where a chain tells it; in the JSON and beside the intervals else, and a caution where it is much."""
    found = answer(devices=1).best
    assert isinstance(found, AggregatedPlan) and found.ttft_error is None and found.caution is None
    little, much = replace(found, ttft_error=0.012), replace(found, ttft_error=0.045)
    assert interval_text(little).endswith("a sample of steps: mean TTFT ± 1.2% (standard error).")
    assert plan_json(little)["ttft_mean_relative_standard_error"] == 0.012
    assert little.caution is None
    assert much.caution is not None and "± 4.5%" in much.caution


@pytest.mark.parametrize("ttft_seconds", [1.0, 0.04])
def test_all_kinds_by_hand_are_no_better(ttft_seconds: float) -> None:
    """Brute force over every row and token budget on few devices reaches the search's rate and no more."""
    question = small_question(**{**DENSE, "shape": "aggregated", "ttft_seconds": ttft_seconds})
    found = search(question).best
    assert isinstance(found, AggregatedPlan)
    rate, reached = found.requests_per_second, False
    for group in groups(question, "mixed", role_rows(question, "mixed"), 0):
        for row in group.rows:
            deployment = row_deployment(group.deployment, row)
            for budget in BUDGETS:
                room = mixed_room(
                    deployment,
                    np.array([float(budget)]),
                    reserved_kv_tokens(question.workload),
                    np.array([float(budget)]),
                )
                if room[0] < 1:
                    continue
                candidate = MixedCandidate(
                    row=row,
                    deployment=deployment,
                    drafts=0,
                    microbatches=1,
                    batch=int(room[0]),
                    batched_tokens=budget,
                    requests_per_second=np.inf,
                )
                count, server = 2 // row.strategy.devices, MixedServer(question, candidate)
                assert not server.pool_carries(count, 1.012 * rate)
                reached = reached or server.pool_carries(count, 0.988 * rate)
    assert reached


def test_a_budget_between_those_listed_carries_more() -> None:
    """A prompt of 2,048 tokens in one step beside those that run: not in 2,048 tokens, and half of 4,096 stay empty."""
    question = small_question("gpt-oss-120b", "h100", 4, lengths=(2048.0, 512.0), ttft_seconds=2.0, shape="aggregated")
    group = next(each for each in groups(question, "mixed", role_rows(question, "mixed"), 0) if each.rows)
    row = next(
        row for row in role_rows(question, "mixed") if (row.strategy.attention_dp, row.strategy.moe_ep) == (4, 4)
    )
    kind = MixedKind(question, row, row_deployment(group.deployment, row), Count())
    chosen = kind.at(1).candidate
    rate = kind.pool_capacity(1)
    assert isinstance(chosen, MixedCandidate)

    assert 2048 < chosen.batched_tokens < 4096 and chosen.batched_tokens not in BUDGETS
    assert not any(server.pool_carries(1, rate / 1.015) for server in kind.servers)
    for budget in (2176, 2304, 2432, 2560, 3072, 3584):
        assert not MixedServer(question, replace(chosen, batched_tokens=budget)).pool_carries(1, rate / 0.985)


def test_bounds_are_above_what_queues_carry() -> None:
    """No budget of any row carries more than the row's bound from the largest budget."""
    question = small_question(**{**DENSE, "shape": "aggregated"})
    for group in groups(question, "mixed", role_rows(question, "mixed"), 0):
        screen = group_screen(question, group, BUDGETS[-1], Count())
        room = mixed_room(
            group.deployment,
            np.full(len(group.rows), float(BUDGETS[0])),
            reserved_kv_tokens(question.workload),
            np.full(len(group.rows), 4096.0),
        )
        limit = float(step_limit(question, group.deployment))
        bound, _ = screen.bound(limit, room)
        assert screen.may_carry(bound * 0.98, limit, room).all()
        assert not screen.may_carry(bound * 1.4, limit, room).any()
        for row, most in zip(group.rows[:2], bound, strict=False):
            kind = MixedKind(question, row, row_deployment(group.deployment, row), Count())
            assert 0 < kind.pool_capacity(1) <= most


@pytest.mark.parametrize("share", [0.5, 0.9, 1.1])
def test_many_rows_are_screened_as_few_are(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part by part, and those left out whose steps without prompts say enough."""
    question = small_question("qwen3-30b-a3b", "h100", 16, shape="aggregated", lengths=(512.0, 128.0))
    group = max(groups(question, "mixed", role_rows(question, "mixed"), 0), key=lambda each: len(each.rows))
    held, room = holding(question, group)
    limit = np.broadcast_to(step_limit(question, held.deployment), room.shape)
    screen = group_screen(question, held, BUDGETS[-1], Count())
    rate = share * np.resize(screen.bound(limit, room)[0][::3], room.shape)  # of other rows: some more, some less
    at_once = screen.may_carry(rate, limit, room)
    assert at_once.any() and not at_once.all()

    monkeypatch.setattr(mixed_screen, "ROWS_AT_ONCE", 3)

    assert screen.may_carry(rate, limit, room).tolist() == at_once.tolist()


def test_the_better_shape_wins() -> None:
    """Over both shapes no less is carried than in either, and the other shape's best stands among the runners-up."""
    shapes = {shape: answer(shape=shape).best for shape in ("auto", "aggregated", "disaggregated")}
    rates = {shape: best.requests_per_second for shape, best in shapes.items() if best is not None}
    assert rates["auto"] >= max(rates["aggregated"], rates["disaggregated"]) * (1 - 1e-6)
    assert isinstance(shapes["disaggregated"], DisaggregatedPlan)
    bound = answer().bound
    assert bound is not None
    assert bound.gap < 1e-6
    assert "aggregated" in bound.covers


def test_sized_for_a_rate_it_is_served() -> None:
    """The fewest devices for part of the rate serve it, are no more than there are, and more never carry less."""
    most = answer(shape="aggregated").best
    assert most is not None
    rate = 0.45 * most.requests_per_second
    sized = answer(shape="aggregated", rate_per_second=rate, objective="chips").best
    assert sized is not None
    assert sized.devices <= most.devices
    again = answer(shape="aggregated", devices=sized.devices).best
    assert again is not None
    assert again.requests_per_second >= rate * (1 - 1e-6)
    assert most.requests_per_second >= again.requests_per_second * (1 - 1e-6)


def test_the_manifest_expects_what_the_plan_says() -> None:
    """A manifest of the plan is valid, and its queue gives the plan's latencies again."""
    plan = answer(devices=1).best
    assert plan is not None
    manifest = assemble(plan, {"model": "small"})
    check_manifest(manifest)
    pool = manifest.pools[0]
    assert (pool.role, manifest.kv_transfer) == ("mixed", None)
    assert pool.limits.requests_per_dp_rank == plan.mixed.candidate.batch
    other = replace(workload_of(manifest.workload), arrival_squared_cv=1.0 + 1e-12)  # not the planned traffic: solved
    found = expect(manifest, other, plan.requests_per_second).prediction
    assert found is not None
    assert found.ttft_seconds.mean == pytest.approx(plan.ttft.mean, rel=1e-6)
    assert found.tpot_seconds.p99 == pytest.approx(plan.tpot.p99, rel=1e-6)


def test_pools_of_their_own_have_no_aggregated_instances() -> None:
    """Roles on machines of their own cannot share instances: the cut says so."""
    question = small_question(**{**DENSE, "decode": ("h200", 2)})
    found = search(question)
    assert isinstance(found.best, DisaggregatedPlan)
    assert list(found.cut["mixed"].values()) == [1]


def test_rows_of_aggregated_instances() -> None:
    """Staged attention and attention apart from experts are none; dedicated shared experts are, as in decode."""
    question = small_question(model="deepseek-v2-lite", hardware="cm384", devices=32, shape="auto")
    rows = role_space(question, "mixed").rows
    assert rows
    assert not any(row.strategy.staged or row.strategy.domains for row in rows)
    assert machines_of(question, "mixed") is question.decode


def test_limits_out_of_reach_are_told() -> None:
    """Where no aggregated instance keeps a limit, the answer names it and a limit that one keeps."""
    found = search(small_question(**{**DENSE, "devices": 1, "shape": "aggregated", "tpot_seconds": 0.001}))
    assert found.best is None
    assert found.binding_limit == "tpot"
    assert "nearest change: --tpot" in found.explanation


def test_answers_of_one_token_have_no_tpot() -> None:
    """A plan for them is made, told and weighed all the same."""
    plan = answer(devices=1, lengths=(512.0, 1.0)).best
    assert isinstance(plan, AggregatedPlan)
    assert plan.mixed.prediction.iteration_seconds > 0
    limits = Limits.of(plan.question, 0.5 * plan.requests_per_second)
    assert check_deployed(from_plan(plan), limits, confidence=0.9).holds
    assert assemble(plan, {}).predicted.ttft_seconds is not None


def test_a_plan_travels_to_another_process() -> None:
    """What finds TTFT when it is asked for cannot, so TTFT is found before."""
    plan = answer(devices=1).best
    assert isinstance(plan, AggregatedPlan)
    fresh = MixedServer(plan.question, plan.mixed.candidate).state(plan.requests_per_second)
    assert fresh is not None
    there = pickle.loads(pickle.dumps(fresh))
    assert there.ttft == fresh.ttft and there.e2e == fresh.e2e
    assert pickle.loads(pickle.dumps(plan)).ttft == plan.ttft
