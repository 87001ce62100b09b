"""Several models on one cluster: budgets hold, nothing is better, and a fleet of one is a plan."""

from dataclasses import replace

import pytest

from ground.errors import BadInput
from planner.question import Question
from planner.search.cluster import plan_cluster
from planner.search.fleet import Fleet, Member
from planner.search.search import search
from tests.questions import small_question

POOL = "h100 pool"


def member(name: str, rate: float, **asked: object) -> Member:
    """Return Qwen3-8B, or another model, at a rate."""
    question = small_question(**{"model": "qwen3-8b", "devices": 8} | asked)
    return Member(name=name, question=replace(question, rate_per_second=rate, objective="chips"))


def fleet(devices: int = 8, objective: str = "chips", rates: tuple[float, float] = (30.0, 80.0)) -> Fleet:
    """Return two models with limits of their own."""
    members = (member("chat", rates[0]), member("code", rates[1], tpot_seconds=0.02, lengths=(2048.0, 64.0)))
    return Fleet(members=members, devices={POOL: devices}, objective=objective)  # type: ignore[arg-type]


def alone(question: Question, devices: int) -> int | None:
    """Return the fewest devices of one model alone."""
    machines = replace(question.prefill, devices=devices)
    best = search(replace(question, prefill=machines, decode=machines), beside=False).best
    return best.devices if best else None


def test_every_member_is_served_within_the_pools() -> None:
    """Each at its rate and limits; together they take what the answer says, and in one pool just what each needs."""
    asked = fleet()
    answer = plan_cluster(asked)

    assert answer.feasible
    assert answer.bound.gap <= 1e-6
    for own, plan in zip(asked.members, answer.plans, strict=True):
        assert plan.requests_per_second == own.question.rate_per_second
        assert plan.ttft.at(99) <= own.question.ttft_seconds and plan.tpot.at(99) <= own.question.tpot_seconds
        assert plan.devices == alone(own.question, 8)
    assert answer.devices_used == {POOL: sum(plan.devices for plan in answer.plans)}
    assert answer.devices_used[POOL] <= 8


@pytest.mark.parametrize(
    ("rate", "survive"), [(3.0, None), (40.0, None), (3.0, "instance")], ids=["few", "many", "spare"]
)
def test_a_fleet_of_one_is_its_plan_in_both_shapes(rate: float, survive: str | None) -> None:
    """A rate that one device carries is aggregated; whatever is chosen is what the search of the model finds."""
    own = member("alone", rate, shape="auto", survive=survive)
    (plan,) = plan_cluster(Fleet(members=(own,), devices={POOL: 8})).plans
    best = search(own.question, beside=False).best

    assert [(role, pool.instances, pool.candidate.row) for role, pool in plan.pools()] == [
        (role, pool.instances, pool.candidate.row) for role, pool in best.pools()
    ]
    assert rate > 3 or [role for role, _ in plan.pools()] == ["mixed"]
    assert plan.ttft.at(99) == pytest.approx(best.ttft.at(99), rel=1e-6)


def test_a_fleet_searches_decode_beyond_the_grid_as_a_plan_does() -> None:
    """A model with experts on a supernode: the same devices, and the rows that a bound leaves out are counted."""
    own = member("experts", 60.0, model="qwen3-30b-a3b", hardware="cm384", devices=48, shape="auto")
    answer = plan_cluster(Fleet(members=(own,), devices={"cm384 pool": 48}))
    best = search(own.question, beside=False).best

    assert answer.plans[0].devices == best.devices
    assert any(each.what.startswith("experts: decode rows beyond the grid") for each in answer.bound.pruned)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (Fleet(members=(), devices={}), "at least one model"),
        (Fleet(members=(member("a", 1.0), member("a", 2.0)), devices={POOL: 8}), "'a' stands twice"),
        (Fleet(members=(member("a", 1.0),), devices={"other": 8}), "'h100 pool' is not one of the cluster's"),
        (
            Fleet(members=(Member(name="a", question=small_question(model="qwen3-8b")),), devices={POOL: 8}),
            "needs the rate",
        ),
    ],
    ids=["none", "twice", "pool", "rate"],
)
def test_what_no_cluster_can_be_planned_for(broken: Fleet, told: str) -> None:
    """One sentence that names what is wrong."""
    with pytest.raises(BadInput, match=told):
        plan_cluster(broken)
