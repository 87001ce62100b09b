"""The cheapest order against every order of tiny tasks, step by step in plain arithmetic."""

import itertools
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from planner.changeover import order
from planner.changeover.moving import Terms
from planner.changeover.order import BELOW_WEIGHT, BYTES_WEIGHT, InPlace, Side, Task, cheapest

ENCODE, PREFILL, DECODE = range(3)


def side(count: int, role: int, carries: float, nodes: int = 1, drain: float = 5.0, size: float = 1e9) -> Side:
    """Return lots of one instance of a role, which load at 1 GB/s and device."""
    return Side(
        count=count,
        instances=1,
        nodes=(nodes,),
        devices=nodes,
        carries=tuple(carries if each == role else 0.0 for each in range(4)),  # type: ignore[arg-type]
        roles=tuple(each == role for each in range(4)),  # type: ignore[arg-type]
        drain_seconds=drain,
        bytes_per_device=size,
        plane_bytes_per_second=1e9,
        storage_bytes_per_second=1e9,
    )


def random_task(seed: int) -> Task:
    """Return a task of a few lots: some flip, nodes and the rate are tight more often than not; a fifth encode."""
    draw = np.random.default_rng(seed)
    first, second, third = (int(draw.integers(1, most)) for most in (4, 3, 4))
    old = (side(first, PREFILL, 4.0, drain=2.0), side(second, DECODE, 5.0, 2, drain=30.0))
    new = (side(third, PREFILL, 6.0), side(int(draw.integers(1, 3)), DECODE, float(draw.integers(3, 9)), 2))
    apart = seed % 5 == 0
    if apart:
        old, new = (*old, side(1, ENCODE, 8.0)), (*new, side(1, ENCODE, 4.0))
    nodes = max(sum(each.count * each.nodes[0] for each in sides) for sides in (old, new)) + int(draw.integers(0, 2))
    flips = (InPlace(old=0, new=0, how="flip", seconds=1.0, bytes=0.0, carries=(0.0, 0.0, 0.0, 0.0)),)
    return Task(
        old=old,
        new=new,
        in_place=flips if draw.random() < 0.5 else (),
        nodes=(nodes,),
        kept=(0.0 if apart else inf, float(draw.integers(0, 2)), 0.0, 0.0),
        kept_after=(0.0, 0.0, 0.0, 0.0),
        kept_roles=(not apart, False, False, False),
        kept_devices=0,
        rate_per_second=float(draw.integers(3, 10)),
        terms=Terms(
            startup_seconds=10.0,
            storage_bytes_per_second=1e9 if draw.random() < 0.8 else 1e8,
            peers=bool(draw.random() < 0.5),
        ),
        most_at_once=None if draw.random() < 0.5 else 2,
    )


def brute(task: Task) -> float:
    """Return the least cost over all orders of steps, by recursion over states."""
    start = (tuple(each.count for each in task.old), tuple(0 for _ in task.new))
    goal = (tuple(0 for _ in task.old), tuple(each.count for each in task.new))
    known: dict[object, float] = {}

    def best(state: tuple[tuple[int, ...], tuple[int, ...]]) -> float:
        if state == goal:
            return 0.0
        if state not in known:
            ranges = [range(count + 1) for count in state[0]]
            ahead = [range(done, each.count + 1) for done, each in zip(state[1], task.new, strict=True)]
            known[state] = min(
                (
                    wave(task, state, (left, there)) + best((left, there))
                    for left in itertools.product(*ranges)
                    for there in itertools.product(*ahead)
                    if (left, there) != state and allowed(task, (left, there), state)
                ),
                default=inf,
            )
        return known[state]

    return best(start)


def allowed(task: Task, after: tuple[tuple[int, ...], ...], before: tuple[tuple[int, ...], ...]) -> bool:
    """Whether a state fits its nodes and has both roles, and the step to it touches few enough."""
    sides = [*zip(task.old, after[0], strict=True), *zip(task.new, after[1], strict=True)]
    there = [task.kept_roles[role] or any(each.roles[role] and count for each, count in sides) for role in range(3)]
    stops, starts = (abs(sum(after[each]) - sum(before[each])) for each in range(2))
    few = task.most_at_once is None or max(stops, starts) <= task.most_at_once
    return few and all(there) and sum(each.nodes[0] * count for each, count in sides) <= task.nodes[0]


