"""Models that share a cluster: the rate and pools of each, and the objective."""

from dataclasses import replace
from typing import NamedTuple, Self

from ground.errors import BadInput
from planner.instances.space import check_layouts
from planner.objective import OBJECTIVES, Aim, Objective, ObjectiveName
from planner.question import Machines, Question


class Member(NamedTuple):
    """One model of a fleet. Its question gives the rate that it must serve; its machines name the pools.

    With ``pools`` each role may stand on any of them; the question's machines are the first.
    """

    name: str
    question: Question
    pools: tuple[Machines, ...] = ()


class Fleet(NamedTuple):
    """Members on shared pools. ``devices`` are those of each pool and override the members' machines."""

    members: tuple[Member, ...]
    devices: dict[str, int]
    objective: ObjectiveName = "chips"
    share_nodes: bool = True  # whether two models may stand on one node

    @classmethod
    def of(cls, question: Question) -> Self:
        """Return the fleet of one model, without its rate where the objective is throughput; others need one."""
        if question.goal.maximised:
            question = replace(question, rate_per_second=None)
        return cls(
            members=(Member(name="", question=question),),
            devices={machines.budget: machines.devices for machines in (question.prefill, question.decode)},
            objective=question.objective,
        )

    @property
    def goal(self) -> Objective:
        """The objective."""
        return OBJECTIVES[self.objective]

    @property
    def single(self) -> bool:
        """Whether the fleet is a question of one model."""
        return len(self.members) == 1 and not self.members[0].name


def check_fleet(fleet: Fleet) -> None:
    """Raise BadInput for a fleet that cannot be planned."""
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
    """Return the requests per second that a member must serve. Raises BadInput where it states none."""
    rate = member.question.rate_per_second
    if rate is None or not rate > 0:
        raise BadInput(f"{member.name}: a model of a fleet needs the rate that it has to serve")
    return rate


def on_pools(fleet: Fleet, member: Member, pair: tuple[Machines, Machines] | None = None) -> Question:
    """Return a member's question with all devices of its pools, or of another pair of machines.

    In a fleet every member has a rate, whatever the objective; only with ``latency`` columns have times.
    """
    own = member.question
    if fleet.single and (pair is None or own.one_pool):
        return own
    if not fleet.single:
        own = replace(own, objective="latency" if fleet.goal.timed else "chips")
    first, second = pair or (own.prefill, own.decode)
    others = not fleet.single
    prefill, decode = (
        replace(each, devices=fleet.devices[each.budget], among_others=others) for each in (first, second)
    )
    decode = prefill if second is first else decode
    return replace(own, prefill=prefill, decode=decode)


def aim_of(fleet: Fleet) -> Aim:
    """Return the objective within the pools; rates are in units of the asked rates."""
    rate = None if fleet.goal.maximised else 1.0
    return Aim(devices=fleet.devices, objective=fleet.objective, rate=rate)


def shares(fleet: Fleet) -> tuple[float, ...]:
    """Return the share of all requests that each model has."""
    rates = [member.question.rate_per_second or 1.0 for member in fleet.members]
    return tuple(rate / sum(rates) for rate in rates)
