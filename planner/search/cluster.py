"""Several models with rates and limits of their own on one cluster: one integer programme over all of their columns.

A model stands on the pools of its question, or on any of several: then its prefill and its decode each take the pool
that is best for the whole cluster (``search.programme``). What all of them carry over their asked rates is the factor
f: the objective ``throughput`` finds the largest common growth that the cluster stands, which may be below 1.
``latency`` takes all devices for the least mean time of a request.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from ground.errors import Fault
from ground.units import counted
from planner.engines.accelerators import accelerator_of
from planner.plans.deviation import PREDICTED, deviation_of
from planner.plans.plan import Plan
from planner.plans.quantised import as_planned
from planner.search.answer import Answer
from planner.search.fleet import Fleet, Member, asked_rate, check_fleet, slowed_times
from planner.search.solve import find, mean_seconds
from planner.search.ways import formats_of, gather_fleet


def plan_cluster(fleet: Fleet) -> Answer:
    """Return the best plan of every member together, proven over all columns of all of them.

    With a confidence all service times are taken as long as they are with it: those of each member's plan for times as
    predicted, whose limits are tightened and whose rate is raised by the same factor.

    Raises BadInput for no members, one name twice, a member without a rate or of an unknown pool, and members
    whose expert layouts fit no strategy.
    """
    check_fleet(fleet)
    fleet = replace(fleet, members=tuple(_with_engines(fleet, member) for member in fleet.members))
    predicted = _plan(fleet)
    if fleet.confidence is None or fleet.confidence <= PREDICTED or not predicted.feasible:
        return predicted
    score = NormalDist().inv_cdf(fleet.confidence)
    slowed = [
        replace(member, question=slowed_times(member.question, 1 + score * deviation_of(plan)))
        for member, plan in zip(fleet.members, predicted.plans, strict=True)
    ]
    sure = _plan(replace(fleet, members=tuple(slowed)))
    share = sure.growth if fleet.goal.maximised else 1.0
    plans = tuple(_as_predicted(plan, member, share) for plan, member in zip(sure.plans, fleet.members, strict=False))
    told = explanation(fleet, plans, sure.growth) if plans else sure.explanation
    bound = sure.bound
    if bound is not None and fleet.goal.timed:
        bound = replace(bound, covers=f"{bound.covers}; the bound is of times and rates as with the confidence")
    return replace(
        sure,
        fleet=fleet,
        bound=bound,
        candidates_evaluated=predicted.candidates_evaluated + sure.candidates_evaluated,
        plans=plans,
        explanation=f"with the confidence {fleet.confidence:g}, {told}",
    )


def _with_engines(fleet: Fleet, member: Member) -> Member:
    """Return a member with the engine of each kind of devices that is best for it alone, where one is to be chosen.

    To have every engine of every member in one programme would take their number to the power of the members.
    """
    if not member.question.engines:
        return member
    best: dict[str | None, tuple[tuple[float, float], str]] = {}
    for each in formats_of(member):
        plan = find(gather_fleet(replace(fleet, members=(each,)))).best
        kind = accelerator_of((each.pools or (each.question.decode,))[0].hardware)
        found = (fleet.goal.key(plan) if plan else (math.inf, 0.0)), each.question.engine
        best[kind] = min(best.get(kind, found), found)
    engines = tuple(engine for _, engine in best.values())
    return replace(member, question=replace(member.question, engine=engines[0], engines=engines))


def _as_predicted(plan: Plan, member: Member, growth: float) -> Plan:
    """Return the pools of a plan under the limits and at the rate that were asked for."""
    asked = replace(member.question, prefill=plan.question.prefill, decode=plan.question.decode, objective="chips")
    found = plan.under(as_planned(asked, plan))(asked_rate(member) * growth)
    if found is None:
        raise Fault(f"the pools of {member.name} carry a rate with confidence, and not as predicted")
    return found


def _plan(fleet: Fleet) -> Answer:
    """Return the best plans for service times as predicted."""
    separate = gather_fleet(fleet)
    found = find(separate)
    if found.choice is None:
        from planner.search.changes.refusal import refused  # only a refusal needs it

        return refused(separate)
    proof = found.begin_proof()
    sized = not fleet.goal.maximised and not fleet.goal.timed
    return Answer(
        fleet=fleet,
        plans=found.plans,
        growth=found.growth,
        candidates_evaluated=found.choice.gathered.count.total,
        bound=proof(),
        binding_limit="rate" if sized else "devices",
        explanation=explanation(fleet, found.plans, found.growth),
    )


def explanation(fleet: Fleet, plans: Sequence[Plan], growth: float) -> str:
    """Say in one sentence how the cluster is divided."""
    goal = fleet.goal
    told = f"a request takes {mean_seconds(plans):.4g} s on average: " if goal.timed else ""
    parts = told + ", ".join(
        f"{member.name} {counted(plan.devices, 'device')} for {plan.requests_per_second:.4g} requests/s"
        for member, plan in zip(fleet.members, plans, strict=True)
    )
    if goal.maximised:
        return f"every model carries {growth:.3g} times its rate: {parts}"
    return f"{parts}; the slowest pool has {growth - 1:.1%} to spare"
