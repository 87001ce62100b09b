"""Several models, each with its rate and limits, on one cluster: one integer programme over all their columns.

A model stands on the pools of its question, or on any of several; then its prefill and its decode each take the pool
that is best for the whole cluster (``programme.programme``). The growth is the common ratio of carried to asked rates.
The objective ``throughput`` maximises it, and it may be below 1. ``latency`` takes all devices for the least mean time
of a request.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ground.errors import Fault
from ground.units import counted
from planner.engines.loader import accelerator_of
from planner.instances.alignment import Lot, Places, placed
from planner.plans.places import nodes_of
from planner.plans.plan import Plan
from planner.question import Machines, Question
from planner.search.answer import Answer
from planner.search.changes.refusal import refused
from planner.search.fleet import Fleet, Member, check_fleet
from planner.search.solve import find, lasting, mean_seconds
from planner.search.sure import STRESSED, is_plain, restated, surely, told_of
from planner.search.ways import formats_of, gather_fleet


def plan_cluster(fleet: Fleet) -> Answer:
    """Return the jointly best plans of all members, proven over all columns.

    Confidence and headroom of a member's question: see ``search.sure``.

    Raises BadInput for no members, duplicate names, a member without a rate or on an unknown pool, and members whose
    expert layouts fit no strategy.
    """
    check_fleet(fleet)
    fleet = fleet._replace(members=tuple(_with_engines(fleet, member) for member in fleet.members))
    asked = [member.question for member in fleet.members]
    if all(map(is_plain, asked)):
        return _plan(fleet)

    def solve(stressed: list[Question]) -> Answer:
        pairs = zip(fleet.members, stressed, strict=True)
        return _plan(fleet._replace(members=tuple(member._replace(question=own) for member, own in pairs)))

    answer = surely(asked, solve)
    own = [restated(*each) for each in zip(answer.plans, asked, strict=False)]
    plans = tuple(plan for plan in own if plan is not None)
    if len(plans) < len(own):
        raise Fault("pools carry a rate with confidence, and not as predicted")
    bound = answer.bound
    if bound is not None and fleet.goal.timed:
        bound = bound._replace(covers=f"{bound.covers}; {STRESSED}")
    told = explanation(fleet, plans, answer.growth) if plans else answer.explanation
    with_ = ", ".join(dict.fromkeys(text for question in asked for text in told_of(question)))
    return replace(answer, fleet=fleet, bound=bound, plans=plans, explanation=f"{with_}: {told}")


def _with_engines(fleet: Fleet, member: Member) -> Member:
    """Return a member with the engine that is best for it alone on each machine, where one is to be chosen.

    One programme over every combination of engines would grow exponentially in the number of members.
    """
    if not member.question.engines:
        return member
    best: dict[str | None, tuple[tuple[float, float], str]] = {}
    for each in formats_of(member, "disaggregated"):
        plan = find(gather_fleet(fleet._replace(members=(each,)))).best
        kind = accelerator_of((each.pools or (each.question.decode,))[0].hardware)
        found = (fleet.goal.key(plan) if plan else (math.inf, 0.0)), each.question.engine
        best[kind] = min(best.get(kind, found), found)
    engines = tuple(engine for _, engine in best.values())
    return member._replace(question=replace(member.question, engine=engines[0], engines=engines))


def _plan(fleet: Fleet) -> Answer:
    """Return the best plans for the predicted service times."""
    separate = gather_fleet(fleet)
    found = lasting(find(separate))
    if found.choice is None:
        return refused(separate)
    sized = not fleet.goal.maximised and not fleet.goal.timed
    return Answer(
        fleet=fleet,
        plans=found.plans,
        growth=found.growth,
        candidates_evaluated=found.choice.gathered.count.evaluated,
        bound=found.bound(),
        binding_limit="rate" if sized else "devices",
        explanation=explanation(fleet, found.plans, found.growth),
    )


def explanation(fleet: Fleet, plans: Sequence[Plan], growth: float) -> str:
    """Return one sentence on how the cluster is divided."""
    goal = fleet.goal
    told = f"a request takes {mean_seconds(plans):.4g} s on average: " if goal.timed else ""
    parts = told + ", ".join(
        f"{member.name} {counted(plan.devices, 'device')} for {plan.requests_per_second:.4g} requests/s"
        for member, plan in zip(fleet.members, plans, strict=True)
    )
    if goal.maximised:
        return f"every model carries {growth:.3g} times its rate: {parts}"
    return f"{parts}; the slowest pool has {growth - 1:.1%} to spare"


@dataclass(frozen=True, slots=True)
class Floor:
    """Positions of the instances of every model, in order, and the pools on which two models share a node."""

    places: tuple[Places, ...]
    shared: tuple[str, ...]


def fleet_floor(fleet: Fleet, plans: Sequence[Plan]) -> Floor:
    """Return the position of every instance; models share nodes where a pool has too few, or where nodes are paid."""
    machines: dict[str, Machines] = {}
    groups: dict[str, list[list[Lot]]] = {pool: [[] for _ in plans] for pool in fleet.devices}
    for number, plan in enumerate(plans):
        for role, pool in reversed(plan.pools()):
            machines[pool.machines.budget] = pool.machines
            lot = Lot(key=f"{number} {role}", devices=pool.candidate.devices, instances=pool.instances)
            groups[pool.machines.budget][number].append(lot)
    firsts: Places = {}
    paid = fleet.goal.priced and fleet.share_nodes
    for name, own in machines.items():
        apart, together = groups[name], [[lot for lots in groups[name] for lot in lots]]
        tried = (
            placed(each, replace(own, devices=fleet.devices[name])) for each in (apart, together)[:: -1 if paid else 1]
        )
        found = next(filter(None, tried), None)
        if found is None:
            raise Fault(f"the instances of the fleet have no place on {fleet.devices[name]} devices of {name}")
        firsts |= found
    places: list[Places] = [
        {role: firsts[f"{number} {role}"] for role, _ in plan.pools()} for number, plan in enumerate(plans)
    ]
    nodes = [nodes_of(plan.pools(), own) for plan, own in zip(plans, places, strict=True)]
    owned = {pool: Counter(node for each in nodes for node in each.get(pool, ())) for pool in machines}
    return Floor(tuple(places), tuple(pool for pool, models in owned.items() if max(models.values()) > 1))
