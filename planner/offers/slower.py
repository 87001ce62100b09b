"""Candidates that are late because others are whose passes are nowhere slower: time that runs more slowly.

Instances with as many DP ranks and the same token budget take prompts into passes or steps alike. Where every pass of
one takes at least x times as long as those of another, it is the other one in a time that runs x times as slowly, or
slower: at a rate r its latencies are at least x times those of the other at x r.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Excess = Callable[[], Floats]
"""Tells by how much an instance is late: latency over limit, [budgets]; 0 where not known."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What passes or steps of an instance take: who takes prompts alike, and seconds of passes of every sort."""

    alike: tuple[int, ...]
    """DP ranks, and what else decides who is in a pass."""
    few: Floats
    """Seconds of passes with one prompt, or of steps without, [sorts]."""
    full: Floats
    """Seconds of full passes of rising budgets, [budgets] or [sorts, budgets]; infinite where none was costed."""

    @property
    def budgets(self) -> int:
        """How many budgets there are."""
        return int(self.full.shape[-1])

    def times(self, other: "Passes") -> Floats:
        """Return how many times as long as those of another its passes take at least, up to each budget."""
        known = np.isfinite(self.full) & np.isfinite(other.full)
        ratios = np.where(known, self.full / np.where(known, other.full, 1.0), 0.0)
        least = np.atleast_2d(ratios).min(axis=0)
        return np.asarray(np.minimum(np.minimum.accumulate(least), (self.few / other.few).min()))


@dataclass(frozen=True, slots=True)
class Slower:
    """Instances of one question that are late at a rate, one of so many that requests are dealt to in turn."""

    _found: dict[tuple[int, ...], list[tuple[Passes, int, float, Excess]]] = field(default_factory=dict)

    def add(self, passes: Passes, instances: int, rate_per_second: float, excess: Excess) -> None:
        """Remember an instance that is late at its rate; by how much is asked once another one may be for that."""
        self._found.setdefault(passes.alike, []).append((passes, instances, rate_per_second, cache(excess)))

    def late(self, passes: Passes, instances: int, rate_per_second: float) -> NDArray[np.bool_]:
        """Return with which budgets one of so many instances must be late at its rate, [budgets].

        What is dealt to fewer comes the less evenly.
        """
        found = np.zeros(passes.budgets, dtype=np.bool_)
        for other, most, rate, excess in self._found.get(passes.alike, []):
            if instances > most or (passes.few / other.few).min() * rate_per_second < rate:
                continue
            times = passes.times(other)
            quick = times * rate_per_second >= rate
            if (quick & ~found).any():
                found |= quick & (times * excess() >= 1)
        return found
