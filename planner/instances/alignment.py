"""Node-aligned placement: the devices that instances occupy in a pool, unusable ones included, and their positions.

An instance smaller than a node shares a node with others and never straddles two. A larger one begins at a node and
takes whole nodes: 144 devices take nine nodes of 16. Small ones fill node after node, or are spread over nodes so that
the loss of one takes few of them (``placed_evenly``). An instance priced inside a scope, such as one rack of an NVL72,
stands inside one scope: three of 20 devices fit a rack of 72, and the 12 devices left over count as occupied, except in
the last rack.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ground.arrays import Ints
from planner.question import Loss, Machines

Places = dict[str, list[int]]  # first device of every instance, by role


def scope_devices(machines: Machines) -> int | None:
    """Return the devices of the scope between node and pool that instances may not straddle; None without one."""
    sizes = [int(scope.devices.value) for scope in machines.hardware.scopes if scope.name == "supernode"]
    return next((size for size in sizes if machines.devices_per_node < size < machines.devices), None)


def whole_nodes(size: int, per_node: int) -> int:
    """Return the devices that an instance takes: its size below a node, whole nodes otherwise."""
    return size if size < per_node else -(-size // per_node) * per_node


def occupied_devices(machines: Machines, sizes: Ints, instances: Ints) -> Ints:
    """Return the devices that so many instances of a size occupy, unusable ones included, elementwise.

    A size that does not divide a node, or a scope, leaves a rest in each that is filled. The rest of the last one stays
    usable.
    """
    per_node = machines.devices_per_node
    taken = np.where(sizes < per_node, sizes, -(-sizes // per_node) * per_node)
    room = _filled(taken, instances, per_node)
    scope = scope_devices(machines)
    return room if scope is None else np.maximum(room, _filled(taken, instances, scope))


def _filled(sizes: Ints, instances: Ints, holder: int) -> Ints:
    """Return the devices occupied in holders (nodes or scopes); instances larger than a holder take their own size."""
    per = np.maximum(holder // np.maximum(sizes, 1), 1)
    full, rest = np.divmod(instances, per)
    last = full * holder + rest * sizes
    exact = rest == 0  # the rest of the last full holder stays usable
    within = np.where(exact, np.maximum(full - 1, 0) * holder + np.minimum(per, instances) * sizes, last)
    return np.asarray(np.where(sizes <= holder, within, instances * sizes), dtype=np.int64)


def lost_instances(loss: Loss | None, machines: Machines, sizes: Ints, instances: Ints) -> Ints:
    """Return the most instances of a size, of so many, that a loss takes, elementwise.

    A node takes with it the instance that it is part of, or all that stand on it. Instances below a node that are alone
    on their machines are spread over all nodes (``placed_evenly``); among others, a node may be full of them.
    """
    if loss is None:
        return np.zeros_like(instances)
    per_node = machines.devices_per_node
    most = np.where((sizes < per_node) & (loss == "node"), np.minimum(per_node // np.maximum(sizes, 1), instances), 1)
    if machines.among_others:
        return np.asarray(most, dtype=np.int64)
    nodes, rest = divmod(machines.devices, per_node)
    for each in range(int(most.max(initial=1)) - 1, 0, -1):
        held = nodes * each + np.minimum(rest // np.maximum(sizes, 1), each)
        most = np.where((each < most) & (held >= instances), each, most)
    return np.asarray(most, dtype=np.int64)


class Lot(NamedTuple):
    """Instances of one size to be placed."""

    key: str
    devices: int
    instances: int


def placed(groups: Sequence[Sequence[Lot]], machines: Machines) -> Places | None:
    """Return the first device of every instance by key; None where they do not fit. No two groups share a node.

    Devices are counted node by node. First fit by falling size, which is exact where every size divides the next.
    """
    floor = _Floor(machines)
    found: Places = {lot.key: [] for lots in groups for lot in lots}
    for lots in groups:
        for lot in _falling(lots):
            for _ in range(lot.instances):
                first = floor.take(lot.devices)
                if first is None:
                    return None
                found[lot.key].append(first)
        floor.begun.clear()
    return found


def placed_evenly(lots: Sequence[Lot], machines: Machines) -> Places | None:
    """Return ``placed`` with instances below a node spread, so that the loss of a node takes few of each lot.

    They stand on the fewest nodes on which no node holds more of a lot than over all nodes.
    """
    per_node, floor = machines.devices_per_node, _Floor(machines)
    large, small = ([lot for lot in lots if (lot.devices < per_node) == below] for below in (False, True))
    found = {lot.key: [floor.take(lot.devices) for _ in range(lot.instances)] for lot in _falling(large)}
    nodes = [
        (node, min(per_node, end - node))
        for begin, end in zip(floor.free, floor.ends, strict=True)
        for node in range(begin, end, per_node)
    ]
    dealt = _dealt(small, nodes)
    if dealt is None or any(None in firsts for firsts in found.values()):
        return None
    most = dealt[1]
    fewest = max((-(-lot.instances // held) for lot, held in zip(_falling(small), most, strict=True)), default=0)
    tried = (_dealt(small, nodes[:count]) for count in range(fewest, len(nodes)))
    places, _ = next((each for each in tried if each is not None and each[1] == most), dealt)
    return {key: [first for first in firsts if first is not None] for key, firsts in found.items()} | places


def _falling(lots: Sequence[Lot]) -> list[Lot]:
    return sorted(lots, key=lambda lot: -lot.devices)


def _dealt(lots: Sequence[Lot], nodes: Sequence[tuple[int, int]]) -> tuple[Places, list[int]] | None:
    """Return places of lots on nodes of (first device, devices), and the most of each lot on one; None for no room.

    The largest come first; an instance goes to the node with the fewest of its lot among those with room.
    """
    free, places, most = [size for _, size in nodes], Places(), list[int]()
    for lot in _falling(lots):
        counts, places[lot.key] = [0] * len(nodes), []
        for _ in range(lot.instances):
            room = [at for at, left in enumerate(free) if left >= lot.devices]
            if not room:
                return None
            at = min(room, key=counts.__getitem__)
            first, size = nodes[at]
            places[lot.key].append(first + size - free[at])
            free[at], counts[at] = free[at] - lot.devices, counts[at] + 1
        most.append(max(counts, default=0))
    return places, most


class _Floor:
    """Free devices: each scope fills from its first node on; nodes that small instances share may take more of them."""

    def __init__(self, machines: Machines) -> None:
        devices, scope = machines.devices, scope_devices(machines) or machines.devices
        self.per_node, self.scope = machines.devices_per_node, scope
        self.begins = list(range(0, devices, scope))
        self.free = list(self.begins)  # first free device of each scope
        self.ends = [min(begin + scope, devices) for begin in self.begins]
        self.begun: list[tuple[int, int]] = []  # (first free device, end) of nodes that small instances share

    def take(self, size: int) -> int | None:
        """Take the devices of an instance and return the first; None where too few are free."""
        if size < self.per_node:
            return self._share(size)
        size = whole_nodes(size, self.per_node)
        return self._across(size) if size > self.scope else self._inside(size)

    def _inside(self, size: int) -> int | None:
        for number, (first, end) in enumerate(zip(self.free, self.ends, strict=True)):
            if first + size <= end:
                self.free[number] = first + size
                return first
        return None

    def _across(self, size: int) -> int | None:
        """Take consecutive whole scopes, the last one in part."""
        count = -(-size // self.scope)
        for number in range(len(self.begins) - count + 1):
            span = range(number, number + count)
            if all(self.free[each] == self.begins[each] for each in span):
                first = self.begins[number]
                if first + size > self.ends[number + count - 1]:
                    continue
                for each in span:
                    self.free[each] = min(self.ends[each], first + size)
                return first
        return None

    def _share(self, size: int) -> int | None:
        for number, (first, end) in enumerate(self.begun):
            if first + size <= end:
                self.begun[number] = (first + size, end)
                return first
        found = self._inside(self.per_node)
        if found is None:  # the last node may be cut short
            left = [(first, end) for first, end in zip(self.free, self.ends, strict=True) if first + size <= end]
            if not left:
                return None
            first, end = left[0]
            self.free[self.ends.index(end)] = end
            self.begun.append((first + size, end))
            return first
        self.begun.append((found + size, found + self.per_node))
        return found
