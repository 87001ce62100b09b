"""Candidates that are late because others are whose passes are nowhere slower: time that runs more slowly.

Instances with as many DP ranks and the same token budget take prompts into passes or steps alike. Where every pass of
one takes at least x times as long as those of another, it is the other one in a time that runs x times as slowly, or
slower: at a rate r its latencies are at least x times those of the other at x r.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
    """Instances of one question that are late at a rate, however evenly requests come."""

    _found: dict[tuple[int, ...], list[tuple[Passes, float, Floats]]] = field(default_factory=dict)

    def add(self, passes: Passes, rate_per_second: float, excess: Floats) -> None:
        """Remember by how much an instance is late at its rate: latency over limit, [budgets]; 0 where not known."""
        self._found.setdefault(passes.alike, []).append((passes, rate_per_second, excess))

    def late(self, passes: Passes, rate_per_second: float) -> NDArray[np.bool_]:
        """Return with which budgets an instance must be late at its rate, [budgets]."""
        found = np.zeros(passes.budgets, dtype=np.bool_)
        for other, rate, excess in self._found.get(passes.alike, []):
            times = passes.times(other)
            found |= (times * excess >= 1) & (times * rate_per_second >= rate)
        return found
