"""Node-aligned placement: nothing straddles, nothing overlaps, and what is counted is what is taken."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hardware.loader import load_hardware
from planner.instances.alignment import Lot, lost_instances, occupied_devices, placed, placed_evenly, scope_devices
from planner.question import Machines

LOTS = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8, 12, 16, 24, 32, 48, 96]), st.integers(1, 4)), min_size=1, max_size=4
)


def pool(name: str, devices: int) -> Machines:
    """Return so many devices of a machine."""
    return Machines(hardware=load_hardware(name), devices=devices, weights="bf16", budget="pool")


@pytest.mark.parametrize(
    ("name", "devices", "size", "count", "room"),
    [
        ("cm384", 768, 144, 1, 144),  # nine nodes of 16
        ("cm384", 768, 8, 3, 24),
        ("cm384", 768, 24, 2, 64),  # a node and a half takes two nodes
        ("h800", 64, 3, 5, 8 + 8 + 3),  # two to a node, two devices of every full one empty
        ("gb200", 288, 48, 3, 72 + 72 + 48),  # one to a rack
        ("gb200", 288, 144, 2, 288),
        ("gb200", 288, 24, 12, 288),
    ],
)
def test_room_is_what_instances_leave_unusable(name: str, devices: int, size: int, count: int, room: int) -> None:
    """By hand."""
    assert occupied_devices(pool(name, devices), np.array([size]), np.array([count])).tolist() == [room]


def test_only_a_pool_of_several_racks_has_a_scope() -> None:
    """A supernode as large as the pool binds nothing."""
    assert scope_devices(pool("gb200", 288)) == 72
    assert scope_devices(pool("gb200", 72)) is None
    assert scope_devices(pool("cm384", 768)) is None
    assert scope_devices(pool("h800", 64)) is None


@settings(max_examples=150, deadline=None)
@given(LOTS, st.sampled_from([("h800", 64), ("gb200", 144), ("cm384", 128), ("h800", 20)]))
def test_placed_instances_neither_overlap_nor_straddle(drawn: list[tuple[int, int]], machine: tuple[str, int]) -> None:
    """Every instance inside the pool; below a node inside one, from there on at the begin of one, racks kept."""
    name, devices = machine
    own = pool(name, devices)
    lots = [Lot(key=str(number), devices=size, instances=count) for number, (size, count) in enumerate(drawn)]
    found = placed([lots], own)
    if found is None:
        return
    taken: set[int] = set()
    scope = scope_devices(own) or devices
    for lot in lots:
        for first in found[lot.key]:
            last, node = first + lot.devices - 1, own.devices_per_node
            mine = set(range(first, last + 1))
            assert last < devices and not mine & taken
            assert first // node == last // node if lot.devices < node else first % node == 0
            assert first // scope == last // scope or lot.devices > scope
            taken |= mine


def test_sizes_of_a_node_always_fit_what_they_add_up_to() -> None:
    """Powers of two in nodes of eight: a full pool has a place for all of them."""
    lots = [Lot("a", 1, 3), Lot("b", 4, 2), Lot("c", 16, 2), Lot("d", 2, 2), Lot("e", 1, 1)]
    assert sum(lot.devices * lot.instances for lot in lots) == 48
    assert placed([lots], pool("h800", 48)) is not None
    assert placed([[*lots, Lot("f", 1, 1)]], pool("h800", 48)) is None


@pytest.mark.parametrize(
    ("loss", "size", "count", "among_others", "lost"),
    [
        (None, 4, 6, False, 0),
        ("instance", 4, 6, False, 1),
        ("node", 4, 6, True, 2),  # packed two to a node
        ("node", 4, 6, False, 1),  # eight nodes
        ("node", 3, 16, False, 2),
        ("node", 2, 10, False, 2),
        ("node", 8, 3, False, 1),
        ("node", 32, 2, False, 1),
    ],
)
def test_a_node_takes_what_stands_on_it(loss, size, count, among_others, lost):
    """Small instances share a node, large ones lose a part and with it all."""
    own = Machines(hardware=load_hardware("h800"), devices=64, weights="bf16", budget="pool", among_others=among_others)
    assert lost_instances(loss, own, np.array([size]), np.array([count])).tolist() == [lost]


@pytest.mark.parametrize("devices", [8, 16, 20, 24])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_spread_instances_lose_the_fewest_of_all_placements(devices: int, size: int) -> None:
    """Against every way to put so many instances on up to three nodes; they stand on no more nodes than need be."""
    own = pool("h800", devices)
    room = [min(8, devices - node) // size for node in range(0, devices, 8)]
    every = list(itertools.product(*(range(most + 1) for most in room)))
    for count in range(1, sum(room) + 1):
        fitting = [counts for counts in every if sum(counts) == count]
        least = min(map(max, fitting))
        assert lost_instances("node", own, np.array([size]), np.array([count])).tolist() == [least]
        found = placed_evenly([Lot("a", size, count)], own)
        stands = Counter(first // 8 for first in found["a"])
        assert max(stands.values()) == least
        begun = min(sum(map(bool, counts)) for counts in fitting if max(counts) == least)
        assert len(stands) == (begun if devices % 8 == 0 else len(stands))
