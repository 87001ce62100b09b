"""A plan over the day: it is sized for the window with the largest rate, and here is what the others see."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of the day with one rate; it ends where the next one begins, the last one where the first does."""

    begin_seconds: float
    """After midnight."""
    length_seconds: float
    rate_per_second: float
    """0 where nothing arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a window sees of a plan: the plan with the same pools at the window's rate, None where nothing arrives."""

    window: Window
    plan: Plan | None


def peak_rate(day: Sequence[Window]) -> float:
    """Return the largest rate of a day in requests per second, which a plan is sized for."""
    return max(window.rate_per_second for window in day)


def mean_rate(day: Sequence[Window]) -> float:
    """Return the mean rate over all windows in requests per second."""
    requests = sum(window.rate_per_second * window.length_seconds for window in day)
    return requests / sum(window.length_seconds for window in day)


def over_the_day(plan: Plan, day: Sequence[Window]) -> list[Seen]:
    """Return what every window sees of a plan that was sized for the peak.

    Each window is solved as if its rate lasted: queues settle within seconds to minutes, windows last longer. What
    one window leaves waiting is not carried into the next, which is none where the plan keeps its limits.
    """
    at = plan.under(plan.question)
    plans: dict[float, Plan | None] = {0.0: None, plan.requests_per_second: plan}
    plans |= {rate: at(rate) for rate in {window.rate_per_second for window in day} - plans.keys()}
    return [Seen(window=window, plan=plans[window.rate_per_second]) for window in day]
