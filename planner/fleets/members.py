"""Models that share a cluster: what each has to serve, where it may stand, and what is to be best."""

from dataclasses import dataclass, replace

from ground.errors import BadInput
from planner.instances.space import check_layouts
from planner.offers.choice import Aim
from planner.question import Machines, Objective, Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One model of a fleet; its question's rate is what it has to serve, its machines name the pools.

    With ``pools`` either role may stand on any of them, and the question's machines are the first.
    """

    name: str
    question: Question
    pools: tuple[Machines, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Members on shared pools. ``devices`` are what each pool has, whatever the members' machines say."""

    members: tuple[Member, ...]
    devices: dict[str, int]
    objective: Objective = "chips"
    share_nodes: bool = True
    """Whether two models may stand on one node."""
    confidence: float | None = None
    """In the predicted service times, with which every limit must hold; as predicted without."""


def check_fleet(fleet: Fleet) -> None:
    """Raise BadInput for what no cluster could be planned for."""
    names = [member.name for member in fleet.members]
    if not names:
        raise BadInput("a fleet needs at least one model")
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{name!r} stands twice in the fleet; give every model of it a name of its own")
    for member in fleet.members:
        asked_rate(member)
        for machines in member.pools or (member.question.prefill, member.question.decode):
            if machines.budget not in fleet.devices:
                pools = ", ".join(sorted(fleet.devices))
                raise BadInput(f"{member.name}: pool {machines.budget!r} is not one of the cluster's: {pools}")
        check_layouts(on_pools(fleet, member))


def asked_rate(member: Member) -> float:
    """Return the requests per second that a member has to serve; BadInput where it states none."""
    rate = member.question.rate_per_second
    if rate is None or not rate > 0:
        raise BadInput(f"{member.name}: a model of a fleet needs the rate that it has to serve")
    return rate


def on_pools(fleet: Fleet, member: Member, pair: tuple[Machines, Machines] | None = None) -> Question:
    """Return a member's question with all devices of its pools, or of a pair of others."""
    own = member.question
    prefill, decode = (
        replace(machines, devices=fleet.devices[machines.budget]) for machines in pair or (own.prefill, own.decode)
    )
    objective: Objective = "latency" if fleet.objective == "latency" else "chips"
    return replace(own, prefill=prefill, decode=decode, objective=objective)


def aim_of(fleet: Fleet) -> Aim:
    """Return what is to be best within the pools; rates are in units of what is asked.

    Lowest latency has no such aim (``fleets.quickest``): any choice that carries the rates may be its.
    """
    if fleet.objective == "throughput":
        return Aim(devices=fleet.devices, objective="throughput")
    return Aim(devices=fleet.devices, objective="cost" if fleet.objective == "cost" else "chips", rate=1.0)
