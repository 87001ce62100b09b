"""What a search found: a plan for each model, or why there is none and which changes would give one."""

from dataclasses import dataclass, field

from planner.plans.plan import Plan, cost_of
from planner.plans.quantised import Tried
from planner.programme.proof import Bound
from planner.question import Question
from planner.search.fleet import Fleet
from planner.search.gather import Cut
from planner.search.papers import Beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of one thing that gives a question or a fleet without a plan one, or that none of it does; solved.

    ``flag`` and ``value`` are as they would be typed, None where no change of it alone helps; ``question`` is the
    changed one of a single model.
    """

    direction: str
    told: str
    flag: str | None = None
    value: str | None = None
    question: Question | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan per member, in their order; none where the rates do not fit or no limit is kept, then with the reason."""

    fleet: Fleet
    plans: tuple[Plan, ...]
    candidates_evaluated: int
    bound: Bound | None
    binding_limit: str
    explanation: str
    growth: float = 0.0
    """What every member carries over its asked rate, at least; where nothing fits, the share of all that would."""
    changes: tuple[Change, ...] = ()
    pareto: tuple[Plan, ...] = ()
    """The best plan of a single model and the runners-up."""
    cut: Cut = field(default_factory=dict)
    """Strategies and layouts that were not costed, by role and rule."""
    published: tuple[Beside, ...] = ()
    """What others deployed for a single model on this machine, on the same devices."""
    formats: tuple[Tried, ...] = ()
    """What each number format came to, where there were several; the question is then in the best one."""
    engines: tuple[Tried, ...] = ()
    """What each engine came to, where one was to be chosen, the best first; the question is then for it."""
    unrestricted: Plan | None = None
    """What the reference engine, which runs every layout, would reach where an engine was chosen."""

    @property
    def feasible(self) -> bool:
        """Whether every member has a plan."""
        return bool(self.plans)

    @property
    def question(self) -> Question:
        """What was asked of a single model."""
        return self.fleet.members[0].question

    @property
    def best(self) -> Plan | None:
        """The plan of a single model; None where there is none."""
        return self.plans[0] if self.plans else None

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
        """Price of all nodes in USD per hour; None where a chip has no price."""
        return cost_of([pool for plan in self.plans for _, pool in plan.pools()])

    @property
    def power_watts(self) -> float | None:
        """Power of all machines; None where one states none."""
        watts = [plan.power_watts for plan in self.plans]
        return None if None in watts else sum(each for each in watts if each is not None)
