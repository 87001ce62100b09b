"""What the chosen plan does with the trace that it was made for."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cli.search_flags import SearchInput
from ground.units import counted, format_duration, format_rate
from planner.plans.plan import Plan
from planner.search.search import Answer, search

if TYPE_CHECKING:
    from ground.traces import Trace
    from planner.checks.on_trace import OnTrace
    from planner.checks.traced import Round
    from planner.queues.queueing import Array
    from planner.workload import Trace as Rows

MOST_REQUESTS = 300_000
"""Beyond which a trace is told by its moments alone."""


def playable(asked: SearchInput) -> "Rows | None":
    """Return the requests of the trace of a question, where a plan can be played on them, as ``rows_of``."""
    if asked.question.queueing != "bulk":
        return None
    return rows_of(asked.trace, reuse_stated=asked.flags.traffic.prefix_reuse is not None)


def rows_of(trace: "Trace | None", *, reuse_stated: bool) -> "Rows | None":
    """Return the requests of a trace with what each reuses, where they can be played.

    None without a trace; where it has no times, or turns that follow answers; where another reuse than its own was
    stated.
    """
    if trace is None or not trace.timed or len(trace) > MOST_REQUESTS or reuse_stated:
        return None
    if trace.delay_seconds is not None and bool(np.isfinite(trace.delay_seconds).any()):
        return None
    from ground.traces import reused_tokens
    from planner.workload import Trace as Rows  # only a trace needs it

    return Rows(
        arrival_seconds=trace.arrival_seconds,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        reused_tokens=None if trace.hash_ids is None else reused_tokens(trace),
    )


def traced(asked: SearchInput) -> tuple[SearchInput, Answer]:
    """Return the answer to a question with a trace, of which the plan is played and searched again where it is late."""
    rows = playable(asked)
    if rows is None:
        return asked, search(asked.question)
    from planner.checks.traced import search_on_trace

    found = search_on_trace(asked.question, rows, search, partial(search, explain=False, beside=False))
    return replace(asked, on_trace=found.on_trace, rounds=found.rounds), found.answer


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


def rounds_json(rounds: "Sequence[Round]") -> list[dict[str, object]]:
    """Return what was searched for in each round, and what its plan does on the trace; null figures without one.

    What is ``grown`` was not searched for: it is an earlier plan with more instances.
    """
    return [
        {
            "ttft_limit_seconds": each.asked.ttft_seconds,
            "tpot_limit_seconds": each.asked.tpot_seconds,
            "rate_per_second": each.asked.rate_per_second,
            "grown": each.grown,
            "devices": each.plan.devices if each.plan else None,
            "keeps_limits": each.keeps,
            "most_requests_per_second": each.most_per_second or None,
        }
        for each in rounds
    ]


def rounds_text(rounds: "Sequence[Round]") -> str:
    """Say which searches were made for the trace, and what came of each."""
    told = []
    for number, each in enumerate(rounds, start=1):
        asked, first = each.asked, rounds[0].asked
        limits = [
            f"{name.upper()} {format_duration(getattr(asked, field))}"
            for name, field in (("ttft", "ttft_seconds"), ("tpot", "tpot_seconds"))
            if getattr(asked, field) != getattr(first, field)
        ]
        if asked.rate_per_second is not None and asked.rate_per_second != first.rate_per_second:
            limits.append(format_rate(asked.rate_per_second))
        found = "no plan"
        if each.plan is not None:
            held = f"limits hold up to {format_rate(each.most_per_second)}" if each.most_per_second else "limits missed"
            found = f"{counted(each.plan.devices, 'device')}, {held}"
        wanted = f"for {' '.join(limits)}" if limits else "as asked"
        told.append(f"({number}) {wanted}{', with more instances' if each.grown else ''}: {found}")
    searched = counted(sum(not each.grown for each in rounds), "time")
    return f"Searched {searched}, for stationary queues took the trace for too tame: {'; '.join(told)}."
