"""A question on a trace's own requests: the plan found for it, and what a plan does on the trace.

The search plays a candidate of one role as if the other took no time. Here the trace is played through both pools of
the chosen plan (``planner.serving``), with gaps scaled to the plan's rate, and the limits are checked. For throughput
the results decide the rate where the limits are missed at the rate found. For an asked rate they decide the numbers of
instances, in this plan and in the plan for stationary traffic.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.instances.aggregated import AggregatedServer
from planner.instances.alignment import occupied_devices
from planner.instances.space import Role
from planner.objective import Aim
from planner.plans.aggregated import AggregatedPlan
from planner.plans.handover import separate_pools_of
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.programme.columns import RELATIVE
from planner.programme.programme import Programme
from planner.programme.proof import Bound
from planner.question import Question
from planner.search.answer import Answer
from planner.search.gather import gather
from planner.serving.aggregated import AggregatedPool
from planner.serving.capacity import Limits, Outcome
from planner.serving.decode import SeparatePools, Served, within
from planner.serving.deployed import play
from planner.serving.latency import Latency
from planner.workload import TraceRows, Traffic

MOST_PLAYED = 600_000  # most requests played in the search for the largest rate
_FILLED = 3.0  # least number of requests of a trace that loads a plan, over the requests in the system
_STEPS = 7
_BEYOND = 2.0  # upper end of the search for the largest rate, over what the plan's pools carry


class OnTrace(NamedTuple):
    """Results of a plan on a trace; latencies are those of all its requests."""

    factor: float  # plan's rate over the trace's own rate
    recorded: Served
    attainment: float  # share of requests that keep both limits
    keeps: bool  # whether both limits hold at the question's percentile, each on its own
    most_per_second: float | None
    """Largest rate found within both limits, up to twice what the pools carry; None where none was found."""

    def at(self, name: str, percentile: float) -> float | None:
        """Seconds of ``ttft`` or ``tpot`` at a percentile of the requests; None where no answer has a second token."""
        seconds = self.recorded.ttft_seconds if name == "ttft" else self.recorded.tpot_seconds
        known = seconds[~np.isnan(seconds)]
        return float(np.percentile(known, percentile)) if known.size else None


def at_rate(trace: TraceRows, rate_per_second: float) -> TraceRows:
    """Return a trace with its gaps scaled to a mean rate."""
    own = Traffic.from_trace(trace).rate_per_second
    return replace(trace, arrival_seconds=np.asarray(trace.arrival_seconds) * (own / rate_per_second))


def loads(plan: Plan, trace: TraceRows, rate_per_second: float) -> bool:
    """Whether a trace has enough requests to load a plan's pools at a rate.

    The time of a request is taken as that at the plan's own rate.
    """
    return bool(np.size(trace.arrival_seconds) >= _FILLED * rate_per_second * plan.e2e_mean_seconds)


def on_trace(plan: Plan, trace: TraceRows) -> OnTrace:
    """Return the results of a plan on a trace at its rate, and the largest rate within the limits.

    That rate is found by bisection to a few per cent; it was played and keeps the limits. A long trace is played fewer
    times.
    """
    question, pools, planned = plan.question, pools_of(plan), plan.requests_per_second

    def played(rate: float) -> Served:
        return play(pools, at_rate(trace, rate))

    recorded = played(planned)
    keeps = excess_of(recorded, question) <= 1
    carried = max(planned, min(pool.capacity_per_second for _, pool in plan.pools()))
    low, high = (planned, _BEYOND * carried) if keeps else (0.0, planned)
    for _ in range(min(_STEPS, MOST_PLAYED // recorded.ttft_seconds.size)):
        middle = (low + high) / 2
        low, high = (middle, high) if excess_of(played(middle), question) <= 1 else (low, middle)
    return _told(question, trace, planned, recorded, low or None)


def held_at(plan: Plan, trace: TraceRows) -> OnTrace:
    """Return the results of a plan on a trace at its rate, which is known to be about the largest within the limits."""
    rate = plan.requests_per_second
    recorded = play(pools_of(plan), at_rate(trace, rate))
    keeps = excess_of(recorded, plan.question) <= 1
    return _told(plan.question, trace, rate, recorded, rate if keeps else None)


def _told(question: Question, trace: TraceRows, rate: float, recorded: Served, most: float | None) -> OnTrace:
    kept = within(recorded.ttft_seconds, recorded.tpot_seconds, question.ttft_seconds, question.tpot_seconds)
    return OnTrace(
        factor=rate / Traffic.from_trace(trace).rate_per_second,
        recorded=recorded,
        attainment=float(kept.mean()),
        keeps=excess_of(recorded, question) <= 1,
        most_per_second=most,
    )


def pools_of(plan: Plan, instances: Mapping[Role, int] | None = None) -> SeparatePools | AggregatedPool:
    """Return the pools of a plan in the form that is played, with its own or other numbers of instances."""
    if isinstance(plan, AggregatedPlan):
        one, count = AggregatedServer(plan.question, plan.mixed.candidate).pool, plan.mixed.instances
        return replace(one, instances=(instances or {}).get("mixed", count))
    assert isinstance(plan, DisaggregatedPlan), "a plan has one of two shapes"
    question, prefill, decode, left = plan.question, plan.prefill, plan.decode, instances or {}
    first, second = prefill.server(question), plan.decoder(question)
    counts = left.get("prefill", prefill.instances), left.get("decode", decode.instances)
    return separate_pools_of(question, ((first, counts[0]), (second, counts[1])))


def excess_of(recorded: Served, question: Question) -> float:
    """Latency at the question's percentile over its limit, the larger of TTFT and TPOT."""
    found = Outcome(ttft_seconds=recorded.ttft_seconds, tpot_seconds=recorded.tpot_seconds)
    return max(found.excesses(Limits.of(question)))


