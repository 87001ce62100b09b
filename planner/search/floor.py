"""Where the instances of a fleet stand: models on nodes of their own as long as there are enough."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ground.errors import Fault
from planner.instances.alignment import Lot, Places, placed, placed_apart
from planner.plans.plan import Plan
from planner.question import Machines
from planner.search.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Floor:
    """Places of every model, in their order, and the pools on which two models share a node."""

    places: tuple[Places, ...]
    shared: tuple[str, ...]

    def nodes(self, plans: Sequence[Plan], number: int) -> dict[str, list[int]]:
        """Return the nodes of each pool that the model of this number stands on, ascending."""
        taken: dict[str, set[int]] = {}
        for role, pool in plans[number].pools():
            per_node, devices = pool.machines.devices_per_node, pool.candidate.devices
            for first in self.places[number][role]:
                span = range(first // per_node, (first + devices - 1) // per_node + 1)
                taken.setdefault(pool.machines.budget, set()).update(span)
        return {pool: sorted(nodes) for pool, nodes in sorted(taken.items())}


def fleet_floor(fleet: Fleet, plans: Sequence[Plan]) -> Floor:
    """Return where every instance stands; models share nodes only where a pool has too few."""
    machines: dict[str, Machines] = {}
    groups: dict[str, list[list[Lot]]] = {pool: [[] for _ in plans] for pool in fleet.devices}
    for number, plan in enumerate(plans):
        for role, pool in reversed(plan.pools()):
            machines[pool.machines.budget] = pool.machines
            lot = Lot(key=f"{number} {role}", devices=pool.candidate.devices, instances=pool.instances)
            groups[pool.machines.budget][number].append(lot)
    firsts: Places = {}
    shared: list[str] = []
    for name, own in machines.items():
        devices = fleet.devices[name]
        at = replace(own, devices=devices)
        found = placed_apart(groups[name], at, devices)
        if found is None:
            shared.append(name)
            found = placed([lot for lots in groups[name] for lot in lots], at, devices)
        if found is None:
            raise Fault(f"the instances of the fleet have no place on {devices} devices of {name}")
        firsts |= found
    places: list[Places] = [
        {role: firsts[f"{number} {role}"] for role, _ in plan.pools()} for number, plan in enumerate(plans)
    ]
    return Floor(tuple(places), tuple(shared))
