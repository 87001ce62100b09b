"""A plan over the day: it is sized for the window with the largest rate, and here is what the others see."""

from collections.abc import Sequence
from typing import NamedTuple

from ground.units import DAY_SECONDS
from planner.instances.space import Role
from planner.plans.plan import Plan
from planner.plans.servers import needed_instances
from planner.question import lost_instances


class Window(NamedTuple):
    """A part of the day with one rate; it ends where the next one begins, the last one where the first does."""

    begin_seconds: float
    """After midnight."""
    length_seconds: float
    rate_per_second: float
    """0 where nothing arrives."""


class Seen(NamedTuple):
    """What a window sees of a plan: the plan with the same pools at the window's rate, None where nothing arrives."""

    window: Window
    plan: Plan | None
    needed: dict[Role, int]
    """Instances of each pool that keep the limits at the window's rate, those that a loss may take included."""


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
    needed = {rate: _needed(plan, rate) for rate in plans}
    return [
        Seen(window=window, plan=plans[window.rate_per_second], needed=needed[window.rate_per_second]) for window in day
    ]


def _needed(plan: Plan, rate_per_second: float) -> dict[Role, int]:
    """Return the fewest instances of each pool for a rate; none where nothing arrives."""
    if not rate_per_second:
        return {role: 0 for role, _ in plan.pools()}
    loss = plan.question.survive
    return {
        role: min(
            needed_instances(plan, pool, rate_per_second)
            + lost_instances(loss, pool.candidate.devices, pool.machines.devices_per_node),
            pool.instances,
        )
        for role, pool in plan.pools()
    }


def switched_devices(fleet: Sequence[tuple[Plan, Sequence[Seen], float]]) -> dict[str, tuple[int, float]]:
    """Return how many devices of each pool models need at most at once, and when in seconds after midnight.

    Instances stand as long as a window needs them and give their devices to those of others (CloudMatrix384 section
    4.4, model switching).

    Args:
        fleet: of each model its plan, what the windows see of it (nothing: all instances stand all day), and the
            seconds ahead of a window in which its instances start and load.
    """
    begins = {each.window.begin_seconds - ahead for _, seen, ahead in fleet for each in seen}
    moments = {begin % DAY_SECONDS for begin in begins} | {
        each.window.begin_seconds for _, seen, _ in fleet for each in seen
    }
    most: dict[str, tuple[int, float]] = {}
    for moment in sorted(moments):
        taken: dict[str, int] = {}
        for plan, seen, ahead in fleet:
            now, soon = _needed_at(seen, moment), _needed_at(seen, moment + ahead)
            for role, pool in plan.pools():
                count = max(now[role], soon[role]) if seen else pool.instances
                taken[pool.machines.budget] = taken.get(pool.machines.budget, 0) + count * pool.candidate.devices
        for name, devices in taken.items():
            most[name] = max(most.get(name, (0, 0.0)), (devices, moment), key=lambda found: found[0])
    return most


def _needed_at(seen: Sequence[Seen], seconds: float) -> dict[Role, int]:
    """Return the instances that a time of the day needs; nothing without windows."""
    into = [((seconds - each.window.begin_seconds) % DAY_SECONDS, each.needed) for each in seen]
    return min(into, key=lambda found: found[0])[1] if into else {}


def busy_share(plan: Plan, seen: Sequence[Seen]) -> float:
    """Return the device-hours that the windows need over those of all instances for the whole day."""
    devices = {role: pool.candidate.devices for role, pool in plan.pools()}
    needed = sum(
        each.window.length_seconds * sum(devices[role] * count for role, count in each.needed.items()) for each in seen
    )
    return needed / (plan.devices * sum(each.window.length_seconds for each in seen))
