"""Parts of one pool for prefill and decode instances below a node that are spread over its nodes."""

from dataclasses import replace

import numpy as np

from planner.instances.alignment import scope_devices
from planner.programme.columns import Side
from planner.question import Machines


def spread_apart(sides: tuple[Side, Side], *, encodes: bool = False) -> list[tuple[Side, Side]]:
    """Return prefill and decode on parts of one pool where instances below a node are spread over nodes.

    Where those of both roles are, each has a share of every node; before instances that encode pictures, which have the
    rest of it (``Costing.fed``). Where one role's instances take whole nodes, the other's have the nodes that are left.
    """
    machines = sides[0].machines
    per_node, nodes = machines.devices_per_node, machines.devices // machines.devices_per_node
    if scope_devices(machines) is not None:
        return []
    alone = replace(machines, among_others=False)
    below = [side.of(side.offers.select(np.flatnonzero(side.offers.devices < per_node))) for side in sides]
    whole = [side.of(side.offers.select(np.flatnonzero(side.offers.devices >= per_node))) for side in sides]
    found = []
    for both in range(2, per_node) if encodes else (per_node,):
        for share in range(1, both):
            parts = (part_of_nodes(machines, own) for own in (share, both - share))
            first, second = (side.on(part) for side, part in zip(below, parts, strict=True))
            found.append((first, second))
    for count in () if encodes else _some(2, nodes - 2):
        few, rest = (replace(alone, devices=each * per_node) for each in (count, nodes - count))
        found += [(below[0].on(few), whole[1].on(rest)), (whole[0].on(rest), below[1].on(few))]
    return [each for each in found if all(side.size for side in each)]


def part_of_nodes(machines: Machines, share: int) -> Machines:
    """Return so many devices of every whole node, over which instances are spread."""
    nodes = machines.devices // machines.devices_per_node
    return replace(machines, devices=nodes * share, share=share, among_others=False)


def _some(least: int, most: int) -> list[int]:
    """Return numbers of nodes from the least to the most: every one up to 8, then steps of a quarter."""
    found = list(range(least, min(most, 8) + 1))
    while found and found[-1] < most:
        found.append(min(found[-1] * 5 // 4, most))
    return found
