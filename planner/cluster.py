"""Several models with rates and limits of their own on one cluster: one integer programme over all of their columns.

    maximise f, or minimise devices or cost
    sum over columns of a role of a model of x = 1       one_<model> <role>
    f - sum of rate / asked rate x <= 0                  rate_<model> <role>
    sum over columns of a pool of devices x <= budget    devices_<pool>
    f >= 1 where devices or cost are minimised           asked_rate
    x binary

f is what every model carries over its asked rate: the objective ``throughput`` finds the largest common growth that
the cluster stands, which may be below 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.columns import Aim, Side, carried_by, settle
from planner.fleet import Objective
from planner.infeasible import missing, unsurvivable
from planner.plan import Plan
from planner.proof import Bound, certify, proven
from planner.question import Question
from planner.search import Pools, gather, plan_at
from planner.space import check_layouts
from podplan.errors import BadInput, Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One model of a fleet; its question's rate is what it has to serve, its machines name the pools."""

    name: str
    question: Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Members on shared pools. ``devices`` are what each pool has, whatever the members' machines say."""

    members: tuple[Member, ...]
    devices: dict[str, int]
    objective: Objective = "chips"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """A plan per member, in their order; none where the rates do not fit, then with the reason.

    ``growth`` is what every member carries over its asked rate, at least; where nothing fits, the share of all rates
    that would.
    """

    fleet: Fleet
    plans: tuple[Plan, ...]
    growth: float
    devices_used: dict[str, int]
    cost_per_hour: float | None
    candidates_evaluated: int
    bound: Bound | None
    binding_limit: str
    explanation: str

    @property
    def feasible(self) -> bool:
        """Whether every member has a plan."""
        return bool(self.plans)


def plan_cluster(fleet: Fleet) -> FleetAnswer:
    """Return the best plan of every member together, proven over all columns of all of them.

    Raises BadInput for no members, one name twice, a member without a rate or of an unknown pool, and members
    whose expert layouts fit no strategy.
    """
    check_fleet(fleet)
    gathered = [gather(_on_pools(fleet, member)) for member in fleet.members]
    sides = [side for member, pools in zip(fleet.members, gathered, strict=True) for side in _named(member, pools)]
    evaluated = sum(pools.count.evaluated for pools in gathered)
    for member, pools in zip(fleet.members, gathered, strict=True):
        for side in pools.sides:
            if not side.offers:
                limit, told = missing(_on_pools(fleet, member), side.role == "prefill")
                return _refused(fleet, evaluated, 0.0, limit, f"{member.name}: {told}")
    aim = Aim(devices=fleet.devices, objective=fleet.objective, rate=None if fleet.objective == "throughput" else 1.0)
    choice = settle(sides, aim)
    if choice is None:
        return _why_not(fleet, gathered, sides, aim, evaluated)
    growth = carried_by(sides, choice)
    bound = proven(sides, aim, choice)
    if bound.gap > 1e-6:
        raise Fault(f"the fleet programme's bound {bound.value:g} is not what the chosen columns reach")
    plans = []
    for number, (member, pools) in enumerate(zip(fleet.members, gathered, strict=True)):
        own = replace(pools, prefill=sides[2 * number], decode=sides[2 * number + 1])
        rate = asked_rate(member) * (growth if fleet.objective == "throughput" else 1.0)
        plan = plan_at(_on_pools(fleet, member), own, (choice[2 * number], choice[2 * number + 1]), rate)
        if plan is None:
            raise Fault(f"the fleet programme chose a rate that the queues of {member.name} cannot carry")
        plans.append(plan)
    return FleetAnswer(
        fleet=fleet,
        plans=tuple(plans),
        growth=growth,
        devices_used=devices_used(plans),
        cost_per_hour=cost_per_hour(plans),
        candidates_evaluated=evaluated,
        bound=bound,
        binding_limit="rate" if fleet.objective != "throughput" else "devices",
        explanation=explanation(fleet, plans, growth),
    )


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
        for machines in (member.question.prefill, member.question.decode):
            if machines.budget not in fleet.devices:
                pools = ", ".join(sorted(fleet.devices))
                raise BadInput(f"{member.name}: pool {machines.budget!r} is not one of the cluster's: {pools}")
        check_layouts(_on_pools(fleet, member))


