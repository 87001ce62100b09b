"""What lies near a plan is solved: a size less carries less than the rate, and other instances carry it."""

from dataclasses import replace

from planner.search.changes.resources import headroom_of, near_plans
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
