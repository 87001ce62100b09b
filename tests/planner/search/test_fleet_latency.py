"""The quickest plans of a fleet against trying every column of every model on every pool."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from planner.instances.candidates import Count
from planner.objective import Aim
from planner.offers.aggregated_kinds import AggregatedKind
from planner.offers.decode_kinds import DecodeKind
from planner.offers.kinds import PrefillKind
from planner.programme.columns import Side
from planner.search.answer import Answer
from planner.search.cluster import plan_cluster
from planner.search.fleet import Fleet, Member, on_pools
from planner.search.gather import aggregated, gather
from planner.search.solve import mean_seconds
from tests.questions import machines, small_question

POOL = "h100 pool"

Taken = dict[tuple[int, ...], float]
"""Least seconds by the devices that are taken of each pool."""


def member(name: str, rate: float, **asked: object) -> Member:
    """Return Qwen3-8B, or another model, at a rate, in either shape."""
    question = small_question(**{"model": "qwen3-8b", "devices": 4, "shape": "auto", "ttft_seconds": 0.3} | asked)
    return Member(name=name, question=replace(question, rate_per_second=rate))


def fleet(*members: Member, **asked: object) -> Fleet:
    """Return models on four devices for the lowest latency."""
    return Fleet(**{"members": members, "devices": {POOL: 4}, "objective": "latency"} | asked)  # type: ignore[arg-type]


CHAT = member("chat", 4.0)
CODE = member("code", 12.0, lengths=(2048.0, 64.0), tpot_seconds=0.02)


@cache
def both(devices: int = 4, **asked: Any) -> Answer:
    """Return the plans of the two models."""
    return plan_cluster(fleet(CHAT, CODE, devices={POOL: devices}, **asked))


def least_of(side: Side, rate: float, pools: list[str]) -> Taken:
    """Solve every column of a side."""
    found: Taken = {}
    for column in range(side.size):
        kind = side.server(int(side.offer[column]))
        assert isinstance(kind, PrefillKind | DecodeKind | AggregatedKind)
        taken = tuple(int(side.room[column]) * (side.machines.budget == pool) for pool in pools)
        found[taken] = min(found.get(taken, math.inf), kind.mean_seconds(int(side.left[column]), rate))
    return found


def together(one: Taken, other: Taken, weight: float = 1.0) -> Taken:
    """Return what two take together, the other weighed."""
    found: Taken = {}
    for (first, seconds), (second, more) in product(one.items(), other.items()):
        taken = tuple(map(sum, zip(first, second, strict=True)))
        found[taken] = min(found.get(taken, math.inf), seconds + weight * more)
    return found


def ways_of(own: Member, asked: Fleet) -> Iterator[Taken]:
    """Yield every way of a model: separate pools on every pair of pools, aggregated instances on every pool."""
    pools, rate = sorted(asked.devices), own.question.rate_per_second or 0.0
    grounds = own.pools or (own.question.prefill,)
    for pair in product(grounds, grounds):
        prefill, decode = gather(on_pools(asked, own, pair)).sides
        yield together(least_of(prefill, rate, pools), least_of(decode, rate, pools))
    for ground in grounds if own.question.shape == "auto" else ():
        question = on_pools(asked, own, (ground, ground))
        aim = Aim(devices=asked.devices, objective="latency", rate=1.0)
        mixed = aggregated(question, aim, None, None, Count()).option(question).decode
        yield least_of(mixed, rate, pools)


def quickest_by_trying(asked: Fleet) -> float:
    """Return the least mean seconds over all requests of a fleet, of all choices that fit."""
    rates = [own.question.rate_per_second or 0.0 for own in asked.members]
    found: Taken = {(0,) * len(asked.devices): 0.0}
    for own, rate in zip(asked.members, rates, strict=True):
        best: Taken = {}
        for way in ways_of(own, asked):
            for taken, seconds in way.items():
                best[taken] = min(best.get(taken, math.inf), seconds)
        found = together(found, best, rate / sum(rates))
    budgets = [asked.devices[pool] for pool in sorted(asked.devices)]
    fitting = [
        seconds
        for taken, seconds in found.items()
        if all(used <= most for used, most in zip(taken, budgets, strict=True))
    ]
    return min(fitting)


@pytest.mark.parametrize(
    "members",
    [(CHAT, CODE), (CHAT._replace(question=replace(CHAT.question, shape="disaggregated")), CODE)],
    ids=["both shapes", "one apart"],
)
def test_no_choice_of_columns_is_quicker(members: tuple[Member, ...]) -> None:
    """Two models on four devices; the bound is what the plans reach, and all limits are kept at the asked rates."""
    asked = fleet(*members)
    answer = both() if members == (CHAT, CODE) else plan_cluster(asked)

    assert answer.feasible
    assert mean_seconds(answer.plans) == pytest.approx(quickest_by_trying(asked), rel=1e-3)
    assert answer.bound.objective == "latency" and answer.bound.gap < 1e-3
    assert answer.bound.value == pytest.approx(mean_seconds(answer.plans), rel=1e-3)
    assert answer.devices_used[POOL] <= 4
    for own, plan in zip(members, answer.plans, strict=True):
        assert plan.requests_per_second == own.question.rate_per_second
        assert plan.ttft.at(99) <= own.question.ttft_seconds and plan.tpot.at(99) <= own.question.tpot_seconds


def test_pools_of_two_kinds_are_divided_for_the_least_time() -> None:
    """KV that crosses from one kind of machine to the other is counted with the links of that pair."""
    grounds = tuple(
        replace(machines("qwen3-8b", name, 2), budget=name, weights=CHAT.question.prefill.weights)
        for name in ("h100", "l40s")
    )
    members = tuple(
        own._replace(
            pools=grounds, question=replace(own.question, prefill=grounds[0], decode=grounds[0], ttft_seconds=1.0)
        )
        for own in (CHAT, CODE._replace(question=replace(CODE.question, rate_per_second=3.0, tpot_seconds=0.05)))
    )
    asked = fleet(*members, devices={"h100": 2, "l40s": 2})
    answer = plan_cluster(asked)

    assert answer.feasible and answer.bound.gap < 1e-2
    assert answer.bound.value == pytest.approx(quickest_by_trying(asked), rel=1e-3)


def test_whole_nodes_are_never_quicker() -> None:
    """Models that share no node, on two of them; and the plans on the fewest chips are not quicker either."""
    apart, mixed, fewest = both(16, share_nodes=False), both(16), both(objective="chips")
    assert mean_seconds(apart.plans) >= mean_seconds(mixed.plans) * (1 - 1e-9)
    assert mean_seconds(fewest.plans) >= mean_seconds(both().plans) * (1 - 1e-9)
