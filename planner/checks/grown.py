"""A plan with more instances, where it breaks its limits on a trace: the roles that are late get more until none is.

Searching again with tightened limits (``checks.traced``) finds other instances, but may step over what would do: limits
and the rate that holds on a trace do not fall together. More of the same instances are what an operator would add, and
each number is played, so that what is found is known to hold.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from planner.checks.on_trace import MOST_PLAYED, OnTrace, at_rate, late_at, on_trace, pools_of
from planner.instances.alignment import Lot, placed
from planner.instances.space import Role
from planner.plans.aggregated import AggregatedPlan
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.plans.recorded import play
from planner.question import Question
from planner.workload import Trace

_STEPS, _FEWEST_STEPS = 12, 4
"""Numbers of instances that are played, of a short trace and of a long one."""
_CAUSES: dict[str, tuple[Role, ...]] = {"ttft": ("prefill", "mixed"), "tpot": ("decode", "mixed")}


def grown(question: Question, plan: Plan, trace: Trace, held_per_second: float) -> tuple[Plan, OnTrace] | None:
    """Return a plan with as many more instances as keep the limits at the asked rate on a trace; None without room.

    Args: ``held_per_second``, up to which the plan itself holds them; 0 where that is not known.
    """
    rate = question.rate_per_second
    assert rate is not None, "only an asked rate can be too much for a plan"
    counts: dict[Role, int] = {role: pool.instances for role, pool in plan.pools()}
    for step in range(max(min(_STEPS, MOST_PLAYED // np.size(trace.arrival_seconds)), _FEWEST_STEPS)):
        late = late_at(question, play(pools_of(plan, counts), at_rate(trace, rate)))
        if not late:
            return _resized(question, plan, counts, trace)
        wanted = rate / held_per_second if held_per_second and not step else 1.0
        roles = {role for limit in late for role in _CAUSES[limit]}
        counts = {role: max(n + 1, int(n * wanted)) if role in roles else n for role, n in counts.items()}
        if not _has_room(plan, counts):
            return None
    return None


def _has_room(plan: Plan, counts: Mapping[Role, int]) -> bool:
    """Whether so many instances stand on the devices at hand."""
    pools = plan.pools()
    for budget in {pool.machines.budget for _, pool in pools}:
        own = [(role, pool) for role, pool in pools if pool.machines.budget == budget]
        machines = own[0][1].machines
        lots = [Lot(key=role, devices=pool.candidate.devices, instances=counts[role]) for role, pool in own]
        if placed(lots, machines, machines.devices) is None:
            return False
    return True


def _resized(question: Question, plan: Plan, counts: Mapping[Role, int], trace: Trace) -> tuple[Plan, OnTrace] | None:
    """Return the plan with so many instances at the asked rate, and what it does; None where stationary queues fail."""
    found = _with(plan, counts).under(question)(question.rate_per_second or 0.0)
    return None if found is None else (found, on_trace(found, trace))


def _with(plan: Plan, counts: Mapping[Role, int]) -> Plan:
    """Return the plan with so many instances; its figures are still those of fewer."""
    if isinstance(plan, AggregatedPlan):
        mixed, n = plan.mixed, counts["mixed"]
        each = mixed.capacity_per_second / mixed.instances
        return replace(plan, mixed=replace(mixed, instances=n, capacity_per_second=n * each))
    assert isinstance(plan, DisaggregatedPlan), "a plan has one of two shapes"
    first, second = plan.prefill, plan.decode
    rates = (pool.capacity_per_second / pool.instances for pool in (first, second))
    prefill, decode = counts["prefill"], counts["decode"]
    each, other = rates
    return replace(
        plan,
        prefill=replace(first, instances=prefill, capacity_per_second=prefill * each),
        decode=replace(second, instances=decode, capacity_per_second=decode * other),
    )
