"""A plan's figures: memory by kind, nodes, cost, percentiles, sentences."""

import math
from dataclasses import replace

import pytest

from ground.units import carried_rate
from planner.checks.deployed import from_plan, standing
from planner.instances.kv_links import MOST_LINK_UTILISATION, transfer_seconds
from planner.plans.assemble import predicted, stated_levels
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.workload import Lengths
from tests.questions import best_of

ASKED = [
    {},
    {"hardware": "cm384", "devices": 32, "squared_cv": 0.5},
    {"hardware": "cm384", "devices": 16, "decode": ("h100", 8)},
    {"model": "deepseek-v2-lite", "lengths": (4096.0, 512.0)},
]


def plan_of(asked: dict) -> Plan:
    """Return the best plan of a question that has one."""
    return best_of(**asked)


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_memory_is_the_sum_of_its_kinds_and_fits(asked: dict) -> None:
    """Weights, cache, activations, buffers and reserve of both pools stay within a device."""
    plan = plan_of(asked)
    for pool in (plan.prefill, plan.decode):
        kinds = pool.memory
        parts = (kinds.weights, kinds.kv_cache, kinds.activations, kinds.buffers, kinds.reserve)
        assert all(part >= 0 for part in parts) and kinds.weights > 0 and kinds.kv_cache > 0
        assert kinds.used == pytest.approx(sum(parts))
        assert kinds.used <= kinds.capacity == pool.machines.hardware.device.memory_bytes.value


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_devices_chips_and_nodes_add_up(asked: dict) -> None:
    """Chips times their devices are the devices, and nodes hold them with less than a node to spare per budget."""
    plan = plan_of(asked)
    pools = (plan.prefill, plan.decode)
    assert plan.devices == sum(pool.instances * pool.candidate.devices for pool in pools)
    used: dict[str, int] = {}
    for pool in pools:
        used[pool.machines.budget] = used.get(pool.machines.budget, 0) + pool.instances * pool.candidate.devices
    sizes = {pool.machines.budget: pool.machines.devices_per_node for pool in pools}
    assert plan.nodes == sum(math.ceil(count / sizes[budget]) for budget, count in used.items())
    chips = [pool.instances * pool.candidate.devices / pool.machines.devices_per_chip for pool in pools]
    assert plan.chips == pytest.approx(sum(chips))


def test_cost_is_price_over_tokens() -> None:
    """USD per million output tokens by hand: hourly price of the nodes' chips over the tokens of an hour."""
    plan = plan_of({"hardware": "cm384", "devices": 32, "squared_cv": 0.5})
    machines = plan.prefill.machines
    paid = plan.nodes * machines.devices_per_node / machines.devices_per_chip
    tokens = plan.requests_per_second * 128 * 3600

    assert plan.cost_per_million_tokens == pytest.approx(
        paid * machines.hardware.price_usd_per_chip_hour.value / tokens * 1e6
    )


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_pools_carry_the_rate(asked: dict) -> None:
    """The rate is within both capacities, below saturation, and KV moves no faster than the chosen prefill sends."""
    plan = plan_of(asked)
    for pool in (plan.prefill, plan.decode):
        assert pool.capacity_per_second >= plan.requests_per_second * (1 - 1e-9)
        assert 0 < pool.utilisation < 1
    assert plan.links.transfer_seconds >= transfer_seconds(plan.question, plan.prefill.candidate.deployment)
    assert plan.transfer_seconds == plan.links.transfer_seconds + plan.links.wait_seconds
    assert max(plan.links.utilisation.values()) < MOST_LINK_UTILISATION
    assert plan.decode.state.tpot is plan.tpot
    assert all(carried_rate(pool.capacity_per_second) in plan.explanation for pool in (plan.prefill, plan.decode))


def test_end_to_end_percentiles() -> None:
    """Fixed lengths: means add, percentiles stay between the means' sum and the percentiles' sum."""
    plan = plan_of({})

    assert plan.e2e_mean_seconds == pytest.approx(plan.ttft.mean + 127 * plan.tpot.mean)
    assert plan.e2e_mean_seconds <= plan.e2e.at(99) <= plan.ttft.at(99) + 127 * plan.tpot.at(99)


def test_end_to_end_follows_the_lengths() -> None:
    """Log-normal answers: s^2 = ln 2, the median is 1 / sqrt(2) of the mean and p99 exp(2.326 s - s^2 / 2) of it."""
    plan = plan_of({"squared_cv": 1.0})
    state = plan.decode.state
    decode, joined = state.span, (127 + 0.5) / 127  # half an iteration passes before the first begins

    assert decode.mean == pytest.approx(
        plan.transfer_seconds + state.mean_wait_seconds + joined * state.mean_requests / state.rate_per_second
    )
    assert decode.p50 == pytest.approx(math.sqrt(0.5) * decode.mean, rel=0.05)
    assert decode.p99 == pytest.approx(4.907 * decode.mean, rel=0.1)
    assert plan.e2e.at(99) == pytest.approx(decode.p99 + plan.ttft.mean, rel=0.06)  # long prompts have a tail, too


def test_no_decode_after_a_single_token() -> None:
    """A request of one output token ends with its first: no KV is sent, decode is idle, and there is no TPOT."""
    plan = plan_of({"lengths": (1024.0, 1.0)})

    assert isinstance(plan, DisaggregatedPlan) and plan.e2e is plan.ttft
    assert plan.tpot.at(99) == plan.decode.utilisation == plan.links.seconds == plan.links.sent_bytes == 0
    assert predicted(plan, stated_levels(plan.question)).utilisation == {"decode": 0}
    assert standing(from_plan(plan), plan.requests_per_second).tpot == plan.tpot
    varied = replace(plan.question.workload, output_tokens=Lengths(mean=1.0, squared_cv=1.0))
    assert not plan.question.workload.decodes and varied.decodes
