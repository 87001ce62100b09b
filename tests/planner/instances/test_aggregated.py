"""Aggregated instances as they are played."""

from dataclasses import replace

import pytest

from planner.instances.aggregated import PlayedAggregated
from planner.serving.aggregated import AggregatedPool
from planner.serving.capacity import Limits
from planner.serving.rules import SchedulingRule
from planner.serving.tables import Loads, step_table
from planner.workload import Lengths, Workload
from tests.planner.serving.costs import linear_cost


@pytest.mark.usefixtures("long_streams")
@pytest.mark.parametrize("slots", [500, 2000, 8000])
def test_saturation_is_that_of_gangs_where_prompts_go_first(slots: int) -> None:
    """All that an instance holds is computed and leaves together, were it more than limits let it open."""
    fixed, per_token, per_request, prompt, answer = 0.001, 1e-6, 1e-6, 1000, 128
    loads = Loads(
        ranks=1, budget_tokens=1000, longest_prompt=prompt, most_running=slots, kv_tokens_per_request=prompt + answer
    )
    pool = AggregatedPool(
        times=step_table(linear_cost(fixed, per_token, per_request), loads),
        ranks=1,
        budget_tokens=1000,
        slots=slots,
        capacity_tokens=1e9,
        rule=SchedulingRule(order="prompts_first"),
    )
    player = PlayedAggregated(
        play=lambda *_: pytest.fail("saturation needs no rate"),
        together=lambda *_: pytest.fail("nor other instances"),
        workload=Workload(input_tokens=Lengths(mean=prompt), output_tokens=Lengths(mean=answer)),
        limits=Limits(percentile=99, ttft_seconds=1.0, tpot_seconds=0.05),
        most_tokens=40_000.0,
        pool=pool,
        most_open=10,
    )
    gang = slots * (fixed + prompt * per_token) + (answer - 1) * (fixed + slots * per_request)
    assert player.saturation_per_second == pytest.approx(slots / gang, rel=0.25)
    assert replace(player, most_open=slots).saturation_per_second == player.saturation_per_second
