"""A plan over the day: sized for the window with the largest rate, and evaluated in every other window."""

from collections.abc import Sequence
from typing import NamedTuple

from planner.instances.space import Role
from planner.plans.plan import Plan
from planner.plans.servers import needed_instances
from planner.question import Question


class Window(NamedTuple):
    """A part of the day with one rate. It ends where the next window begins, the last one where the first begins."""

    begin_seconds: float  # seconds after midnight
    length_seconds: float
    rate_per_second: float  # requests per second; 0 where nothing arrives


class Seen(NamedTuple):
    """The plan with the same pools at a window's rate; None where nothing arrives."""

    window: Window
    plan: Plan | None
    needed: dict[Role, int]
    """Fewest instances of each pool that keep the limits at the window's rate, spares for a loss included."""


def peak_rate(day: Sequence[Window]) -> float:
    """Return the largest rate of a day in requests per second, for which a plan is sized."""
    return max(window.rate_per_second for window in day)


def mean_rate(day: Sequence[Window]) -> float:
    """Return the mean rate over all windows in requests per second."""
    requests = sum(window.rate_per_second * window.length_seconds for window in day)
    return requests / sum(window.length_seconds for window in day)


def over_the_day(plan: Plan, day: Sequence[Window]) -> list[Seen]:
    """Return a plan that was sized for the peak as it is in every window.

    Each window is solved as stationary: queues settle within seconds to minutes, windows last longer. A backlog is not
    carried into the next window; there is none where the plan keeps its limits. Offline requests keep their rate.
    """
    rates, peak = {window.rate_per_second for window in day}, peak_rate(day)
    asked = {rate: plan.question.beside_times(peak / rate) for rate in rates if rate}
    plans: dict[float, Plan | None] = {0.0: None, plan.requests_per_second: plan}
    plans |= {rate: plan.under(asked[rate])(rate) for rate in rates - plans.keys()}
    needed = {rate: _needed(plan, asked.get(rate, plan.question), rate) for rate in plans}
    return [
        Seen(window=window, plan=plans[window.rate_per_second], needed=needed[window.rate_per_second]) for window in day
    ]


def _needed(plan: Plan, question: Question, rate_per_second: float) -> dict[Role, int]:
    """Return the fewest instances of each pool under a question for a rate; 0 where nothing arrives."""
    if not rate_per_second:
        return {role: 0 for role, _ in plan.pools()}
    lost = plan.lost(plan.question.survive)
    return {
        role: min(needed_instances(plan, pool, question, rate_per_second) + lost[role], pool.instances)
        for role, pool in plan.pools()
    }


def busy_share(plan: Plan, seen: Sequence[Seen]) -> float:
    """Return the device-hours that the windows need over those of all instances for the whole day."""
    devices = {role: pool.candidate.devices for role, pool in plan.pools()}
    needed = sum(
        each.window.length_seconds * sum(devices[role] * count for role, count in each.needed.items()) for each in seen
    )
    return needed / (plan.devices * sum(each.window.length_seconds for each in seen))
