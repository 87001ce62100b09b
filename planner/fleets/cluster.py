"""Several models with rates and limits of their own on one cluster: one integer programme over all of their columns.

A model stands on the pools of its question, or on any of several: then its prefill and its decode each take the pool
that is best for the whole cluster (``search.routes``). What all of them carry over their asked rates is the factor f:
the objective ``throughput`` finds the largest common growth that the cluster stands, which may be below 1. ``latency``
takes all devices for the least mean time of a request (``fleets.quickest``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

from ground.errors import Fault
from planner.checks.check import PREDICTED
from planner.checks.deployed import from_plan
from planner.fleets.answer import FleetAnswer
from planner.fleets.members import Fleet, Member, aim_of, asked_rate, check_fleet
from planner.fleets.proof import prove
from planner.fleets.quickest import quickest_fleet
from planner.fleets.ways import Gathered, Option, every_way, gather_fleet
from planner.offers.choice import Choice
from planner.offers.columns import Side
from planner.plans.plan import Plan
from planner.search.quickest_plans import quick_plan
from planner.search.routes import Picks, settle_picks
from planner.search.search import LONGER, plan_at


def plan_cluster(fleet: Fleet) -> FleetAnswer:
    """Return the best plan of every member together, proven over all columns of all of them.

    With a confidence all service times are taken as long as they are with it: those of each member's plan for times as
    predicted (``checks.check``), whose limits are tightened and whose rate is raised by the same factor.

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
    bound = sure.bound
    if bound is not None and fleet.objective == "latency":
        bound = replace(bound, covers=f"{bound.covers}; the bound is of times and rates as with the confidence")
    return replace(
        sure,
        fleet=fleet,
        bound=bound,
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
    makes a plan's transfers longer and its TPOT late, all is done again with theirs, as in ``search.search``.
    """
    transfers = transfers or {}
    separate, aim = gather_fleet(fleet, transfers), aim_of(fleet)
    if fleet.objective == "latency":
        return _quickest(separate)
    gathered, known = every_way(separate, aim)
    programme = None if gathered.closed else gathered.programme(aim)
    picks = settle_picks(programme, known) if programme is not None else None
    if programme is None or picks is None:
        from planner.fleets.refusal import refused  # only a refusal needs it

        return refused(separate)
    bound = prove(programme, picks, [member.name for member in fleet.members])
    if bound.gap > 1e-6:
        raise Fault(f"the fleet programme's bound {bound.value:g} is not what the chosen columns reach")
    share = programme.carried(picks) if fleet.objective == "throughput" else 1.0
    plans = _plans(
        gathered,
        picks,
        lambda option, columns, rate: plan_at(option.question, option.pools, columns, rate * share),
    )
    growth = share if fleet.objective == "throughput" else _spare(programme.picked(picks), plans)
    longer = _late(fleet, plans, transfers)
    if longer:
        return _plan(fleet, {**transfers, **longer})
    return FleetAnswer(
        fleet=fleet,
        plans=plans,
        growth=growth,
        candidates_evaluated=gathered.evaluated,
        bound=replace(bound, pruned=(*bound.pruned, *gathered.never_queued)),
        binding_limit="rate" if fleet.objective != "throughput" else "devices",
        explanation=explanation(fleet, plans, growth),
    )


def _quickest(separate: Gathered) -> FleetAnswer:
    """Return the plans whose requests take least on average, at their rates.

    As for one model, decode is planned for the slowest transfer, and what KV waits for busy links is the gap.
    """
    fleet = separate.fleet
    found = quickest_fleet(separate)
    if found is None:
        from planner.fleets.refusal import refused

        return refused(separate)
    plans = _plans(
        found.gathered, found.picks, lambda option, columns, _: quick_plan(option.question, option.pools, columns)
    )
    growth = _spare(found.programme.picked(found.picks), plans)
    return FleetAnswer(
        fleet=fleet,
        plans=plans,
        growth=growth,
        candidates_evaluated=found.gathered.evaluated,
        bound=found.bound(mean_seconds(plans)),
        binding_limit="devices",
        explanation=explanation(fleet, plans, growth),
    )


def mean_seconds(plans: Sequence[Plan]) -> float:
    """Return the mean time from arrival to the last token over all requests of all models."""
    rate = sum(plan.requests_per_second for plan in plans)
    return sum(plan.requests_per_second / rate * plan.e2e_mean_seconds for plan in plans)


def _late(fleet: Fleet, plans: Sequence[Plan], transfers: Mapping[str, float]) -> dict[str, float]:
    """Return the longer transfers of members whose TPOT is late, for their KV waits longer than was counted."""
    return {
        member.name: LONGER * plan.transfer_seconds
        for member, plan in zip(fleet.members, plans, strict=True)
        if plan.tpot.at(plan.question.percentile) > plan.question.tpot_seconds
        and plan.transfer_seconds > transfers.get(member.name, 0.0)
    }


def _plans(gathered: Gathered, picks: Picks, make: Callable[[Option, Choice, float], Plan | None]) -> tuple[Plan, ...]:
    """Return the plan of every member, which ``make`` makes of its option, its columns and its asked rate."""
    plans = []
    for member, options, pick in zip(gathered.fleet.members, gathered.options, picks, strict=True):
        option = options[pick.way]
        plan = make(option, pick.columns, asked_rate(member))
        if plan is None:
            raise Fault(f"the fleet programme chose a rate that the queues of {member.name} cannot carry")
        plans.append(plan)
    return tuple(plans)


def _spare(picked: Sequence[tuple[Side, int]], plans: Sequence[Plan]) -> float:
    """Share of the asked rates that the slowest pool carries: of aggregated ones no more was sought than was asked."""
    pools = [pool for plan in plans for _, pool in plan.pools()]
    return min(
        pool.capacity_per_second / pool.instances * int(side.left[column]) / side.unit
        for pool, (side, column) in zip(pools, picked, strict=True)
    )


def explanation(fleet: Fleet, plans: Sequence[Plan], growth: float) -> str:
    """Say in one sentence how the cluster is divided."""
    told = ""
    if fleet.objective == "latency":
        told = f"a request takes {mean_seconds(plans):.4g} s on average: "
    parts = told + ", ".join(
        f"{member.name} {_devices(plan.devices)} for {plan.requests_per_second:.4g} requests/s"
        for member, plan in zip(fleet.members, plans, strict=True)
    )
    if fleet.objective == "throughput":
        return f"every model carries {growth:.3g} times its rate: {parts}"
    return f"{parts}; the slowest pool has {growth - 1:.1%} to spare"


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"
