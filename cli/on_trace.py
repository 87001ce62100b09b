"""What the chosen plan does with the trace that it was made for."""

from typing import TYPE_CHECKING

import numpy as np

from cli.search_flags import SearchInput
from planner.plan import DisaggregatedPlan, Plan
from podplan.units import format_duration, format_rate

if TYPE_CHECKING:
    from planner.on_trace import OnTrace
    from planner.queueing import Array

MOST_REQUESTS = 300_000
"""Beyond which a trace is told by its moments alone."""


def played(asked: SearchInput, plan: Plan) -> "OnTrace | None":
    """Return what a plan does with the trace that was given.

    None without one; where it has no times, or turns that follow answers; where another reuse than its own was stated;
    where M/M/1 was asked for; and for plans of one pool.
    """
    trace = asked.trace
    if trace is None or not trace.timed or not isinstance(plan, DisaggregatedPlan) or len(trace) > MOST_REQUESTS:
        return None
    follows = trace.delay_seconds is not None and bool(np.isfinite(trace.delay_seconds).any())
    if follows or asked.flags.traffic.prefix_reuse is not None or asked.question.queueing != "bulk":
        return None
    from planner.on_trace import on_trace  # only a trace needs it
    from planner.workload import Trace as Rows
    from podplan.traces import reused_tokens

    return on_trace(
        plan,
        Rows(
            arrival_seconds=trace.arrival_seconds,
            input_tokens=trace.input_tokens,
            output_tokens=trace.output_tokens,
            reused_tokens=None if trace.hash_ids is None else reused_tokens(trace),
        ),
    )


def trace_json(found: "OnTrace", percentiles: tuple[float, ...]) -> dict[str, object]:
    """Return the figures in SI units."""
    recorded = found.recorded
    columns = {
        "ttft_seconds": recorded.ttft_seconds,
        "tpot_seconds": recorded.tpot_seconds,
        "e2e_seconds": recorded.e2e_seconds,
    }
    return {
        "played_times": found.factor,
        "requests": int(recorded.ttft_seconds.size),
        **{name: _latency(values, percentiles) for name, values in columns.items()},
        "slo_attainment": found.attainment,
        "keeps_limits": found.keeps,
        "most_requests_per_second": found.most_per_second,
    }


def _latency(seconds: "Array", percentiles: tuple[float, ...]) -> dict[str, float] | None:
    known = seconds[~np.isnan(seconds)]
    if not known.size:
        return None
    at = np.percentile(known, percentiles).tolist()
    return {"mean": float(known.mean())} | {f"p{level:g}": value for level, value in zip(percentiles, at, strict=True)}


def trace_text(found: "OnTrace", plan: Plan) -> str:
    """Say what the trace's own requests meet, and up to which rate the limits hold on them."""
    question, recorded = plan.question, found.recorded
    level = question.percentile
    known = recorded.tpot_seconds[~np.isnan(recorded.tpot_seconds)]
    tails = [f"TTFT {format_duration(float(np.percentile(recorded.ttft_seconds, level)))}"]
    if known.size:
        tails.append(f"TPOT {format_duration(float(np.percentile(known, level)))}")
    verdict = "the limits hold" if found.keeps else "the limits are missed"
    if found.most_per_second:
        verdict += f", on this trace they hold up to about {format_rate(found.most_per_second)}"
    speed = "as it came" if 0.995 < found.factor < 1.005 else f"{found.factor:.3g} times as fast as it came"
    return (
        f"The trace itself, played {speed}: mean TTFT "
        f"{format_duration(float(recorded.ttft_seconds.mean()))}, p{level:g} {' and '.join(tails)}, "
        f"{found.attainment:.1%} of requests within both limits; {verdict}."
    )
