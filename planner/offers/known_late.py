"""Prefill instances that are known to be late, and which others must be: those whose passes are nowhere quicker.

Rows of a search come in families: with as many DP groups and the same token budget prompts are dealt to passes alike,
and where experts stand differs. A queue of prompts that differ takes a quarter of a second; to set the durations of two
instances side by side takes half a millisecond. Where all passes of one take at least x times as long as those of
another with the same groups and budget, it is the other one in a time that runs x times as slowly, or slower: at a rate
r it is as late as that one at x r, times x.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from planner.queues.machine import Loads, Machine, pass_durations
from planner.queues.queueing import Array

_SURE = 1.1
"""Times the limit by which one must be late to tell of others: samples of two instances that are all but alike differ
by up to 7 % at p99, for a prompt that just misses a pass of one is in that of the other."""
_NEAR = 0.93
"""Of the rate at which one was late, in its own time: no lower ones are told of."""
_TOKENS = np.array([1 / 32, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0])
_PAIRS = np.array([1 / 64, 1 / 8, 1 / 2])
"""Of a budget, and of the longest prompt for each token."""


@dataclass(frozen=True, slots=True)
class _Late:
    """An instance that was late at a rate, one of ``instances`` that prompts are dealt to in turn."""

    seconds: Array
    instances: int
    rate_per_second: float
    utilisation: float
    tail_seconds: float
    """Infinite where it cannot keep up."""

    def told(self, seconds: Array, instances: int, rate_per_second: float) -> float:
        """About the tail of an instance whose passes take so long, and no more; 0 where this tells nothing."""
        slower = float((seconds / self.seconds).min())
        part = slower * rate_per_second / self.rate_per_second
        if instances > self.instances or part < _NEAR:  # those that more instances share are the more even
            return 0.0
        if math.isinf(self.tail_seconds):
            return math.inf if part >= 1 else 0.0
        # A wait goes up as 1/(1 - utilisation): by 1/(1 - utilisation) per cent for each per cent of the rate.
        less = math.pow(min(part, 1.0), 1 / max(1 - self.utilisation, 0.01))
        return slower * self.tail_seconds * less


@dataclass(frozen=True, slots=True)
class KnownLate:
    """What was late within one question's limit, by groups and budget."""

    limit_seconds: float
    longest_tokens: float
    """Of the prompts."""
    _found: dict[tuple[int, float], list[_Late]] = field(default_factory=dict)

    def least_tail(self, machine: Machine, instances: int, rate_per_second: float) -> float:
        """About the tail of an instance that must be late at a rate of each; 0 where that is not known."""
        others = self._found.get((machine.ranks, machine.budget_tokens))
        if not others:
            return 0.0
        seconds = self._durations(machine)
        told = max(other.told(seconds, instances, rate_per_second) for other in others)
        return told if told > _SURE * self.limit_seconds else 0.0

    def add(self, machine: Machine, instances: int, rates: tuple[float, float], tail_seconds: float) -> None:
        """Remember an instance that is late. Args: ``rates`` of each, at which it is and of its full passes."""
        rate, saturation = rates
        if math.isinf(tail_seconds):
            rate = min(rate, saturation)
        late = _Late(self._durations(machine), instances, rate, rate / saturation, tail_seconds)
        self._found.setdefault((machine.ranks, machine.budget_tokens), []).append(late)

    def _durations(self, machine: Machine) -> Array:
        load, mean = _passes(machine.ranks, machine.budget_tokens, self.longest_tokens)
        return pass_durations(machine, load, mean)


@lru_cache(maxsize=64)
def _passes(ranks: int, budget_tokens: float, longest_tokens: float) -> tuple[Loads, Array]:
    """Return what the busiest groups of passes carry, and mean tokens of all groups: passes of every sort."""
    context = [0.0, longest_tokens - budget_tokens] if longest_tokens > budget_tokens else [0.0]
    shares = np.linspace(1 / ranks, 1.0, 3) if ranks > 1 else np.ones(1)
    axes = np.meshgrid(_TOKENS * budget_tokens, _PAIRS * longest_tokens, context, shares, indexing="ij")
    tokens, pairs, before, share = (axis.ravel() for axis in axes)
    return (tokens, before, tokens * pairs, np.ones_like(tokens)), tokens * share
