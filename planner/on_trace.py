"""A plan on the trace that it was made for: what its own requests meet, and how fast it may be played.

The search weighs candidates by stationary queues of the trace's moments, so that its bounds hold and its rate is
proven. A trace is not stationary. Here the chosen plan takes the requests as they came (``planner.recorded``), played
so fast that their mean rate is the plan's, and the limits are checked on them.
"""

from dataclasses import replace

import numpy as np

from planner.cache import model_cache
from planner.operating import DecodeServer, PrefillServer
from planner.passes import Machine
from planner.plan import DisaggregatedPlan
from planner.question import Question
from planner.queueing import Array
from planner.recorded import Pools, Recorded, play, within
from planner.transfers import links_of
from planner.workload import Trace, Traffic
from podplan.records import dataclass

MOST_PLAYED = 60_000
"""Requests that are played in all while the largest rate is looked for."""
_STEPS = 7
_BEYOND = 2.0
"""Times the plan's rate up to which is looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTrace:
    """What a plan does with a trace; latencies are of all its requests."""

    factor: float
    """How much faster than it came the trace is played for the plan's rate."""
    recorded: Recorded
    attainment: float
    """Share of requests that keep both limits."""
    keeps: bool
    """Whether both limits hold at the question's percentile, each on its own."""
    most_per_second: float | None
    """Largest rate found at which they hold, up to twice the plan's; None where none was found."""


def on_trace(plan: DisaggregatedPlan, trace: Trace) -> OnTrace:
    """Return what a plan does with a trace that is played at its rate, and up to which rate the limits hold.

    That rate is found by bisection, within a few per cent; each rate told was played and keeps the limits. A long trace
    is played fewer times.
    """
    question, pools = plan.question, pools_of(plan)
    own = Traffic.from_trace(trace).rate_per_second

    def played(rate: float) -> Recorded:
        return play(pools, replace(trace, arrival_seconds=np.asarray(trace.arrival_seconds) * (own / rate)))

    planned = plan.requests_per_second
    recorded = played(planned)
    keeps = _keeps(recorded, question)
    low, high = (planned, _BEYOND * planned) if keeps else (0.0, planned)
    for _ in range(min(_STEPS, MOST_PLAYED // recorded.ttft_seconds.size)):
        middle = (low + high) / 2
        low, high = (middle, high) if _keeps(played(middle), question) else (low, middle)
    kept = within(recorded.ttft_seconds, recorded.tpot_seconds, question.ttft_seconds, question.tpot_seconds)
    return OnTrace(
        factor=planned / own,
        recorded=recorded,
        attainment=float(kept.mean()),
        keeps=keeps,
        most_per_second=low or None,
    )


def pools_of(plan: DisaggregatedPlan) -> Pools:
    """Return the pools of a plan as the recursions see them."""
    question, prefill, decode = plan.question, plan.prefill, plan.decode
    first = PrefillServer(question, prefill.candidate)
    second = DecodeServer(question, decode.candidate, plan.transfer_seconds)
    source, target = prefill.candidate.row.strategy, decode.candidate.row.strategy
    budget = float(prefill.candidate.tokens_per_device * source.attention_tp * source.pp)
    return Pools(
        machine=Machine(first.cost, source.attention_dp, budget, prefill.candidate.microbatches),
        prefill_instances=prefill.instances,
        policy="round_robin",
        links=links_of(
            question,
            model_cache(prefill.candidate.deployment),
            (source, prefill.instances),
            (target, decode.instances),
        ),
        iteration_seconds=second.iteration_table(),
        decode_instances=decode.instances,
        tokens_per_iteration=second.accepted,
    )


def _keeps(recorded: Recorded, question: Question) -> bool:
    known = recorded.tpot_seconds[~np.isnan(recorded.tpot_seconds)]
    return _at(recorded.ttft_seconds, question) <= question.ttft_seconds and (
        not known.size or _at(known, question) <= question.tpot_seconds
    )


def _at(seconds: Array, question: Question) -> float:
    return float(np.percentile(seconds, question.percentile))
