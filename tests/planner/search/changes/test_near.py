"""What lies near a plan is solved: a size less carries less than the rate, and other instances carry it."""

from dataclasses import replace

from planner.search.changes.resources import bought, headroom_of, near_plans, on_plan_devices, resources_of
from planner.search.search import search
from tests.questions import small_question


def test_the_next_smaller_size_misses_the_rate() -> None:
    """A plan on the fewest devices: a GPU less carries less, a GPU more carries more, and the pools some more."""
    rate = 60.0
    question = small_question(model="qwen3-8b", devices=8, objective="chips", rate_per_second=rate)
    plan = search(question, beside=False).best
    assert headroom_of(plan) > -1e-3

    near = {one.name: one for one in near_plans(plan)}
    less, more = near["a chip less"], near["a chip more"]
    assert less.requests_per_second < rate <= more.requests_per_second
    assert [one.name for one in near.values() if one.less] == ["a chip less"]
    largest = max(pool.candidate.devices for _, pool in plan.pools())
    if largest > 1:
        other = near["narrower instances"].plan
        assert other is None or max(pool.candidate.devices for _, pool in other.pools()) < largest
    again = search(replace(question, rate_per_second=rate * (1 + headroom_of(plan)) * 0.999), beside=False).best
    assert again.devices == plan.devices


def test_spread_instances_are_beside_other_numbers_of_nodes() -> None:
    """What survives a node has neighbours by the node, and a faster machine carries more on its nodes."""
    asked = small_question(model="qwen3-8b", devices=24, survive="node", objective="chips", rate_per_second=20.0)
    plan = search(asked, beside=False).best
    assert plan.spread and plan.devices < 8 * plan.nodes
    assert on_plan_devices(plan).prefill.devices == 8 * plan.nodes
    less, more = list(near_plans(plan))[:2]
    assert (less.flag, more.flag) == (f"--devices {8 * (plan.nodes - 1)}", f"--devices {8 * (plan.nodes + 1)}")
    faster = next(each for each in resources_of(asked) if each.name == "compute")
    assert more.plan is not None and bought(plan, [faster])[0].gain > 0.01
