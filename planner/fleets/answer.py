"""What the search for a fleet found: a plan for each model, or why there is none and which changes would give one."""

from dataclasses import dataclass

from planner.fleets.members import Fleet
from planner.plans.plan import Plan
from planner.search.proof import Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that gives a fleet without a plan one; it was solved."""

    direction: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """A plan per member, in their order; none where the rates do not fit, then with the reason.

    ``growth`` is what every member carries over its asked rate, at least; where nothing fits, the share of all rates
    that would.
    """

    fleet: Fleet
    plans: tuple[Plan, ...]
    growth: float
    candidates_evaluated: int
    bound: Bound | None
    binding_limit: str
    explanation: str
    changes: tuple[Change, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether every member has a plan."""
        return bool(self.plans)

    @property
    def devices_used(self) -> dict[str, int]:
        """Devices that the plans take of each pool."""
        used: dict[str, int] = {}
        for plan in self.plans:
            for _, pool in plan.pools():
                budget = pool.machines.budget
                used[budget] = used.get(budget, 0) + pool.devices
        return dict(sorted(used.items()))

    @property
    def cost_per_hour(self) -> float | None:
        """Price of all chips in USD per hour; None where one has no price."""
        prices = [plan.cost_per_hour for plan in self.plans]
        return None if None in prices else sum(price for price in prices if price is not None)

    @property
    def power_watts(self) -> float | None:
        """Power of all machines; None where one states none."""
        watts = [plan.power_watts for plan in self.plans]
        return None if None in watts else sum(each for each in watts if each is not None)
