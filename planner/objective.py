"""What is to be best: one record for each objective, which everything asks that compares plans, columns or bounds.

A choice is compared by the rate that it carries (``maximised``), by what its devices count, or by how
long a request takes (``timed``); ties go to what the objective leaves open.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

ObjectiveName = Literal["throughput", "chips", "cost", "latency"]
Pair = tuple[float, float]
SLACK = 1e-6  # relative distance within which a bound and the incumbent count as equal
LEAST_PART = 1e-3  # part of an upper bound on a rate below which rates count as none


class Compared(Protocol):
    """The figures of a plan, or of a choice of columns, that an objective compares."""

    @property
    def requests_per_second(self) -> float: ...  # noqa: D102
    @property
    def devices(self) -> int: ...  # noqa: D102
    @property
    def cost_per_hour(self) -> float | None: ...  # noqa: D102
    @property
    def e2e_mean_seconds(self) -> float: ...  # noqa: D102


class Objective(NamedTuple):
    """How choices compare: ``key`` gives (objective, tie-break) of one, both to be made small."""

    key: Callable[[Compared], Pair]
    unit: str
    maximised: bool = False  # whether the rate is maximised; otherwise the asked rate is carried and ``key`` minimised
    priced: bool = False  # devices count by their price, which every machine must state
    timed: bool = False  # columns are compared by the mean seconds of a request from arrival to last token

    def per_device(self, chips: float, cost_per_hour: float) -> Pair:
        """Return what a device counts in the objective, and in the tie-break."""
        return (cost_per_hour, chips) if self.priced else (chips, cost_per_hour)

    def value(self, found: Compared) -> float:
        """Return what the objective makes small or large of a choice, in its unit."""
        return abs(self.key(found)[0])

    def better(self, one: "Incumbent", other: "Incumbent") -> bool:
        """Whether one choice is better than another; values that differ in the last digits alone are alike."""
        first, second = (-each.rate if self.maximised else each.spent[0] for each in (one, other))
        if abs(first - second) > SLACK * abs(second):
            return first < second
        first, second = (each.spent[0] if self.maximised else -each.rate for each in (one, other))
        return first < second - SLACK * abs(second)

    def best_bound(self, values: Sequence[float]) -> float:
        """Return the bound of several parts of a space together."""
        return max(values) if self.maximised else min(values)


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "throughput": Objective(
        key=lambda found: (-found.requests_per_second, float(found.devices)), unit="requests/s", maximised=True
    ),
    "chips": Objective(key=lambda found: (float(found.devices), -found.requests_per_second), unit="chips"),
    "cost": Objective(
        key=lambda found: (found.cost_per_hour or float(found.devices), float(found.devices)), unit="USD/h", priced=True
    ),
    "latency": Objective(key=lambda found: (found.e2e_mean_seconds, float(found.devices)), unit="s", timed=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a choice of columns is for: an objective within budgets of devices, and the rate to carry, if any.

    Rates of columns and of an aim are in units of what each model has to carry.
    """

    devices: Mapping[str, int]
    objective: ObjectiveName
    rate: float | None = None

    @property
    def goal(self) -> Objective:
        """The record of the objective."""
        return OBJECTIVES[self.objective]


class Incumbent(NamedTuple):
    """The best choice known so far: its rate in units of what is asked, and what its devices count."""

    rate: float
    spent: Pair


def preferred(plans: Sequence[Compared | None], goal: Objective) -> int | None:
    """Return the place of the best plan; of equal ones the first; None where there is none."""
    keys = [(goal.key(plan), place) for place, plan in enumerate(plans) if plan is not None]
    return min(keys)[1] if keys else None
