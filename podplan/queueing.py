"""What the other queueing model says of a plan, beside the one that it was made with."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from planner.plans.plan import Plan
from planner.question import Queueing
from planner.serving.closed_forms.mixserve import stream_tokens_per_second
from podplan.plan_data import latency_json


def other_model(plan: Plan) -> tuple[Queueing, Plan | None]:
    """Return the queueing model that a plan was not made with, and its pools under it; None where overloaded."""
    other: Queueing = "bulk" if plan.question.queueing == "mixserve" else "mixserve"
    return other, plan.under(replace(plan.question, queueing=other))(plan.requests_per_second)


def queueing_json(plan: Plan, percentiles: Sequence[float]) -> dict[str, object]:
    """Return both models' latencies of the plan's pools at its rate; null where a model finds them overloaded.

    Of aggregated instances M/M/1 says nothing.
    """
    other, found = other_model(plan)
    by_model = {plan.question.queueing: plan, other: found}
    told = {name: _told(by_model[name], percentiles) for name in get_args(Queueing)}
    return {"used": plan.question.queueing, **told}


def _told(plan: Plan | None, percentiles: Sequence[float]) -> dict[str, object] | None:
    if plan is None:
        return None
    workload, latencies = plan.question.workload, {"ttft_seconds": plan.ttft, "tpot_seconds": plan.tpot}
    lengths = (workload.input_tokens.mean, workload.output_tokens.mean)
    return {
        **{name: latency_json(latency, tuple(percentiles)) for name, latency in latencies.items()},
        "stream_tokens_per_second": stream_tokens_per_second(lengths, plan.ttft.mean, plan.tpot.mean),
    }
