"""Instances spread over the nodes of a small cluster: the loss of any node leaves what the plan promises."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

import podplan
from planner.instances.alignment import Lot, placed_evenly
from planner.plans.assemble import assemble
from planner.plans.plan import Plan
from planner.plans.servers import server_of
from planner.programme.columns import Side
from planner.programme.spread import spread_apart
from planner.search.search import search
from tests.planner.programme.offers import Offer, offers_of
from tests.questions import machines, small_question

SIZES = (1, 2, 4, 8, 16)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 6))
def test_columns_on_parts_of_a_pool_have_a_place_and_lose_what_they_count_on(data: st.DataObject, nodes: int) -> None:
    """Any column of prefill beside any of decode, on shares of every node or on nodes of their own."""
    own = replace(machines("qwen3-8b", "h100", 8 * nodes), among_others=True)
    kinds: list[Offer] = [(size, 1.0, lambda: None) for size in SIZES]
    sides = Side("prefill", own, offers_of(*kinds), "node"), Side("decode", own, offers_of(*kinds), "node")
    for parts in spread_apart(sides):
        picks = [data.draw(st.integers(0, side.size - 1)) for side in parts]
        both = list(zip(parts, picks, strict=True))
        lots = [Lot(side.role, SIZES[side.offer[at]], int(side.instances[at])) for side, at in both]
        places = placed_evenly(lots, own)
        for lot, (side, at) in zip(lots, both, strict=True):
            nodes_of = (range(first // 8, (first + lot.devices + 7) // 8) for first in places[lot.key])
            stands = Counter(itertools.chain.from_iterable(nodes_of))
            assert max(stands.values()) <= side.instances[at] - side.left[at]


@pytest.mark.parametrize("shape", ["aggregated", "disaggregated"])
@pytest.mark.parametrize("devices", [16, 24])
def test_what_any_node_leaves_carries_the_rate(shape: str, devices: int) -> None:
    """Node by node of the rank table; fewer chips than with full nodes, of which two would leave nothing small."""
    question = replace(
        small_question(model="qwen3-8b", devices=devices),
        shape=shape,
        survive="node",
        objective="chips",
        rate_per_second=20.0,
    )
    _survives(search(question, beside=False).best)


def _survives(plan: Plan) -> None:
    """Hold that what remains after the loss of any node carries the rate of a plan."""
    manifest, lost = assemble(plan, {}), plan.lost("node")
    (cluster,) = manifest.clusters.values()
    for node in range(cluster.nodes):
        for pool, (role, own) in zip(manifest.pools, plan.pools(), strict=True):
            gone = sum(node in instance.nodes for instance in pool.instances)
            assert pool.role == role and gone <= lost[role]
            left = own.instances - gone
            assert left and server_of(plan, own, plan.question).pool_carries(left, plan.requests_per_second)


def test_encode_instances_are_spread_as_well() -> None:
    """One spare is enough where no node holds both; node after node eight of nine were lost with one."""
    asked = {"isl": "1k", "osl": 256, "images": "2@1280x720", "encode": "separate", "shape": "disaggregated"}
    plan = podplan.plan(
        "qwen3-vl-8b-instruct", hw="910b", nodes=3, engine="sglang", rate="5/s", survive="node", **asked
    ).best
    assert plan.encode.instances == 2 and plan.nodes == 3
    _survives(plan)


def test_a_price_of_whole_nodes_takes_the_fewest_that_survive() -> None:
    """One node less has no plan; the fewest chips would stand on more nodes."""
    asked = replace(
        small_question(model="qwen3-8b", devices=40), survive="node", objective="cost", rate_per_second=45.0
    )
    found = search(asked)
    plan, smallest = found.best, search(replace(asked, objective="chips"), beside=False).best
    fewer = machines("qwen3-8b", "h100", 8 * (plan.nodes - 1))
    assert search(replace(asked, prefill=fewer, decode=fewer, objective="chips"), beside=False).best is None
    assert plan.spread and plan.nodes < smallest.nodes and plan.devices >= smallest.devices
    assert found.bound.value == plan.cost_per_hour and found.bound.gap == 0


def test_a_machine_for_each_role_takes_the_fewest_nodes_of_each() -> None:
    """Two nodes of each kind, with as much of either role on both; filled node after node four spares took a node."""
    asked = small_question(devices=32, hardware="a100", decode=("h100", 32), lengths=(2048.0, 500.0))
    found = search(replace(asked, survive="node", objective="cost", rate_per_second=20.0))
    assert all(2 * found.best.lost("node")[role] == pool.instances for role, pool in found.best.pools())
    assert found.best.nodes == 4 and found.best.spread
    assert found.bound.value == found.best.cost_per_hour and found.bound.gap == 0


def test_whole_nodes_of_two_machines_are_the_bound_of_their_price() -> None:
    """Two chips of each kind are paid as two whole nodes, and no plan pays less."""
    asked = small_question(devices=32, hardware="a100", decode=("h100", 32), lengths=(2048.0, 500.0))
    found = search(replace(asked, objective="cost", rate_per_second=20.0))
    assert found.best.devices < 16 and found.bound.value == found.best.cost_per_hour == 8 * (1.9 + 1.3)