def wave(task: Task, before: tuple[tuple[int, ...], ...], after: tuple[tuple[int, ...], ...]) -> float:
    """Return the cost of one step."""
    stop = [first - second for first, second in zip(before[0], after[0], strict=True)]
    start = [second - first for first, second in zip(before[1], after[1], strict=True)]
    drain = max((each.drain_seconds for each, count in zip(task.old, stop, strict=True) if count), default=0.0)
    flips = [min(stop[each.old], start[each.new]) for each in task.in_place]
    for each, count in zip(task.in_place, flips, strict=True):
        start[each.new] -= count
    total = sum(each.bytes_per_device * each.devices * count for each, count in zip(task.new, start, strict=True))
    begin = max((each.seconds for each, count in zip(task.in_place, flips, strict=True) if count), default=0.0)
    if any(start):
        serving = [*zip(task.old, after[0], strict=True), *zip(task.new, before[1], strict=True)]
        peers = sum(each.devices * count for each, count in serving)
        ways = [max(1.0, total / (task.terms.storage_bytes_per_second or 1.0))]
        ways += [max(1.0, total / (peers * 1e9))] if task.terms.peers and peers else []
        begin = max(begin, task.terms.startup_seconds + min(ways))

    def carried(there: tuple[int, ...]) -> float:
        sides = [*zip(task.old, after[0], strict=True), *zip(task.new, there, strict=True)]
        pools = [task.kept[role] + sum(each.carries[role] * count for each, count in sides) for role in range(4)]
        return min(pools[ENCODE], min(pools[PREFILL], pools[DECODE]) + pools[3])

    missed = max(task.rate_per_second - carried(before[1]), 0.0)
    spare = max(carried(after[1]) - task.rate_per_second, 0.01 * task.rate_per_second)
    below = (drain + begin) * (1 + missed / spare) if missed else 0.0
    return BELOW_WEIGHT * below + drain + begin + BYTES_WEIGHT * total


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_the_cheapest_of_all(seed: int) -> None:
    """The graph's answer costs what the best of all orders costs, step by step as its moves say."""
    task = random_task(seed)
    found, least = cheapest(task), brute(task)
    if found is None:
        assert least == inf
        return
    weighed = (
        BELOW_WEIGHT * found.below_seconds + found.seconds + BYTES_WEIGHT * sum(each.bytes for each in found.moves)
    )
    assert found.proven
    assert weighed == pytest.approx(least)
    assert [sum(counts) for counts in zip(*(each.stop for each in found.moves), strict=True)] == [
        s.count for s in task.old
    ]
    assert [sum(counts) for counts in zip(*(each.start for each in found.moves), strict=True)] == [
        s.count for s in task.new
    ]


@pytest.mark.parametrize("seed", range(5))
def test_bundles_stay_above_the_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many states lots go in bundles: the order is allowed, not better than the best, and says its bound."""
    task = replace(random_task(seed), most_at_once=None)
    best = cheapest(task)
    monkeypatch.setattr(order, "MOST_STATES", 20)
    found = cheapest(task)
    assert not found.proven
    assert found.below_seconds >= best.below_seconds >= found.below_bound_seconds
    assert best.seconds >= found.seconds_bound


def test_spare_nodes_keep_the_limits() -> None:
    """Without a spare node the only decode lot has to go first; with enough of them nothing is ever missed."""
    sides = (side(2, PREFILL, 9.0), side(1, DECODE, 9.0, 2)), (side(3, PREFILL, 9.0), side(1, DECODE, 9.0, 2))
    task = Task(
        old=sides[0],
        new=sides[1],
        in_place=(),
        nodes=(5,),
        kept=(inf, 0.0, 0.0, 0.0),
        kept_after=(0.0, 0.0, 0.0, 0.0),
        kept_roles=(True, False, False, False),
        kept_devices=0,
        rate_per_second=8.0,
        terms=Terms(startup_seconds=10.0, storage_bytes_per_second=1e9),
    )
    tight, roomy = cheapest(task), cheapest(replace(task, nodes=(7,)))
    assert tight.below_seconds >= 0.0 == roomy.below_seconds
