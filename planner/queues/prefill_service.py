"""How long passes of a prefill instance take: durations by the number of prompts, and how they spread.

The queue sees nothing else of an instance. Durations are either given with their distribution (``queues.passes``), or
by their mean and the spread of one prompt's share, which is then gamma distributed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from ground.arrays import distinct
from ground.errors import BadInput
from planner.queues.queueing import Array, gamma_nodes
from planner.serving.latency import Latency

PassSeconds = Callable[[Array], Array]

_NODES = 256
KINDS = 16
"""Durations of passes of as many prompts that are told apart, where only their spread is known."""


def _all() -> Array:
    return np.ones(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Prompts by what their own passes are like."""

    share: float = 1.0
    """Of all prompts."""
    alone: Array | None = None
    """[kinds]: durations of a pass with nothing else; None: those of any unit."""
    least_seconds: float = 0.0
    """Of the first pass, whatever else is in it."""
    later_seconds: tuple[float, ...] = ()
    """Of each pass after the first, with nothing else in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullPasses:
    """Passes that leave somebody behind, by how many units they hold: 1, 2, ... to the largest."""

    chances: Array
    """[2, largest]: of passes behind one that took all, and behind a full one, whose first unit fitted no more there.
    """
    held_kinds: Array
    """[largest, kinds]: durations that occur, by what is held."""
    kinds: Array
    """[kinds]: durations that occur among all."""

    @property
    def largest(self) -> int:
        """Units of the largest."""
        return int(self.chances.shape[1])

    @property
    def spread(self) -> float:
        """Variance of what they hold, in squared units."""
        held = np.arange(1.0, self.largest + 1)
        return float((held - held @ self.chances[1]) ** 2 @ self.chances[1])


class Sample(Protocol):
    """A queue that is told by a sample instead (``queues.sampled_queue``)."""

    def ttft(self, rate_per_second: float, squared_cv: float) -> Latency | None:
        """TTFT at a rate of prompts; None where it cannot keep up."""
        ...

    def least_wait(self, rate_per_second: float, squared_cv: float) -> Latency | None:
        """A large part of TTFT, at once."""
        ...

    def least_ttft(self, rate_per_second: float, squared_cv: float) -> Latency | None:
        """TTFT at a rate that is not above the asked one: less work."""
        ...

    def error(self, rate_per_second: float, squared_cv: float) -> float:
        """Standard error of the mean of TTFT, relative."""
        ...


@dataclass(frozen=True, kw_only=True)
class Service:
    """Pass times of one instance, tabulated once for all rates; counts are of *units*: what takes a place in a pass."""

    prompts: Array
    """[nodes], rising: units in a pass."""
    seconds: Array
    """[nodes]: mean duration, not falling."""
    kinds: Array | None = None
    """[nodes, kinds]: durations that occur; None for a gamma distribution of each."""
    weights: Array = field(default_factory=_all)
    """[kinds]: how likely each is."""
    share_variance: float = 0.0
    """Variance that one prompt adds, in squared seconds; without ``kinds``."""
    extra_seconds: float = 0.0
    """From the end of the pass to the first token."""
    units_per_prompt: float = 1.0
    own: tuple[Own, ...] = (Own(),)
    """What tells prompts apart, where it is more than their share of a pass."""
    most: float = 0.0
    """Units that a full pass holds on average, up to the last node; by default just as many."""
    full: FullPasses | None = None
    """What full passes hold where that varies; None: the whole numbers beside ``most``."""

    sample: Sample | None = field(default=None, repr=False, compare=False)
    """Tells the queue where units do not tell what the next pass is like."""

    def __post_init__(self) -> None:
        if not self.most:
            object.__setattr__(self, "most", float(self.prompts[-1]))

    @property
    def largest(self) -> int:
        """Units that a pass holds at most."""
        return int(self.prompts[-1])

    @cached_property
    def full_seconds(self) -> float:
        """Mean duration of full passes."""
        return float(self.full_kinds @ self.weights) if self.full else float(self.mean(np.array([self.most]))[0])

    @cached_property
    def full_kinds(self) -> Array:
        """Durations of full passes that occur, [kinds]."""
        return self.full.kinds if self.full else self.durations(np.array([self.most]), KINDS)[0][0]

    @cached_property
    def full_variance(self) -> float:
        """Variance of the duration of full passes."""
        if self.full:
            return float((self.full.kinds - self.full_seconds) ** 2 @ self.weights)
        return float(self.variance(np.array([self.most]))[0])

    @cached_property
    def share_seconds(self) -> float:
        """Mean duration that a unit adds, from one to the most."""
        return float(self.seconds[-1] - self.seconds[0]) / max(self.largest - 1, 1)

    @cached_property
    def share_squared(self) -> float:
        """Variance that a unit adds, from one to the most."""
        least, most = self.variance(self.prompts[[0, -1]])
        return float(most - least) / max(self.largest - 1, 1)

    @cached_property
    def alone_seconds(self) -> float:
        """Longest duration with one unit."""
        return float(self.durations(self.prompts[:1], KINDS)[0].max())

    @property
    def saturation_per_second(self) -> float:
        """Prompts per second of passes that are always full."""
        return self.most / (self.full_seconds * self.units_per_prompt)

    @property
    def varies(self) -> bool:
        """Whether passes of as many prompts may differ."""
        return self.kinds is not None or self.share_variance > 0

    def mean(self, prompts: Array) -> Array:
        """Mean duration."""
        return np.asarray(np.interp(prompts, self.prompts, self.seconds), dtype=np.float64)

    def variance(self, prompts: Array) -> Array:
        """Variance of the duration: n times that of a share, lengths being independent."""
        if self.kinds is None:
            return prompts * self.share_variance
        found = self._rows(prompts)
        return np.asarray((found - (found @ self.weights)[..., None]) ** 2 @ self.weights, dtype=np.float64)

    def durations(self, prompts: Array, count: int) -> tuple[Array, Array]:
        """Durations that occur, [..., kinds], and how likely each is, [kinds]; about ``count`` kinds where free."""
        if self.kinds is not None:
            return self._rows(prompts), self.weights
        means = self.mean(prompts)
        if not self.varies:
            return means[..., None], _all()
        spread, weights = gamma_nodes(self.variance(prompts) / means**2, count)
        return means[..., None] * spread, weights

    def _rows(self, prompts: Array) -> Array:
        assert self.kinds is not None, "asked for only where durations are given"
        low = np.clip(np.searchsorted(self.prompts, prompts) - 1, 0, max(self.prompts.size - 2, 0))
        high = np.minimum(low + 1, self.prompts.size - 1)
        before = self.prompts[low]
        part = np.clip((prompts - before) / np.maximum(self.prompts[high] - before, 1e-300), 0.0, 1.0)[..., None]
        return np.asarray(self.kinds[low] * (1 - part) + self.kinds[high] * part, dtype=np.float64)


def by_share(pass_seconds: PassSeconds, most_prompts: int, squared_cv: float, extra_seconds: float) -> Service:
    """Return the service of passes whose mean is known, with a squared CV of one prompt's share of them.

    The share is the slope of the durations: a pass of n prompts has variance n · c² · share².

    Raises BadInput for a cap below 1.
    """
    prompts = nodes(most_prompts)
    seconds = np.asarray(pass_seconds(prompts), dtype=np.float64) * np.ones_like(prompts)
    seconds = np.maximum.accumulate(seconds)
    slope = (seconds[-1] - seconds[0]) / (most_prompts - 1) if most_prompts > 1 else seconds[0]
    return Service(
        prompts=prompts,
        seconds=seconds,
        share_variance=float(squared_cv * slope**2),
        extra_seconds=extra_seconds,
    )


def nodes(most_prompts: int) -> Array:
    """Counts of prompts at which durations are tabulated; BadInput for a cap below 1."""
    if most_prompts < 1:
        raise BadInput(f"A prefill pass of at most {most_prompts} prompts must hold at least 1.")
    return distinct(np.round(np.linspace(1, most_prompts, min(most_prompts, _NODES))))
