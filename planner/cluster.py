"""Several models with rates and limits of their own on one cluster: one integer programme over all of their columns.

A model stands on the pools of its question, or on any of several: then its prefill and its decode each take the pool
that is best for the whole cluster (``planner.routes``). What all of them carry over their asked rates is the factor f:
the objective ``throughput`` finds the largest common growth that the cluster stands, which may be below 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from statistics import NormalDist

from planner.check import PREDICTED
from planner.columns import Aim, Side
from planner.deployed import from_plan
from planner.fleet import Objective
from planner.fleet_proof import prove
from planner.infeasible import slowest_transfer
from planner.parts import Costing, Pools, compatible, gather
from planner.plan import Plan
from planner.proof import Bound
from planner.quantised import in_formats
from planner.question import Machines, Question
from planner.routes import Picks, Programme, settle_picks
from planner.search import LONGER, plan_at
from planner.space import check_layouts
from podplan.errors import BadInput, Fault
from podplan.records import dataclass


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that gives a fleet without a plan one; it was solved."""

    direction: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """A plan per member, in their order; none where the rates do not fit, then with the reason.

    ``growth`` is what every member carries over its asked rate, at least; where nothing fits, the share of all rates
    that would.
    """

    fleet: Fleet
    plans: tuple[Plan, ...]
    growth: float
    candidates_evaluated: int
    bound: Bound | None
    binding_limit: str
    explanation: str
    changes: tuple[Change, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether every member has a plan."""
        return bool(self.plans)

    @property
    def devices_used(self) -> dict[str, int]:
        """Devices that the plans take of each pool."""
        return devices_used(self.plans)

    @property
    def cost_per_hour(self) -> float | None:
        """Price of all chips in USD per hour; None where one has no price."""
        return cost_per_hour(self.plans)

    @property
    def power_watts(self) -> float | None:
        """Power of all machines; None where one states none."""
        return power_watts(self.plans)


@dataclass(frozen=True, slots=True)
class Option:
    """A way of a member: the question on the pools that it takes, and the columns of its roles."""

    question: Question
    pools: Pools

    @property
    def sides(self) -> tuple[Side, ...]:
        """The columns of each role."""
        return self.pools.sides


@dataclass(frozen=True, slots=True)
class Gathered:
    """Every option of every member, [members][options], costed once."""

    fleet: Fleet
    options: tuple[tuple[Option, ...], ...]
    evaluated: int
    open_roles: dict[str, tuple[Question, bool]] = field(default_factory=dict)
    """Members without an option, with a question and whether it is its prefill that has no instance."""

    def programme(self, aim: Aim, members: Sequence[int] | None = None) -> Programme:
        """Return the programme of all members, or of those with the given numbers."""
        chosen = range(len(self.options)) if members is None else members
        ways = tuple(tuple(option.sides for option in self.options[number]) for number in chosen)
        return Programme(ways, aim, whole_nodes=not self.fleet.share_nodes)


def plan_cluster(fleet: Fleet) -> FleetAnswer:
    """Return the best plan of every member together, proven over all columns of all of them.

    With a confidence all service times are taken as long as they are with it: those of each member's plan for times as
    predicted (``planner.check``), whose limits are tightened and whose rate is raised by the same factor.

    Raises BadInput for no members, one name twice, a member without a rate or of an unknown pool, and members
    whose expert layouts fit no strategy.
    """
    check_fleet(fleet)
    predicted = _plan(fleet)
    if fleet.confidence is None or fleet.confidence <= PREDICTED or not predicted.feasible:
        return predicted
    score = NormalDist().inv_cdf(fleet.confidence)
    slowed = [
        _slowed(member, 1 + score * from_plan(plan).deviation)
        for member, plan in zip(fleet.members, predicted.plans, strict=True)
    ]
    sure = _plan(replace(fleet, members=tuple(slowed)))
    share = sure.growth if fleet.objective == "throughput" else 1.0
    plans = tuple(_as_predicted(plan, member, share) for plan, member in zip(sure.plans, fleet.members, strict=False))
    told = explanation(fleet, plans, sure.growth) if plans else sure.explanation
    return replace(
        sure,
        fleet=fleet,
        candidates_evaluated=predicted.candidates_evaluated + sure.candidates_evaluated,
        plans=plans,
        explanation=f"with the confidence {fleet.confidence:g}, {told}",
    )


def _slowed(member: Member, factor: float) -> Member:
    """Return a member whose predicted times stand for times that are ``factor`` as long."""
    question = member.question
    tighter = replace(
        question,
        ttft_seconds=question.ttft_seconds / factor,
        tpot_seconds=question.tpot_seconds / factor,
        rate_per_second=asked_rate(member) * factor,
    )
    return replace(member, question=tighter)


def _as_predicted(plan: Plan, member: Member, growth: float) -> Plan:
    """Return the pools of a plan under the limits and at the rate that were asked for."""
    asked = replace(member.question, prefill=plan.question.prefill, decode=plan.question.decode, objective="chips")
    found = plan.under(asked)(asked_rate(member) * growth)
    if found is None:
        raise Fault(f"the pools of {member.name} carry a rate with confidence, and not as predicted")
    return found


def _plan(fleet: Fleet, transfers: Mapping[str, float] | None = None) -> FleetAnswer:
    """Return the best plans for service times as predicted.

    Decode is planned for prompts whose KV takes ``transfers`` seconds at least, by member. Where waiting for links
    makes a plan's transfers longer and its TPOT late, all is done again with theirs, as in ``planner.search``.
    """
    transfers = transfers or {}
    gathered = gather_fleet(fleet, transfers)
    programme = gathered.programme(aim_of(fleet))
    picks = None if gathered.open_roles else settle_picks(programme)
    if picks is None:
        from planner.fleet_refusal import refused  # only a refusal needs it

        return refused(gathered)
    growth = programme.carried(picks)
    bound = prove(programme, picks, [member.name for member in fleet.members])
    if bound.gap > 1e-6:
        raise Fault(f"the fleet programme's bound {bound.value:g} is not what the chosen columns reach")
    plans = _plans(gathered, picks, growth if fleet.objective == "throughput" else 1.0)
    longer = _late(fleet, plans, transfers)
    if longer:
        return _plan(fleet, {**transfers, **longer})
    return FleetAnswer(
        fleet=fleet,
        plans=plans,
        growth=growth,
        candidates_evaluated=gathered.evaluated,
        bound=bound,
        binding_limit="rate" if fleet.objective != "throughput" else "devices",
        explanation=explanation(fleet, plans, growth),
    )


def _late(fleet: Fleet, plans: Sequence[Plan], transfers: Mapping[str, float]) -> dict[str, float]:
    """Return the longer transfers of members whose TPOT is late, for their KV waits longer than was counted."""
    return {
        member.name: LONGER * plan.transfer_seconds
        for member, plan in zip(fleet.members, plans, strict=True)
        if plan.tpot.at(plan.question.percentile) > plan.question.tpot_seconds
        and plan.transfer_seconds > transfers.get(member.name, 0.0)
    }


def aim_of(fleet: Fleet) -> Aim:
    """Return what is to be best within the pools; rates are in units of what is asked."""
    return Aim(devices=fleet.devices, objective=fleet.objective, rate=None if fleet.objective == "throughput" else 1.0)


def _plans(gathered: Gathered, picks: Picks, share: float) -> tuple[Plan, ...]:
    """Return the plan of every member at its rate times ``share``."""
    plans = []
    for member, options, pick in zip(gathered.fleet.members, gathered.options, picks, strict=True):
        option = options[pick.way]
        first, second = pick.columns
        plan = plan_at(option.question, option.pools, (first, second), asked_rate(member) * share)
        if plan is None:
            raise Fault(f"the fleet programme chose a rate that the queues of {member.name} cannot carry")
        plans.append(plan)
    return tuple(plans)


def gather_fleet(fleet: Fleet, transfers: Mapping[str, float] | None = None) -> Gathered:
    """Cost every candidate of every member on every pool that it may stand on; no queue is solved yet.

    ``transfers``: seconds that a prompt's KV takes at least, by member.
    """
    longer = transfers or {}
    options, evaluated = [], 0
    open_roles: dict[str, tuple[Question, bool]] = {}
    for member in fleet.members:
        own: list[Option] = []
        lacks, costing = True, Costing()  # a role is costed once in each of its formats
        for question in in_formats(member.question):
            formed = replace(member, question=question)
            least = longer.get(member.name)
            pools = (
                _gather_pools(fleet, formed, least or 0.0)
                if member.pools
                else {"": gather(on_pools(fleet, formed), transfer_seconds=least, costing=costing)}
            )
            evaluated += sum(part.count.evaluated for part in pools.values()) if member.pools else 0
            own += _options(fleet, formed, pools)
            lacks = lacks and not any(part.prefill.offers for part in pools.values())
        evaluated += costing.count.evaluated
        options.append(tuple(own))
        if not own:
            open_roles[member.name] = (on_pools(fleet, formed), lacks)
    return Gathered(fleet, tuple(options), evaluated, open_roles)


def _gather_pools(fleet: Fleet, member: Member, least_transfer_seconds: float) -> dict[str, Pools]:
    """Cost a member on each pool that it may stand on; KV may come from whichever takes longest."""
    at = {machines.budget: machines for machines in member.pools}
    pairs = [on_pools(fleet, member, (first, second)) for first in at.values() for second in at.values()]
    transfer = max(least_transfer_seconds, *(slowest_transfer(question) for question in pairs))
    return {
        name: gather(on_pools(fleet, member, (machines, machines)), transfer_seconds=transfer)
        for name, machines in at.items()
    }


def _options(fleet: Fleet, member: Member, pools: dict[str, Pools]) -> list[Option]:
    """Return the ways of a member: every pair of pools, in the parts that its engine lets share KV."""
    named: dict[int, tuple[Side, Side]] = {}  # the key's own side is kept, so that no other gets its id

    def side(own: Side) -> Side:
        """Return columns under the member's name, with rates in units of what it has to serve; each made once."""
        if id(own) not in named:
            role = f"{member.name} {own.role}"
            loss, unit = member.question.survive, asked_rate(member)
            named[id(own)] = own, Side(role, own.machines, own.offers, loss, unit, own.most_instances)
        return named[id(own)][1]

    found = []
    for first in pools.values():
        for second in pools.values():
            machines = (first.prefill.machines, second.decode.machines)
            question = on_pools(fleet, member, machines)
            for part in compatible(question, replace(first, decode=second.decode)):
                prefill, decode = side(part.prefill), side(part.decode)
                if prefill.offers and decode.offers:
                    found.append(Option(question, replace(part, prefill=prefill, decode=decode)))
    return found


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
    return replace(own, prefill=prefill, decode=decode, objective="chips")


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
    prices = [plan.cost_per_hour for plan in plans]
    return None if None in prices else sum(price for price in prices if price is not None)


def power_watts(plans: Sequence[Plan]) -> float | None:
    """Return the power of all machines; None where one states none."""
    watts = [plan.power_watts for plan in plans]
    return None if None in watts else sum(each for each in watts if each is not None)


def explanation(fleet: Fleet, plans: Sequence[Plan], growth: float) -> str:
    """Say in one sentence how the cluster is divided."""
    parts = ", ".join(
        f"{member.name} {plan.devices} devices for {plan.requests_per_second:.4g} requests/s"
        for member, plan in zip(fleet.members, plans, strict=True)
    )
    if fleet.objective == "throughput":
        return f"every model carries {growth:.3g} times its rate: {parts}"
    return f"{parts}; the slowest pool has {growth - 1:.1%} to spare"
