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
from numpy.typing import NDArray

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


def _over(seconds: Floats, others: Floats) -> Floats:
    """Return the ratio of seconds to others; infinite where the others are 0, as for empty steps."""
    ratios: Floats = np.divide(seconds, others, out=np.full(others.shape, np.inf), where=others > 0)
    return ratios


@dataclass(slots=True)
class _Late:
    """Late instances, their rates and their excess."""

    rows: NDArray[np.void]
    """Per instance its passes, ranks of one instance and of all, and the rate of a rank; with room for more."""
    excess: list[Excess] = field(default_factory=list)

    def append(self, row: tuple[object, ...], excess: Excess) -> None:
        """Add an instance."""
        if len(self.excess) == self.rows.size:
            self.rows = np.resize(self.rows, 2 * self.rows.size)
        self.rows[len(self.excess)] = row
        self.excess.append(excess)


@dataclass(frozen=True, slots=True)
class Slower:
    """Late instances of one question; each is one of several that requests are dealt to in turn."""

    _found: dict[tuple[int, ...], _Late] = field(default_factory=dict)

    def add(self, passes: Passes, instances: int, rate_per_second: float, excess: Excess) -> None:
        """Record an instance that is late at its rate; ``excess`` is called only when it may decide another one."""
        few, full = passes.few, np.atleast_2d(passes.full)
        shapes = [("few", few.shape), ("full", full.shape), ("room", (passes.budgets,)), ("numbers", (3,))]
        none = np.zeros(1, [(name, np.float64, shape) for name, shape in shapes])
        numbers = passes.ranks, instances * passes.ranks, rate_per_second / passes.ranks
        self._found.setdefault(passes.alike, _Late(none)).append((few, full, passes.room, numbers), cache(excess))

    def late(self, passes: Passes, instances: int, rate_per_second: float) -> Bools:
        """Return whether one of so many instances must be late at its rate, [budgets].

        Its passes take at least some times as long as those of a late one, up to each budget; 0 times for a budget that
        leaves more room than the late one has. Arrivals dealt to fewer instances are less even.
        """
        found = np.zeros(passes.budgets, dtype=np.bool_)
        known, each = self._found.get(passes.alike), rate_per_second / passes.ranks
        if known is None:
            return found
        rows = known.rows[: len(known.excess)]
        ranks, most, rates = rows["numbers"].T
        few = _over(passes.few, rows["few"]).min(axis=1)
        able = (ranks <= passes.ranks) & (instances * passes.ranks <= most) & (few * each >= rates * (1 - _ROUNDING))
        places = np.flatnonzero(able)
        full, own = rows["full"][places], np.atleast_2d(passes.full)
        costed = np.isfinite(own) & np.isfinite(full)
        ratios = np.where(costed, own / np.where(costed, full, 1.0), 0.0)
        times = np.minimum(np.minimum.accumulate(ratios.min(axis=1), axis=1), few[places, None])
        times = np.where(passes.room <= rows["room"][places], times, 0.0)
        quick = times * each >= rates[places, None] * (1 - _ROUNDING)
        for row, place in enumerate(places.tolist()):
            if (quick[row] & ~found).any():
                found |= quick[row] & (times[row] * known.excess[place]() >= 1)
                if found.all():
                    break
        return found
