"""Several models over several pools: what is chosen is the best of every way to spread them, and the proof agrees."""

import math
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from ground.errors import BadInput
from planner.objective import Aim
from planner.programme.columns import Picks, Side, Way
from planner.programme.programme import Programme
from planner.programme.proof import Bound, proven
from tests.planner.programme.offers import offers_of
from tests.planner.programme.test_columns import OFFER, Queue
from tests.questions import machines

NEAR = replace(machines("qwen3-8b", "h100", 11), budget="near")
FAR = replace(machines("qwen3-8b", "h20", 11), budget="far")
POOLS = (NEAR, FAR)
OBJECTIVES = [("throughput", None), ("chips", 1.0), ("cost", 1.0)]
Drawn = list[tuple[int, float, float, float]]


class Shapes(NamedTuple):
    """Drawn columns of a member: of either role, and of aggregated instances; none of some."""

    prefill: Drawn
    decode: Drawn
    mixed: Drawn = []


def prove(asked: Programme, picks: Picks) -> Bound:
    """Return the bound over all columns."""
    return proven(asked, picks, [f"model {number}" for number in range(len(asked.ways))], ())


def side(role: str, pool: int, drawn: Drawn, model: str = "") -> Side:
    """Return columns of (devices, rate, loss of a single one, looseness of the bound); FAR carries half."""
    offers = [
        (devices, rate * loose / (1 + pool), lambda rate=rate, loss=loss: Queue(rate / (1 + pool), loss))
        for devices, rate, loss, loose in drawn
    ]
    return Side(role, POOLS[pool], offers_of(*offers), unit_per_second=10.0, model=model)  # type: ignore[arg-type]


def programme(members: list[Shapes], aim: Aim, whole_nodes: bool, coupled: bool) -> Programme:
    """Return both roles of each member on either pool, and its aggregated instances; coupled roles stand together."""
    ways: list[tuple[Way, ...]] = []
    for number, drawn in enumerate(members):
        prefill, decode, mixed = (
            [side(role, pool, own, str(number)) for pool in range(2)] if own else []
            for role, own in zip(Shapes._fields, drawn, strict=True)
        )
        pairs = product(prefill, decode)
        apart = (pair for pair in pairs if not coupled or pair[0].machines is pair[1].machines)
        ways.append((*apart, *((own,) for own in mixed)))
    return Programme(tuple(ways), aim, whole_nodes=whole_nodes)


def by_enumeration(asked: Programme) -> float | None:
    """Return the best value of every way and column, every queue solved; None where nothing fits."""
    for own in asked.sides:
        for number in range(own.size):
            own.solve(number, 0.0)
    best: float | None = None
    members = [
        [
            list(zip(way, columns, strict=True))
            for way in own
            for columns in product(*(range(side.size) for side in way))
        ]
        for own in asked.ways
    ]
    for chosen in product(*members):
        used = dict.fromkeys(asked.aim.devices, 0.0)
        for member in chosen:
            for pool, step in asked.steps.items():
                room = sum(int(own.room[column]) for own, column in member if own.machines.budget == pool)
                used[pool] += math.ceil(room / step) * step
        if any(used[pool] > asked.aim.devices[pool] // step * step for pool, step in asked.steps.items()):
            continue
        picked = [pair for member in chosen for pair in member]
        rate = min(float(own.rate[column]) for own, column in picked)
        if rate <= 0 or rate < (asked.aim.rate or 0.0) * (1 - 1e-9):
            continue
        spent = {
            "throughput": -rate,
            "chips": sum(float(own.room[column]) for own, column in picked),
            "cost": sum(float(own.room[column]) * own.machines.device_cost for own, column in picked),
        }[asked.aim.objective]
        best = spent if best is None else min(best, spent)
    return best


# From two devices on: three times three of a node of eight leave two of it unusable.
LARGER = OFFER.map(lambda drawn: (max(drawn[0], 2), *drawn[1:]))
SINGLE = st.lists(LARGER, min_size=1, max_size=1)
MEMBER = st.one_of(
    st.builds(Shapes, st.lists(LARGER, min_size=1, max_size=2), SINGLE, st.lists(LARGER, max_size=1)),
    st.builds(Shapes, st.just([]), st.just([]), SINGLE),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(MEMBER, min_size=1, max_size=2),
    st.sampled_from(OBJECTIVES),
    st.tuples(st.integers(3, 9), st.integers(0, 9)),
    st.booleans(),
    st.booleans(),
)
def test_settled_picks_are_the_best_of_every_route(members, asked, devices, whole_nodes, coupled):
    """Against trying every way and column of both shapes; the integer programme's bound is that value."""
    objective, rate = asked
    aim = Aim(devices={"near": devices[0], "far": devices[1]}, objective=objective, rate=rate)
    expected = by_enumeration(programme(members, aim, whole_nodes, coupled))
    own = programme(members, aim, whole_nodes, coupled)

    picks = own.settle()

    assert (picks is None) == (expected is None)
    if picks is not None and expected is not None:
        bound = prove(own, picks)
        assert bound.gap <= 1e-6
        assert bound.value == pytest.approx(abs(expected), rel=1e-5)


def test_many_models_on_two_pools_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 models with six ways each are 8e38 routes; those that take the same of every pool are one, up to a number."""
    aim = Aim(devices={"near": 29, "far": 29}, objective="chips", rate=0.1)
    one = [(1, 10.0, 0.0, 1.0)]
    picks = (asked := programme([Shapes(one, one, one)] * 50, aim, False, False)).settle()

    assert picks is not None and len(asked.picked(picks)) == 50
    monkeypatch.setattr("planner.programme.programme.MOST_ROUTES", 100)
    with pytest.raises(BadInput, match="give some models the pools"):
        asked.best()


def test_nothing_fits_no_devices():
    """None, whatever is asked."""
    aim = Aim(devices={"near": 0, "far": 0}, objective="throughput")
    assert programme([Shapes([(1, 1.0, 0.0, 1.0)], [(1, 1.0, 0.0, 1.0)])], aim, False, False).best() is None
