"""Candidates that are late because others are whose passes are nowhere slower: time that runs more slowly.

Instances with as many DP ranks and the same token budget take prompts into passes or steps alike. Where every pass of
one takes at least x times as long as those of another, it is the other one in a time that runs x times as slowly, or
slower: at a rate r its latencies are at least x times those of the other at x r.

Where requests go to the ranks in turn, each rank has its own, and all leave a step together. Without some of its ranks
and their requests an instance has the same left to do, and its steps last no longer, for they last as long as those of
the slowest rank. So it is no less late than one of fewer ranks at the same rate of a rank, which gets its requests the
more evenly the more ranks all instances have.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ground.arrays import Bools, Floats

Excess = Callable[[], Floats]
"""Tells by how much an instance is late: latency over limit, [budgets]; 0 where not known."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Passes:
    """What passes or steps of an instance take: who takes prompts alike, and seconds of passes of every sort."""

    alike: tuple[int, ...]
    """What decides who is in a pass: DP ranks, unless each has its own requests."""
    few: Floats
    """Seconds of passes with one prompt, or of steps without, [sorts]."""
    full: Floats
    """Seconds of full passes of rising budgets, [budgets] or [sorts, budgets]; infinite where none was costed."""
    ranks: int = 1
    """To which requests go in turn."""
    room: Floats | float = np.inf
    """Requests that each holds, [budgets]; infinite where it is more than are played."""

    @property
    def budgets(self) -> int:
        """How many budgets there are."""
        return int(self.full.shape[-1])

    def times(self, other: "Passes") -> Floats:
        """Return how many times as long as those of another its passes take at least, up to each budget.

        With a budget that leaves it more room: 0.
        """
        known = np.isfinite(self.full) & np.isfinite(other.full)
        ratios = np.where(known, self.full / np.where(known, other.full, 1.0), 0.0)
        least = np.minimum.accumulate(np.atleast_2d(ratios).min(axis=0))
        return np.where(self.room <= other.room, np.minimum(least, _over(self.few, other.few).min()), 0.0)


def _over(seconds: Floats, others: Floats) -> Floats:
    """Return how many times as long as others seconds are; infinite where those are none, as of steps with nobody."""
    ratios: Floats = np.divide(seconds, others, out=np.full(others.shape, np.inf), where=others > 0)
    return ratios


@dataclass(slots=True)
class _Late:
    """Instances that are late at a rate, and by how much."""

    few: Floats
    """[instances, sorts]"""
    numbers: Floats
    """Ranks of one, of all of them, and rate of a rank, [instances, 3]."""
    passes: list[Passes] = field(default_factory=list)
    excess: list[Excess] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slower:
    """Instances of one question that are late at a rate, one of so many that requests are dealt to in turn."""

    _found: dict[tuple[int, ...], _Late] = field(default_factory=dict)

    def add(self, passes: Passes, instances: int, rate_per_second: float, excess: Excess) -> None:
        """Remember an instance that is late at its rate; by how much is asked once another one may be for that."""
        known = self._found.setdefault(passes.alike, _Late(np.empty((0, passes.few.size)), np.empty((0, 3))))
        known.few = np.vstack([known.few, passes.few])
        known.numbers = np.vstack(
            [known.numbers, (passes.ranks, instances * passes.ranks, rate_per_second / passes.ranks)]
        )
        known.passes.append(passes)
        known.excess.append(cache(excess))

    def late(self, passes: Passes, instances: int, rate_per_second: float) -> Bools:
        """Return with which budgets one of so many instances must be late at its rate, [budgets].

        What is dealt to fewer comes the less evenly.
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
