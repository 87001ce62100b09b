"""What is to be best: one record for each objective, which everything asks that compares plans, columns or bounds.

A choice is compared by the rate that it carries (``maximised``), by what its devices count (``per_device``), or by how
long a request takes (``timed``); ties go to what the objective leaves open.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from planner.question import Machines, Question
from planner.question import Objective as Name

Pair = tuple[float, float]
SLACK = 1e-6
"""Part by which a bound may lie below what is known and not be told apart from it."""


class Compared(Protocol):
    """What an objective looks at, of a plan or of a choice of columns."""

    @property
    def requests_per_second(self) -> float: ...  # noqa: D102
    @property
    def devices(self) -> int: ...  # noqa: D102
    @property
    def cost_per_hour(self) -> float | None: ...  # noqa: D102
    @property
    def e2e_mean_seconds(self) -> float: ...  # noqa: D102


def device_cost(machines: Machines) -> float:
    """Price of a device and hour in USD; 1 where the chip has none."""
    price = machines.hardware.price_usd_per_chip_hour
    return price.value / machines.devices_per_chip if price else 1.0


def _chips_first(machines: Machines) -> Pair:
    return 1 / machines.devices_per_chip, device_cost(machines)


def _cost_first(machines: Machines) -> Pair:
    return device_cost(machines), 1 / machines.devices_per_chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """How choices compare: ``key`` gives (objective, tie-break) of one, both to be made small."""

    key: Callable[[Compared], Pair]
    unit: str
    per_device: Callable[[Machines], Pair] = _chips_first
    """What each device of a pool counts in the objective, and in the tie-break."""
    maximised: bool = False
    """The rate that is carried is made large; otherwise the asked rate is carried, and something made small."""
    timed: bool = False
    """Columns are compared by the mean seconds of a request from arrival to last token."""

    def value(self, found: Compared) -> float:
        """Return what the objective makes small or large of a choice, in its unit."""
        return abs(self.key(found)[0])

    def better(self, one: "Known", other: "Known") -> bool:
        """Whether one choice is better than another; values that differ in the last digits alone are alike."""
        first, second = (-each.rate if self.maximised else each.spent[0] for each in (one, other))
        if abs(first - second) > SLACK * abs(second):
            return first < second
        first, second = (each.spent[0] if self.maximised else -each.rate for each in (one, other))
        return first < second - SLACK * abs(second)

    def best_bound(self, values: Sequence[float]) -> float:
        """Return the bound of several parts of a space together."""
        return max(values) if self.maximised else min(values)


OBJECTIVES: dict[Name, Objective] = {
    "throughput": Objective(
        key=lambda found: (-found.requests_per_second, float(found.devices)), unit="requests/s", maximised=True
    ),
    "chips": Objective(key=lambda found: (float(found.devices), -found.requests_per_second), unit="chips"),
    "cost": Objective(
        key=lambda found: (found.cost_per_hour or float(found.devices), -found.requests_per_second),
        unit="USD/h",
        per_device=_cost_first,
    ),
    "latency": Objective(key=lambda found: (found.e2e_mean_seconds, float(found.devices)), unit="s", timed=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a choice of columns is for: an objective within budgets of devices, and the rate to carry, if any.

    Rates of columns and of an aim are in units of what each model has to carry.
    """

    devices: Mapping[str, int]
    objective: Name
    rate: float | None = None

    @property
    def goal(self) -> Objective:
        """The record of the objective."""
        return OBJECTIVES[self.objective]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a choice of columns does: its rate in units of what is asked, and what its devices count."""

    rate: float
    spent: Pair


def preferred(plans: Sequence[Compared | None], question: Question) -> int | None:
    """Return the place of the plan that serves the question best; of equal ones the first; None where there is none."""
    key = OBJECTIVES[question.objective].key
    keys = [(key(plan), place) for place, plan in enumerate(plans) if plan is not None]
    return min(keys)[1] if keys else None
