"""What the other queueing model says of a plan, beside the one that it was made with."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from ground.units import format_duration
from planner.plans.aggregated import AggregatedPlan
from planner.plans.plan import Plan
from planner.question import Queueing
from planner.queues.memoryless import stream_tokens_per_second

NAMES: dict[Queueing, str] = {"bulk": "bulk service", "mixserve": "MixServe's M/M/1 (Eq. 7, 9 to 11)"}


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
        **{
            name: {"mean": latency.mean, **{f"p{level:g}": latency.at(level) for level in percentiles}}
            for name, latency in latencies.items()
        },
        "stream_tokens_per_second": stream_tokens_per_second(lengths, plan.ttft.mean, plan.tpot.mean),
    }


def queueing_text(plan: Plan) -> str:
    """Say what the other model makes of the plan's pools at its rate."""
    if isinstance(plan, AggregatedPlan):
        return "Queueing: prompts and running requests on two clocks; MixServe's M/M/1 is of instances of either role."
    percentile = plan.question.percentile
    other, found = other_model(plan)
    start = f"Queueing: {NAMES[plan.question.queueing]}; {NAMES[other]}"
    if found is None:
        return f"{start} finds the same pools overloaded."
    ttft, tail = format_duration(found.ttft.mean), format_duration(found.ttft.at(percentile))
    return f"{start}, same pools: TTFT {ttft}, p{percentile:g} {tail}, TPOT {format_duration(found.tpot.mean)}."
