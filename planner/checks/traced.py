"""The search on a trace's own requests: candidates are played on them, and so is the plan, both roles together.

A candidate of one role is played as if the other took no time. What its plan does as a whole (``checks.on_trace``)
differs: for throughput it gives the rate, where the limits do not hold at the one that was found; where a rate is
asked, how many instances of each role there are, in this plan and in the one for stationary traffic.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.checks.on_trace import OnTrace, at_rate, held_at, loads, on_trace, pools_of
from planner.instances.alignment import occupied_devices
from planner.instances.space import Role
from planner.objective import Aim
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.programme.columns import RELATIVE
from planner.programme.programme import Programme
from planner.programme.proof import Bound
from planner.question import Question
from planner.search.answer import Answer
from planner.search.gather import gather
from planner.serving.capacity import Limits, Outcome, excess_of
from planner.serving.deployed import play
from planner.serving.latency import Latency
from planner.workload import Trace

Search = Callable[[Question], Answer]


class Traced(NamedTuple):
    """An answer and what its plan does on the trace; None where the trace does not tell, for it hardly fills it."""

    answer: Answer
    on_trace: OnTrace | None = None


def search_on_trace(
    question: Question, trace: Trace, search_plan: Search, first: Callable[..., Answer] | None = None
) -> Traced:
    """Return the answer to a question on a trace, or on stationary traffic where the trace hardly fills its plan.

    ``first`` searches on the trace, and is told for which plans what stands beside them is ``worth`` a search, and that
    nothing is to stand ``beside`` a plan that is one of two.
    """

    def filled(plan: Plan) -> bool:
        return loads(plan, trace, plan.requests_per_second)

    asked = replace(question, workload=replace(question.workload, trace=trace))
    answer = first(asked, worth=filled) if first else search_plan(asked)
    best = answer.best
    if best is None:
        return Traced(answer=answer)
    if not filled(best):
        return Traced(answer=search_plan(question))
    if isinstance(best, DisaggregatedPlan) and not (question.goal.maximised or question.goal.timed):
        other = (first(question, beside=False) if first else search_plan(question)).best
        settled = [together(plan, trace) for plan in (best, other) if plan is not None]
        best = min(settled, key=lambda plan: (not held_at(plan, trace).keeps, *question.goal.key(plan)))
        if best is not answer.best:
            bound = answer.bound and least_chips(best, trace, answer.bound)
            answer = replace(answer, plans=(best,), bound=bound, pareto=(best,))
    found = on_trace(best, trace)
    if found.keeps or not question.goal.maximised or not found.most_per_second:
        return Traced(answer=answer, on_trace=found)
    slower = best.under(best.question)(found.most_per_second)
    if slower is None:
        return Traced(answer=answer, on_trace=found)
    plans = [slower if plan is best else plan for plan in answer.pareto]
    return Traced(answer=replace(answer, plans=(slower,), pareto=tuple(plans)), on_trace=held_at(slower, trace))


def together(plan: Plan, trace: Trace) -> Plan:
    """Return the plan with as few instances as keep its limits on a trace, both roles played together.

    Decode meets requests as prefill lets them go, less bursty than they came, so that it may need fewer instances than
    alone, or more where prefill lets many go at once. Instances of the role that helps more are added as long as the
    devices hold them, then those that are not needed are taken away, of the larger ones first. The plan stays as it is
    where no such numbers keep the limits, and a role where its number is given; all of it where a loss is survived.
    """
    question = plan.question
    if not isinstance(plan, DisaggregatedPlan) or question.survive is not None:
        return plan
    pools, faster = dict(plan.pools()), at_rate(trace, plan.requests_per_second)
    free = [role for role in pools if question.pin(role).instances is None]
    limits = Limits(
        percentile=question.percentile, ttft_seconds=question.ttft_seconds, tpot_seconds=question.tpot_seconds
    )

    def excess(counts: Mapping[Role, int]) -> float:
        found = play(pools_of(plan, counts), faster)
        return excess_of(Outcome(ttft_seconds=found.ttft_seconds, tpot_seconds=found.tpot_seconds), limits)

    def held(counts: Mapping[Role, int]) -> bool:
        taken: dict[str, int] = {}
        for role, pool in pools.items():
            room = occupied_devices(pool.machines, np.array([pool.candidate.devices]), np.array([counts[role]]))
            taken[pool.machines.budget] = taken.get(pool.machines.budget, 0) + int(room[0])
        return all(taken[pool.machines.budget] <= pool.machines.devices for pool in pools.values())

    own: dict[Role, int] = {role: pool.instances for role, pool in pools.items()}
    counts, late = own, excess(own)
    while late > 1:
        larger = [each for role in free if held(each := {**counts, role: counts[role] + 1})]
        after = {excess(each): each for each in larger}
        if min(after, default=late) >= late:
            return plan
        late, counts = min(after), after[min(after)]
    for role in sorted(free, key=lambda role: -pools[role].candidate.devices):
        while counts[role] > 1 and excess(fewer := {**counts, role: counts[role] - 1}) <= 1:
            counts = fewer
    found = None if counts == own else plan.resized(counts["prefill"], counts["decode"])
    if found is None:
        return plan
    played = play(pools_of(found), faster)
    known = played.tpot_seconds[~np.isnan(played.tpot_seconds)]
    tpot = Latency.from_samples(known) if known.size else found.tpot
    return replace(found, ttft=Latency.from_samples(played.ttft_seconds), tpot=tpot)


def least_chips(plan: Plan, trace: Trace, known: Bound) -> Bound | None:
    """Return the fewest chips of separate pools for a plan's rate on a trace; None for other shapes and objectives.

    Prefill by its queues on the trace, for nothing of decode makes a first token later; decode by what full batches
    carry, whatever it meets: alone it would meet requests burstier than prefill lets them go.
    """
    question = plan.question
    if question.shape != "disaggregated" or known.objective != "chips":
        return None
    pools = gather(replace(question, workload=replace(question.workload, trace=trace)))
    machines, decode = pools.prefill.machines, pools.decode
    aim = Aim(devices={machines.budget: machines.devices}, objective="chips", rate=1.0)
    alone = Programme((((pools.prefill,),),), aim)
    picks, able = alone.settle(), decode.devices[decode.rate >= 1 - RELATIVE]
    if picks is None or not able.size:
        return None
    ((side, column),) = alone.picked(picks)
    least = int(side.devices[column]) / machines.devices_per_chip + int(able.min()) / decode.machines.devices_per_chip
    told = "prefill alone on the trace's own requests beside decode whose full batches carry the rate"
    return replace(known, value=least, gap=1 - least / plan.chips, covers=f"{told}; {known.covers}")
