"""Candidates that must be late because a candidate with passes no slower is late, by scaling time.

Instances with equal DP ranks and token budget take the same prompts into passes or steps. If every pass of instance A
takes at least x times as long as that of B, then A behaves like B with its clock slowed by at least x: the latencies of
A at rate r are at least x times those of B at rate x r.

If requests are dealt to ranks in turn, each rank has its own requests, and all ranks end a step together with the
slowest. Without some of its ranks and their requests, an instance therefore has steps that are no longer. So it is at
least as late as an instance of fewer ranks at the same rate per rank. Arrivals at a rank are more even the more ranks
all instances have together.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from ground.arrays import Bools, Floats

Excess = Callable[[], Floats]
"""Returns the excess of a late instance: latency over limit, [budgets]; 0 where unknown."""
_ROUNDING = 1e-9


class Passes(NamedTuple):
    """Pass or step seconds of an instance by sort of load, and what decides which prompts share a pass."""

    alike: tuple[int, ...]
    """Properties that decide which prompts share a pass: DP ranks, unless each rank has its own requests."""
    few: Floats
    """Seconds of passes with one prompt, or of steps without prompts, [sorts]."""
    full: Floats
    """Seconds of full passes of rising budgets, [budgets] or [sorts, budgets]; infinite where not costed."""
    ranks: int = 1
    """DP ranks that requests are dealt to in turn."""
    room: Floats | float = np.inf
    """Requests that each rank holds, [budgets]; infinite where more than are played."""

    @property
    def budgets(self) -> int:
        """Number of budgets."""
        return int(self.full.shape[-1])

    def times(self, other: "Passes") -> Floats:
        """Return the least ratio of own pass seconds to those of another instance up to each budget, [budgets].

        0 for a budget that leaves more room than the other instance has.
        """
        known = np.isfinite(self.full) & np.isfinite(other.full)
        ratios = np.where(known, self.full / np.where(known, other.full, 1.0), 0.0)
        least = np.minimum.accumulate(np.atleast_2d(ratios).min(axis=0))
        return np.where(self.room <= other.room, np.minimum(least, _over(self.few, other.few).min()), 0.0)


def _over(seconds: Floats, others: Floats) -> Floats:
    """Return the ratio of seconds to others; infinite where the others are 0, as for empty steps."""
    ratios: Floats = np.divide(seconds, others, out=np.full(others.shape, np.inf), where=others > 0)
    return ratios


@dataclass(slots=True)
class _Late:
    """Late instances, their rates and their excess."""

    few: Floats
    """Seconds of passes with one prompt, [instances, sorts]."""
    numbers: Floats
    """Ranks of one instance, ranks of all instances, rate of a rank, [instances, 3]."""
    passes: list[Passes] = field(default_factory=list)
    excess: list[Excess] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slower:
    """Late instances of one question; each is one of several that requests are dealt to in turn."""

    _found: dict[tuple[int, ...], _Late] = field(default_factory=dict)

    def add(self, passes: Passes, instances: int, rate_per_second: float, excess: Excess) -> None:
        """Record an instance that is late at its rate; ``excess`` is called only when it may decide another one."""
        known = self._found.setdefault(passes.alike, _Late(np.empty((0, passes.few.size)), np.empty((0, 3))))
        known.few = np.vstack([known.few, passes.few])
        known.numbers = np.vstack(
            [known.numbers, (passes.ranks, instances * passes.ranks, rate_per_second / passes.ranks)]
        )
        known.passes.append(passes)
        known.excess.append(cache(excess))

    def late(self, passes: Passes, instances: int, rate_per_second: float) -> Bools:
        """Return whether one of so many instances must be late at its rate, [budgets].

        Arrivals dealt to fewer instances are less even.
        """
        found = np.zeros(passes.budgets, dtype=np.bool_)
        known, each = self._found.get(passes.alike), rate_per_second / passes.ranks
        if known is None:
            return found
        ranks, most, rates = known.numbers.T
        few = _over(passes.few, known.few).min(axis=1)
        able = (ranks <= passes.ranks) & (instances * passes.ranks <= most) & (few * each >= rates * (1 - _ROUNDING))
        for place in np.flatnonzero(able).tolist():
            times = passes.times(known.passes[place])
            quick = times * each >= rates[place] * (1 - _ROUNDING)
            if (quick & ~found).any():
                found |= quick & (times * known.excess[place]() >= 1)
                if found.all():
                    break
        return found
