"""A plan on its trace: latencies of the trace's requests, and the largest rate within the limits.

The search plays a candidate of one role as if the other took no time (``checks.traced``). Here the trace is played
through both pools of the chosen plan (``planner.serving``), with gaps scaled to the plan's rate, and the limits are
checked.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats
from planner.instances.aggregated import AggregatedServer
from planner.instances.operating import PrefillServer
from planner.instances.space import Role
from planner.plans.aggregated import AggregatedPlan
from planner.plans.handover import separate_pools_of
from planner.plans.plan import DisaggregatedPlan, Plan
from planner.question import Question
from planner.serving.aggregated import AggregatedPool
from planner.serving.decode import SeparatePools, Served, within
from planner.serving.deployed import play
from planner.workload import Trace, Traffic

MOST_PLAYED = 600_000
"""Most requests played in the search for the largest rate."""
_FILLED = 3.0
"""Least number of requests of a trace that loads a plan, over the requests in the system."""
_STEPS = 7
_BEYOND = 2.0
"""Upper end of the search for the largest rate, over the plan's rate."""


class OnTrace(NamedTuple):
    """Results of a plan on a trace; latencies are those of all its requests."""

    factor: float
    """Plan's rate over the trace's own rate."""
    recorded: Served
    attainment: float
    """Share of requests that keep both limits."""
    keeps: bool
    """Whether both limits hold at the question's percentile, each on its own."""
    most_per_second: float | None
    """Largest rate found within both limits, up to twice the plan's; None where none was found."""

    def at(self, name: str, percentile: float) -> float | None:
        """Seconds of ``ttft`` or ``tpot`` at a percentile of the requests; None where no answer has a second token."""
        seconds = self.recorded.ttft_seconds if name == "ttft" else self.recorded.tpot_seconds
        known = seconds[~np.isnan(seconds)]
        return float(np.percentile(known, percentile)) if known.size else None


def at_rate(trace: Trace, rate_per_second: float) -> Trace:
    """Return a trace with its gaps scaled to a mean rate."""
    own = Traffic.from_trace(trace).rate_per_second
    return replace(trace, arrival_seconds=np.asarray(trace.arrival_seconds) * (own / rate_per_second))


def loads(plan: Plan, trace: Trace, rate_per_second: float) -> bool:
    """Whether a trace has enough requests to load a plan's pools at a rate.

    The time of a request is taken as that at the plan's own rate.
    """
    return bool(np.size(trace.arrival_seconds) >= _FILLED * rate_per_second * plan.e2e_mean_seconds)


def on_trace(plan: Plan, trace: Trace) -> OnTrace:
    """Return the results of a plan on a trace at its rate, and the largest rate within the limits.

    That rate is found by bisection to a few per cent; it was played and keeps the limits. A long trace is played fewer
    times.
    """
    question, pools, planned = plan.question, pools_of(plan), plan.requests_per_second

    def played(rate: float) -> Served:
        return play(pools, at_rate(trace, rate))

    recorded = played(planned)
    keeps = _keeps(recorded, question)
    low, high = (planned, _BEYOND * planned) if keeps else (0.0, planned)
    for _ in range(min(_STEPS, MOST_PLAYED // recorded.ttft_seconds.size)):
        middle = (low + high) / 2
        low, high = (middle, high) if _keeps(played(middle), question) else (low, middle)
    return _told(question, trace, planned, recorded, low or None)


def held_at(plan: Plan, trace: Trace) -> OnTrace:
    """Return the results of a plan on a trace at its rate, which is known to be about the largest within the limits."""
    rate = plan.requests_per_second
    recorded = play(pools_of(plan), at_rate(trace, rate))
    keeps = _keeps(recorded, plan.question)
    return _told(plan.question, trace, rate, recorded, rate if keeps else None)


def _told(question: Question, trace: Trace, rate: float, recorded: Served, most: float | None) -> OnTrace:
    kept = within(recorded.ttft_seconds, recorded.tpot_seconds, question.ttft_seconds, question.tpot_seconds)
    return OnTrace(
        factor=rate / Traffic.from_trace(trace).rate_per_second,
        recorded=recorded,
        attainment=float(kept.mean()),
        keeps=_keeps(recorded, question),
        most_per_second=most,
    )


def pools_of(plan: Plan, instances: Mapping[Role, int] | None = None) -> SeparatePools | AggregatedPool:
    """Return the pools of a plan in the form that is played, with its own or other numbers of instances."""
    if isinstance(plan, AggregatedPlan):
        one, count = AggregatedServer(plan.question, plan.mixed.candidate).pool, plan.mixed.instances
        return replace(one, instances=(instances or {}).get("mixed", count))
    assert isinstance(plan, DisaggregatedPlan), "a plan has one of two shapes"
    question, prefill, decode, left = plan.question, plan.prefill, plan.decode, instances or {}
    first, second = PrefillServer(question, prefill.candidate), plan.decoder(question)
    counts = left.get("prefill", prefill.instances), left.get("decode", decode.instances)
    return separate_pools_of(question, ((first, counts[0]), (second, counts[1])))


def late_at(question: Question, recorded: Served) -> tuple[str, ...]:
    """Return the limits, ``ttft`` and ``tpot``, that are missed at the question's percentile."""
    known = recorded.tpot_seconds[~np.isnan(recorded.tpot_seconds)]
    late = {
        "ttft": _at(recorded.ttft_seconds, question) > question.ttft_seconds,
        "tpot": bool(known.size) and _at(known, question) > question.tpot_seconds,
    }
    return tuple(name for name, passed in late.items() if passed)


def _keeps(recorded: Served, question: Question) -> bool:
    return not late_at(question, recorded)


def _at(seconds: Floats, question: Question) -> float:
    return float(np.percentile(seconds, question.percentile))
