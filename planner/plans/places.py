"""Where the instances of a plan's pools stand on its clusters, and what the loss of a node takes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ground.errors import Fault
from hardware.spec import HardwareSpec
from planner.instances.alignment import Lot, Places, lost_instances, placed, placed_evenly
from planner.instances.space import Role
from planner.plans.pools import PlannedPool
from planner.question import Loss, Machines

Pools = Sequence[tuple[Role, PlannedPool]]  # pools with their roles, in the order in which a request passes them


def clusters_of(pools: Pools) -> tuple[dict[str, str], dict[str, HardwareSpec]]:
    """Return the cluster name of every role and the spec of every cluster.

    A cluster has the name of its spec, followed by the role where another spec has that name.
    """
    names: dict[str, str] = {}
    specs: dict[str, HardwareSpec] = {}
    for role, pool in reversed(pools):
        spec = pool.machines.hardware
        name = spec.name if specs.get(spec.name, spec) == spec else f"{spec.name}-{role}"
        names[role], specs[name] = name, spec
    return names, specs


def places_of(pools: Pools, *, spread: bool) -> Places:
    """Return the first device of every instance of a plan that shares its machines with no other.

    The largest instances take the first nodes, decode before prefill of the same size. An instance of at least a node
    starts at a node; smaller ones share nodes (``instances.alignment``).
    """
    names, _ = clusters_of(pools)
    found: Places = {}
    for name in dict.fromkeys(names.values()):
        own = [(role, pool) for role, pool in reversed(pools) if names[role] == name]
        budgets = {pool.machines.budget: pool.machines for _, pool in own}
        if spread:
            found |= _apart(own, budgets)
            continue
        devices = sum(machines.devices for machines in budgets.values())
        found |= _on(own, replace(own[0][1].machines, devices=devices))
    return found


def _apart(own: list[tuple[Role, PlannedPool]], budgets: Mapping[str, Machines]) -> Places:
    """Return the places of spread instances, each budget on nodes of its own."""
    found, begin = Places(), 0
    for budget, machines in budgets.items():
        places = _on([each for each in own if each[1].machines.budget == budget], machines, evenly=True)
        found |= {role: [begin + first for first in firsts] for role, firsts in places.items()}
        begin += machines.nodes_of(machines.devices) * machines.devices_per_node
    return found


def _on(own: list[tuple[Role, PlannedPool]], machines: Machines, *, evenly: bool = False) -> Places:
    lots = [Lot(key=role, devices=pool.candidate.devices, instances=pool.instances) for role, pool in own]
    places = (placed_evenly(lots, machines) if evenly else None) or placed([lots], machines)
    if places is None:
        raise Fault(f"the instances of the plan have no place on {machines.devices} devices of {machines.budget}")
    return places


def devices_on(pools: Pools, places: Places) -> dict[str, Counter[int]]:
    """Return the devices of instances at some places by node, by budget."""
    found: dict[str, Counter[int]] = {}
    for role, pool in pools:
        taken, per_node = found.setdefault(pool.machines.budget, Counter()), pool.machines.devices_per_node
        for first in places[role]:
            taken.update(device // per_node for device in range(first, first + pool.candidate.devices))
    return found


def nodes_of(pools: Pools, places: Places) -> dict[str, list[int]]:
    """Return the nodes on which instances at some places stand, ascending, by budget."""
    return {budget: sorted(own) for budget, own in sorted(devices_on(pools, places).items())}


def lost_of(pools: Pools, places: Places, loss: Loss | None) -> dict[Role, int]:
    """Return the most instances of each pool that a loss takes: at known places, or on a node full of them."""
    found: dict[Role, int] = {}
    for role, pool in pools:
        per_node, size = pool.machines.devices_per_node, pool.candidate.devices
        if places and size < per_node:
            found[role] = max(Counter(first // per_node for first in places[role]).values())
        else:
            filled = replace(pool.machines, among_others=True)
            found[role] = int(lost_instances(loss, filled, np.array([size]), np.array([pool.instances]))[0])
    return found


def paid_devices(machines: Machines, devices: int) -> int:
    """Return the devices that are paid for: whole nodes, or those in use where less than a node is available."""
    whole_nodes = machines.devices >= machines.devices_per_node
    return machines.nodes_of(devices) * machines.devices_per_node if whole_nodes else devices
