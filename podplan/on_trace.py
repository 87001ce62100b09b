"""What the chosen plan does with the trace that it was made for."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from planner.search.answer import Answer
from planner.workload import Trace as Rows
from podplan.question import Asked

if TYPE_CHECKING:
    from ground.arrays import Floats
    from ground.traces import Trace
    from planner.checks.on_trace import OnTrace

MOST_REQUESTS = 300_000
"""Beyond which a trace is told by its moments alone."""


def playable(asked: Asked) -> Rows | None:
    """Return the requests of the trace of a question, where a plan can be played on them, as ``rows_of``."""
    if asked.question.queueing != "bulk":
        return None
    return rows_of(asked.trace, reuse_stated=asked.flags.prefix_reuse is not None)


def rows_of(trace: "Trace | None", *, reuse_stated: bool) -> Rows | None:
    """Return the requests of a trace with what each reuses, where they can be played.

    None without a trace; where it has no times, or turns that follow answers; where another reuse than its own was
    stated.
    """
    if trace is None or not trace.timed or len(trace) > MOST_REQUESTS or reuse_stated:
        return None
    if trace.delay_seconds is not None and bool(np.isfinite(trace.delay_seconds).any()):
        return None
    from ground.traces import reused_tokens

    return Rows.of(trace, None if trace.hash_ids is None else reused_tokens(trace))


def traced(asked: Asked, first: Callable[..., Answer]) -> "tuple[Answer, OnTrace | None]":
    """Return the answer to a question with a trace, and what its plan does on it where it can be played."""
    rows = playable(asked)
    if rows is None:
        return first(asked.question), None
    from planner.checks.traced import search_on_trace

    found = search_on_trace(asked.question, rows, first, first)
    return found.answer, found.on_trace


def trace_json(found: "OnTrace", percentiles: tuple[float, ...]) -> dict[str, object]:
    """Return the figures in SI units."""
    recorded, columns = found.recorded, ("ttft_seconds", "tpot_seconds", "e2e_seconds")
    return {
        "played_times": found.factor,
        "requests": int(recorded.ttft_seconds.size),
        **{name: _latency(getattr(recorded, name), percentiles) for name in columns},
        "slo_attainment": found.attainment,
        "keeps_limits": found.keeps,
        "most_requests_per_second": found.most_per_second,
    }


def _latency(seconds: "Floats", percentiles: tuple[float, ...]) -> dict[str, float] | None:
    known = seconds[~np.isnan(seconds)]
    if not known.size:
        return None
    at = np.percentile(known, percentiles).tolist()
    return {"mean": float(known.mean())} | {f"p{level:g}": value for level, value in zip(percentiles, at, strict=True)}