def asked_rate(member: Member) -> float:
    """Return the requests per second that a member has to serve; BadInput where it states none."""
    rate = member.question.rate_per_second
    if rate is None or not rate > 0:
        raise BadInput(f"{member.name}: a model of a fleet needs the rate that it has to serve")
    return rate


def _on_pools(fleet: Fleet, member: Member) -> Question:
    """Return a member's question with all devices of its pools."""
    own = member.question
    prefill, decode = (
        replace(machines, devices=fleet.devices[machines.budget]) for machines in (own.prefill, own.decode)
    )
    return replace(own, prefill=prefill, decode=decode, objective="chips")


def _named(member: Member, pools: Pools) -> list[Side]:
    """Return a member's columns under its name, with rates in units of what it has to serve."""
    return [
        Side(f"{member.name} {side.role}", side.machines, side.offers, member.question.survive, asked_rate(member))
        for side in pools.sides
    ]


def _why_not(fleet: Fleet, gathered: Sequence[Pools], sides: Sequence[Side], aim: Aim, evaluated: int) -> FleetAnswer:
    """Return the answer where the rates do not fit: the share of all rates that does."""
    most = settle(sides, replace(aim, objective="throughput", rate=None))
    if most is not None:
        share = carried_by(sides, most)
        there = ", ".join(f"{count} of {pool}" for pool, count in sorted(fleet.devices.items()))
        return _refused(
            fleet,
            evaluated,
            share,
            "devices",
            f"{there} carry {share:.1%} of every model's rate; nearest change: rates of {share:.3g} times those asked",
        )
    for number, side in enumerate(sides):
        if settle([side], replace(aim, objective="throughput", rate=None)) is None:
            member = fleet.members[number // 2]
            question = _on_pools(fleet, member)
            limit, told = missing(question, number % 2 == 0)
            if member.question.survive is not None and side.offers and not side.size:
                sizes = ([offer.devices for offer in each.offers] for each in gathered[number // 2].sides)
                limit, told = unsurvivable(question, *sizes)
            return _refused(fleet, evaluated, 0.0, limit, f"{member.name}: {told}")
    return _refused(
        fleet, evaluated, 0.0, "devices", certify(sides, replace(aim, objective="throughput", rate=None)).message
    )


def _refused(fleet: Fleet, evaluated: int, growth: float, limit: str, told: str) -> FleetAnswer:
    return FleetAnswer(
        fleet=fleet,
        plans=(),
        growth=growth,
        devices_used={},
        cost_per_hour=None,
        candidates_evaluated=evaluated,
        bound=None,
        binding_limit=limit,
        explanation=told,
    )


def devices_used(plans: Sequence[Plan]) -> dict[str, int]:
    """Return the devices that plans take of each pool."""
    used: dict[str, int] = {}
    for plan in plans:
        for _, pool in plan.pools():
            budget = pool.machines.budget
            used[budget] = used.get(budget, 0) + pool.devices
    return dict(sorted(used.items()))


def cost_per_hour(plans: Sequence[Plan]) -> float | None:
    """Return the price of all chips in USD per hour; None where one has no price."""
    total = 0.0
    for plan in plans:
        for _, pool in plan.pools():
            price = pool.machines.hardware.price_usd_per_chip_hour
            if price is None:
                return None
            total += price.value * pool.chips
    return total


def explanation(fleet: Fleet, plans: Sequence[Plan], growth: float) -> str:
    """Say in one sentence how the cluster is divided."""
    parts = ", ".join(
        f"{member.name} {plan.devices} devices for {plan.requests_per_second:.4g} requests/s"
        for member, plan in zip(fleet.members, plans, strict=True)
    )
    if fleet.objective == "throughput":
        return f"Every model carries {growth:.3g} times its rate: {parts}."
    return f"{parts}; the slowest pool has {growth - 1:.1%} to spare."
