"""The limits on TTFT and TPOT that a question states: told, changed, and eased until something keeps them."""

from collections.abc import Callable
from dataclasses import replace

from ground.units import rounded_up
from planner.question import Question

_FACTORS = (1.05, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)


def limit_of(question: Question, ttft: bool) -> tuple[str, float]:
    """Return (flag, seconds) of the limit on TTFT, or of that on TPOT."""
    return ("--ttft", question.ttft_seconds) if ttft else ("--tpot", question.tpot_seconds)


def with_limit(question: Question, ttft: bool, seconds: float) -> Question:
    """Return the question with another limit on TTFT, or on TPOT."""
    return replace(question, ttft_seconds=seconds) if ttft else replace(question, tpot_seconds=seconds)


def tightest(question: Question, ttft: bool, least: float, holds: Callable[[Question], bool]) -> float | None:
    """Return the tightest of a few multiples of ``least`` seconds under which the question holds; None if none is.

    Each is rounded up to what is printed, and tried as printed. Where the asked limit is itself longer, as with lengths
    that spread far, its multiples are tried.
    """
    _, asked = limit_of(question, ttft)
    limits = (rounded_up(max(least, asked) * factor) for factor in _FACTORS)
    return next((limit for limit in limits if holds(with_limit(question, ttft, limit))), None)
