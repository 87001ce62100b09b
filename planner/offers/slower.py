"""Candidates that must be late because a candidate with passes no slower is late, by scaling time.

Instances with equal DP ranks and token budget take the same prompts into passes or steps. If every pass of instance A
takes at least x times as long as that of B, then A behaves like B with its clock slowed by at least x: the latencies of
A at rate r are at least x times those of B at rate x r.

Arrivals at an instance are more even the more instances there are.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ground.arrays import Bools, Floats

Excess = Callable[[], Floats]  # returns the excess of a late instance: latency over limit, [budgets]; 0 where unknown
_ROUNDING = 1e-9


class Passes(NamedTuple):
    """Pass seconds of an instance by sort of load, and what decides which prompts share a pass."""

    alike: tuple[int, ...]  # properties that decide which prompts share a pass: DP ranks, chunks and budgets
    few: Floats  # seconds of passes with one prompt, [sorts]
    full: Floats  # seconds of full passes of rising budgets, [budgets]; infinite where not costed

    @property
    def budgets(self) -> int:
        """Number of budgets."""
        return int(self.full.size)


def _over(seconds: Floats, others: Floats) -> Floats:
    """Return the ratio of seconds to others; infinite where the others are 0, as for empty steps."""
    ratios: Floats = np.divide(seconds, others, out=np.full(others.shape, np.inf), where=others > 0)
    return ratios


@dataclass(slots=True)
class _Late:
    """Late instances, their rates and their excess."""

    rows: NDArray[np.void]  # per instance its passes, the number of instances, and the rate of one; with room for more
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
        shapes = [("few", passes.few.shape), ("full", passes.full.shape), ("numbers", (2,))]
        none = np.zeros(1, [(name, np.float64, shape) for name, shape in shapes])
        row = (passes.few, passes.full, (instances, rate_per_second))
        self._found.setdefault(passes.alike, _Late(none)).append(row, cache(excess))

    def late(self, passes: Passes, instances: int, rate_per_second: float) -> Bools:
        """Return whether one of so many instances must be late at its rate, [budgets].

        Its passes take at least some times as long as those of a late one, up to each budget. Arrivals dealt to fewer
        instances are less even.
        """
        found = np.zeros(passes.budgets, dtype=np.bool_)
        known = self._found.get(passes.alike)
        if known is None:
            return found
        rows = known.rows[: len(known.excess)]
        most, rates = rows["numbers"].T
        few = _over(passes.few, rows["few"]).min(axis=1)
        able = (instances <= most) & (few * rate_per_second >= rates * (1 - _ROUNDING))
        places = np.flatnonzero(able)
        full = rows["full"][places]
        costed = np.isfinite(passes.full) & np.isfinite(full)
        ratios = np.where(costed, passes.full / np.where(costed, full, 1.0), 0.0)
        times = np.minimum(np.minimum.accumulate(ratios, axis=1), few[places, None])
        quick = times * rate_per_second >= rates[places, None] * (1 - _ROUNDING)
        for row, place in enumerate(places.tolist()):
            if (quick[row] & ~found).any():
                found |= quick[row] & (times[row] * known.excess[place]() >= 1)
                if found.all():
                    break
        return found
