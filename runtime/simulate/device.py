"""The devices of one instance, which do one thing at a time, and what all parts of a run share."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Union

from ground.prefix_cache import PrefixCache
from planner.manifest.drafts import tokens_per_iteration
from planner.manifest.schema import Manifest, PhaseName, Pool
from planner.manifest.terms import StepCost
from planner.serving.deployed import step_times
from runtime.simulate.engine import EventEngine, generator
from runtime.simulate.ledger import Ledger
from runtime.simulate.placement import RankSlots
from runtime.simulate.steps import IterationCounts, StepTimer, balanced

if TYPE_CHECKING:
    from runtime.simulate.decode import DecodeInstance
    from runtime.simulate.prefill import PrefillInstance

Half = Union["DecodeInstance", "PrefillInstance"]  # one of the two things that an instance can do
Span = Callable[[str, str, float, float, dict[str, float]], None]
"""Called with instance, name, start and duration of a step and figures about it."""


class Devices:
    """Taken by prefill or by decode of one instance, in turns where both have work."""

    __slots__ = ("_owner", "_waiting")

    def __init__(self) -> None:
        self._owner: Half | None = None
        self._waiting: Half | None = None

    def take(self, half: Half) -> bool:
        """Whether ``half`` may start a step now; otherwise it is woken when the other one ends."""
        if self._owner is None:
            self._owner = half
            return True
        if self._owner is not half:
            self._waiting = half
            self._owner.give_way()
        return self._owner is half

    def after(self, half: Half) -> None:
        """Wake ``half`` when the other one ends, or has nothing to do."""
        self._waiting = half

    def free(self, half: Half) -> None:
        """End a step; the half that waits goes first."""
        if self._owner is half:
            self._owner = None
        if self._waiting is not None and self._waiting is not half:
            waiting, self._waiting = self._waiting, None
            waiting.wake()


@dataclass(slots=True, kw_only=True)
class Shared:
    """What the parts of a run have in common. ``stepping`` ends every iteration by an event of its own."""

    manifest: Manifest
    engine: EventEngine
    ledger: Ledger
    placement: RankSlots
    cache: PrefixCache
    seed: int = 0
    stepping: bool = False
    expected_drafts: bool = False
    balance: dict[str, float] = field(default_factory=dict)
    """Busiest expert rank over the mean by pool role, where it is not the manifest's."""
    offline: bool = False  # whether offline requests stand behind the online ones
    follows: bool = False  # whether requests are sent when others leave: in a closed loop, or as turns of sessions
    span: Span | None = None
    _timers: list[tuple[StepCost, Pool, PhaseName, StepTimer]] = field(default_factory=list)

    def cost(self, pool: Pool, phase: PhaseName) -> StepCost:
        """Return the step cost of a pool's instances in this run."""
        return balanced(pool.step_costs[phase].to_step_cost(), self.balance.get(pool.role))

    def counts(self, pool: Pool, name: str) -> IterationCounts:
        """Return what draws the iterations of answers on an instance."""
        return IterationCounts(pool.mtp, self.expected_drafts, generator(self.seed, f"drafts {name}"))

    def most_seconds(self, pool: Pool) -> float:
        """Return how long a step of a pool may take within the TPOT limit; infinity without one."""
        limit = self.manifest.service_levels.tpot_seconds
        return math.inf if limit is None else limit * tokens_per_iteration(pool.mtp.drafts, pool.mtp.acceptance)

    def timer(self, cost: StepCost, pool: Pool, phase: PhaseName) -> StepTimer:
        """Return how long an instance's steps of a phase take at a step cost; instances that are alike share one."""
        for known, of, what, timer in self._timers:
            if of is pool and what == phase and known == cost:
                return timer
        timer = StepTimer(partial(step_times, self.manifest, pool, phase, cost))
        self._timers.append((cost, pool, phase, timer))
        return timer