Search = Callable[[Question], Answer]


class Traced(NamedTuple):
    """An answer and the results of its plan on the trace; None where the trace is too short to fill the plan."""

    answer: Answer
    on_trace: OnTrace | None = None


def search_on_trace(
    question: Question, trace: TraceRows, search_plan: Search, first: Callable[..., Answer] | None = None
) -> Traced:
    """Return the answer to a question on a trace, or on stationary traffic where the trace is too short for its plan.

    ``first`` searches on the trace. Its argument ``worth`` says for which plans additions such as runners-up are worth
    a search.
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
        best = together(best, trace)
        if best is not answer.best:
            bound = answer.bound and least_chips(best, trace, answer.bound)
            answer = replace(answer, plans=(best,), bound=bound, pareto=(best,))
    found = on_trace(best, trace)
    most = None if found.keeps or not question.goal.maximised else found.most_per_second
    slower = best.under(best.question)(most) if most else None
    if slower is None:
        return Traced(answer=answer, on_trace=found)
    plans = [slower if plan is best else plan for plan in answer.pareto]
    return Traced(answer=replace(answer, plans=(slower,), pareto=tuple(plans)), on_trace=held_at(slower, trace))


def together(plan: Plan, trace: TraceRows) -> Plan:
    """Return the plan with the fewest instances that keep its limits on a trace, both roles played together.

    Prefill smooths bursts, so decode may need fewer instances than alone; it may need more where many prompts end at
    once. Instances of the role that helps more are added while devices remain; then surplus instances are removed,
    those of the larger role first. The plan is unchanged if no such numbers keep the limits or if a loss must be
    survived, and so is a role with a given number.
    """
    question = plan.question
    if not isinstance(plan, DisaggregatedPlan) or question.survive is not None:
        return plan
    pools, faster = dict(plan.pools()), at_rate(trace, plan.requests_per_second)
    free = [role for role in pools if question.pin(role).instances is None]

    def excess(counts: Mapping[Role, int]) -> float:
        return excess_of(play(pools_of(plan, counts), faster), question)

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


def least_chips(plan: Plan, trace: TraceRows, known: Bound) -> Bound | None:
    """Return a lower bound on the chips of separate pools for a plan's rate; None for other shapes and objectives.

    Prefill is bounded by its queue on the trace, as decode never delays a first token. Decode is bounded by full
    batches: alone on the trace it would have burstier arrivals than behind prefill.
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
    return known._replace(value=least, gap=1 - least / plan.chips, covers=f"{told}; {known.covers}")
