"""Losing a node or an instance: what goes with it, what is spare, and plans that live through it."""

from dataclasses import replace

import pytest

from planner.plans.servers import server_of, spare_instances
from planner.question import Question
from planner.search.changes.refusal import answered
from planner.search.search import search
from tests.plans import small_plan


def test_spares_are_what_the_others_carry_without() -> None:
    """The instances of a pool less the spare ones carry the plan's rate, and one fewer would not."""
    plan = small_plan(devices=96)
    plan = replace(plan, requests_per_second=0.6 * plan.requests_per_second)
    spare = {role: spare_instances(plan, pool) for role, pool in plan.pools()}
    assert max(spare.values()) > 0
    for role, pool in plan.pools():
        server, left = server_of(plan, pool, plan.question), pool.instances - spare[role]
        assert server.pool_carries(left, plan.requests_per_second)
        assert left == 1 or not server.pool_carries(left - 1, plan.requests_per_second)


@pytest.mark.parametrize("loss", ["node", "instance"])
def test_what_is_left_carries_the_rate(loss: str) -> None:
    """The surviving instances of each pool, at their own capacity, carry what is promised."""
    asked: Question = replace(small_plan(devices=96).question, survive=loss)  # type: ignore[arg-type]
    best = search(asked, beside=False).best
    for role, pool in best.pools():
        left = pool.capacity_per_second * (pool.instances - best.lost(asked.survive)[role]) / pool.instances
        assert left >= best.requests_per_second * (1 - 1e-9)
    assert best.requests_per_second < small_plan(devices=96).requests_per_second


def test_too_few_devices_to_lose_any_are_told() -> None:
    """One node cannot be lost where it is all there is; the devices that are named do survive."""
    asked = replace(small_plan(devices=16).question, survive="node")
    answer = answered(asked)
    assert answer.best is None
    assert answer.binding_limit == "survive"
    wanted = int(answer.explanation.split("--devices ")[1].split(",")[0])
    machines = replace(asked.prefill, devices=wanted)
    assert search(replace(asked, prefill=machines, decode=machines), beside=False).best is not None
