"""The answer of a search: a plan for each model, or the reason for none and the changes that would give one."""

from dataclasses import dataclass, field

from planner.plans.papers import Beside
from planner.plans.plan import Plan
from planner.plans.quantised import Tried
from planner.programme.proof import Bound
from planner.question import Question
from planner.search.fleet import Fleet
from planner.search.gather import Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A solved change of one flag that makes an infeasible question or fleet feasible, or that no such change exists.

    ``flag`` and ``value`` are as typed; ``value`` is None where no change of the flag alone helps. ``question`` is the
    changed question of a single model.
    """

    direction: str
    told: str
    flag: str | None = None
    value: str | None = None
    question: Question | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan per member, in their order; no plans, and the reason, where the rates do not fit or a limit is missed."""

    fleet: Fleet
    plans: tuple[Plan, ...]
    candidates_evaluated: int
    bound: Bound | None
    binding_limit: str
    explanation: str
    growth: float = 0.0
    """Least ratio of carried to asked rate over members; where nothing fits, the share of all rates that would."""
    changes: tuple[Change, ...] = ()
    pareto: tuple[Plan, ...] = ()  # the best plan of a single model and the runners-up
    cut: Cut = field(default_factory=dict)  # strategies and layouts that were not costed, by role and rule
    published: tuple[Beside, ...] = ()  # published deployments of a single model on this machine, on the same devices
    formats: tuple[Tried, ...] = ()
    """Result of each number format, where there were several; the question then has the best one."""
    engines: tuple[Tried, ...] = ()
    """Result of each engine, best first, where one was to be chosen; the question then has the best one."""
    unrestricted: Plan | None = None
    """Plan of the reference engine, which runs every layout, where an engine was chosen."""

    @property
    def feasible(self) -> bool:
        """Whether every member has a plan."""
        return bool(self.plans)

    @property
    def question(self) -> Question:
        """The question of a single model."""
        return self.fleet.members[0].question

    @property
    def best(self) -> Plan | None:
        """The plan of a single model; None where there is none."""
        return self.plans[0] if self.plans else None

    @property
    def tied(self) -> list[str]:
        """Other engines that do as well as the one taken, by what plans are compared by."""
        best, key, own = self.best, self.question.goal.key, self.question.engine
        others = [each for each in self.engines if each.plan and each.engine != own] if best else []
        return [each.engine for each in others if each.plan and best and key(each.plan) == key(best)]

    @property
    def devices_used(self) -> dict[str, int]:
        """Devices that the plans take, by pool."""
        used: dict[str, int] = {}
        for plan in self.plans:
            for _, pool in plan.pools():
                budget = pool.machines.budget
                used[budget] = used.get(budget, 0) + pool.devices
        return dict(sorted(used.items()))

    @property
    def power_watts(self) -> float | None:
        """Power of all machines; None where one states none."""
        watts = [plan.power_watts for plan in self.plans]
        return None if None in watts else sum(each for each in watts if each is not None)
