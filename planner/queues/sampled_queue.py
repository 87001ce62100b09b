"""The queue of prefill passes by a fixed sample: instances side by side, each for a short while, from a good start.

Where prompts are cut over passes of several DP groups, the pass after a part of a long prompt is long, too, and how
long depends on whose parts are under way: more than a chain over what waits can carry. So the passes themselves are
formed (``queues.sampled_passes``), for a sample of streams that is the same for every question:

- lengths and gaps are even over their distributions, across the streams for every place in them and over all;
- each stream begins with what a line of one server finds in the long run at that rate, known as a distribution
  (``queues.waiting_line``), even over the streams; so little has to settle, and many short streams tell more than one;
- that line, fed by the same stream, is a control variate: streams are weighted so that its wait has its known mean.

A rate is told between two *nodes*, fixed utilisations with the same streams; so answers do not depend on what was asked
before, and rise with the rate as one stream played faster does.

Ref: P. Glasserman, Monte Carlo Methods in Financial Engineering, 2004, sections 4.1 (control variates), 4.4 (Latin
hypercubes); T. Hesterberg and B. Nelson, Control variates for probability and quantile estimation, Manage. Sci.
44:1295, 1998.
"""

import math
from functools import cached_property

import numpy as np

from planner.queues.even_streams import even_gaps, even_levels, without_rarest
from planner.queues.machine import Machine
from planner.queues.pass_surface import PassSurface
from planner.queues.prompts import Prompts
from planner.queues.queueing import Array, Latency, between
from planner.queues.sampled_passes import Lanes, PassRecursion, Streams
from planner.queues.waiting_line import Wait, stationary_wait
from podplan.records import dataclass

_NODES = (0.3, 0.5, 0.62, 0.72, 0.8, 0.86, 0.91, 0.95, 0.98, 0.995)
"""Utilisations; below the first, TTFT goes on to that of prompts alone."""
_SHARES = (0.3, 0.4, 0.7, *(1.0 for _ in _NODES[3:]))
"""Of the prompts that are counted, at each: what waits is forgotten the sooner the less it is."""
_SETTLES = (1, 1, 1, 1, 2, 4, 5, 6, 6, 6)
"""How much longer than at the first a stream settles before it is counted: what waits comes and goes ever slower."""
_UNLOADED = 0.01
"""Below which nobody waits."""
_FEWEST_STREAMS, _MOST_STREAMS = 32, 256
_AFTER = 4
"""Full passes of prompts behind those that are counted."""
_LARGE, _LEAST_SHARE = 128, 0.35
"""Prompts of a full pass beyond which fewer passes are counted, and the least share of them."""
_LEAST_CV = 1e-3
_SEED = 0


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a sample is."""

    settle: float
    """Prompts of a stream before those that are counted, in full passes."""
    counted: float
    """In full passes, too."""
    prompts: int
    """Counted in all streams, about."""


FINE = Extent(14, 24, 80_000)
ROUGH = Extent(6, 9, 16_000)
"""The 99th percentile is within a fifth of the fine one's or so, in a fifth of the time."""
_FULL = Extent(8, 14, 28_000)
"""For the saturation."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Streams, and prompts of each: how many settle at the first node, how many are counted, and all."""

    streams: int
    settle: int
    counted: int
    places: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """TTFT at a utilisation."""

    ttft: Latency
    error: float
    """Standard error of its mean as the streams differ, relative."""


class SampledQueue:
    """One prefill instance; what was found is kept."""

    def __init__(self, machine: Machine, prompts: Prompts, alone_seconds: Array, extra_seconds: float = 0.0) -> None:
        """Set up the queue; nothing is formed yet.

        Args:
            machine: what forms passes, of up to 512 prompts.
            prompts: kinds of prompts.
            alone_seconds: [kinds] all passes of a prompt with nothing else in the instance.
            extra_seconds: from the end of the last pass to the first token.
        """
        self._machine, self._extra_seconds = machine, extra_seconds
        self._prompts, self._alone = without_rarest(prompts, alone_seconds)
        tokens, weights = self._prompts.tokens, self._prompts.weights
        self._found: dict[tuple[int, float, Extent], Sampled] = {}
        left = tokens - np.floor(self._prompts.reused / machine.budget_tokens) * machine.budget_tokens
        self._full = max(machine.ranks * machine.budget_tokens / float(left @ weights), 1.0)

    @cached_property
    def _recursion(self) -> PassRecursion:
        surface = PassSurface(self._machine, float(self._prompts.tokens.max()))
        return PassRecursion(self._machine, self._prompts, surface)

    @cached_property
    def saturation_per_second(self) -> float:
        """Prompts per second when all of a stream wait from the start."""
        sizes = self._sizes(_FULL)
        kinds, count, last = self._kinds(sizes), sizes.streams, sizes.settle + sizes.counted
        streams = Streams.of(np.zeros(kinds.shape), kinds, self._machine.ranks)
        none = np.zeros(count, dtype=np.int64)
        lanes = Lanes(np.arange(count), np.ones(count), np.zeros(count), none, none, none + last)
        ends = self._recursion.finished(streams, lanes)
        order = np.sort(ends, axis=1)
        since, until = order[:, [sizes.settle]], order[:, [last - min(int(4 * self._full), sizes.counted // 2)]]
        # Counted as what prompts take alone: how many ended depends on which ones did.
        done = np.where((ends > since) & (ends <= until), self._alone[kinds[:, :last]], 0.0).sum()
        return float(done / (self._alone @ self._prompts.weights) / (until - since).sum())

    def ttft(self, rate_per_second: float, squared_cv: float, extent: Extent = FINE) -> Latency | None:
        """TTFT at a rate, None beyond the last node: between the two nodes beside it 1/seconds is straight."""
        load, cv = rate_per_second / self.saturation_per_second, max(squared_cv, _LEAST_CV)
        if load >= _NODES[-1]:
            return None
        if load < _UNLOADED:
            return self._unloaded
        above = int(np.searchsorted(_NODES, load, side="right"))
        beside = [place for place in (above - 1, above) if place >= 0]
        self._solve(beside, cv, extent)
        high = self._found[above, cv, extent].ttft
        if not above:
            return between(self._unloaded, high, load / _NODES[0])
        part = (load - _NODES[above - 1]) / (_NODES[above] - _NODES[above - 1])
        return between(self._found[above - 1, cv, extent].ttft, high, part)

    def rough_ttft(self, rate_per_second: float, squared_cv: float) -> Latency | None:
        """TTFT by a small sample, for what is late or in time by far."""
        return self.ttft(rate_per_second, squared_cv, ROUGH)

    def error(self, rate_per_second: float, squared_cv: float) -> float:
        """Standard error of the mean of TTFT at a rate, relative: that of the node above."""
        place = int(np.searchsorted(_NODES[:-1], rate_per_second / self.saturation_per_second, side="right"))
        self._solve([place], max(squared_cv, _LEAST_CV), FINE)
        return self._found[place, max(squared_cv, _LEAST_CV), FINE].error

    @cached_property
    def _unloaded(self) -> Latency:
        order = np.argsort(self._alone, kind="stable")
        seconds = self._alone[order] + self._extra_seconds
        return Latency.from_masses(seconds, self._prompts.weights[order])

    def _sizes(self, extent: Extent) -> _Sizes:
        usual = max(self._full, self._machine.ranks / 2)
        usual *= max(min(1.0, _LARGE / usual), _LEAST_SHARE)  # large passes are alike, so fewer tell as much
        settle, counted = math.ceil(extent.settle * usual), math.ceil(extent.counted * usual)
        return _Sizes(
            streams=int(np.clip(extent.prompts // counted, _FEWEST_STREAMS, _MOST_STREAMS)),
            settle=settle,
            counted=counted,
            places=max(_SETTLES) * settle + counted + math.ceil(_AFTER * max(self._full, self._machine.ranks)),
        )

    def _kinds(self, sizes: _Sizes) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        below = np.cumsum(self._prompts.weights)
        levels = even_levels(_SEED, sizes.streams, sizes.places)
        return np.minimum(np.searchsorted(below, levels), below.size - 1)

    def _solve(self, nodes: list[int], squared_cv: float, extent: Extent) -> None:
        """Find TTFT at the nodes that are not known yet, their streams side by side."""
        missing = [node for node in nodes if (node, squared_cv, extent) not in self._found]
        if not missing:
            return
        sizes = self._sizes(extent)
        count, kinds = sizes.streams, self._kinds(sizes)
        gaps = even_gaps(_SEED + 1, squared_cv, count, sizes.places)
        arrivals = np.cumsum(gaps, axis=1)
        rates = self.saturation_per_second * np.array([_NODES[node] for node in missing])
        lines = [self._line(kinds, gaps, rate, squared_cv) for rate in rates.tolist()]
        first = max(_SETTLES) * sizes.settle  # the same prompts are counted at each
        starts = [first - _SETTLES[node] * sizes.settle for node in missing]
        counted = [math.ceil(_SHARES[node] * sizes.counted) for node in missing]
        begins = [
            arrivals[:, start] / rate + line[:, start]
            for start, rate, (line, _) in zip(starts, rates, lines, strict=True)
        ]
        lanes = Lanes(
            stream=np.tile(np.arange(count), rates.size),
            rates=np.repeat(rates, count),
            begin_seconds=np.concatenate(begins),
            start=np.repeat(starts, count),
            first=np.full(rates.size * count, first),
            last=first + np.repeat(counted, count),
        )
        ends = self._recursion.finished(Streams.of(arrivals, kinds, self._machine.ranks), lanes)
        for place, (node, number) in enumerate(zip(missing, counted, strict=True)):
            asked = slice(first, first + number)
            waits = ends[place * count : (place + 1) * count, :number] - arrivals[:, asked] / rates[place]
            line, law = lines[place]
            controls = np.stack([line[:, asked].mean(axis=1), (self._alone**2)[kinds[:, asked]].mean(axis=1)])
            known = np.array([law.mean_seconds, float(self._alone**2 @ self._prompts.weights)])
            self._found[node, squared_cv, extent] = self._told(waits, controls, known)

    def _line(
        self, kinds: np.ndarray[tuple[int, int], np.dtype[np.int64]], gaps: Array, rate: float, squared_cv: float
    ) -> tuple[Array, Wait]:
        """Waits of the prompts in a line of one server that is as busy, [streams, places], and their law."""
        added = self._alone - 0.5 * self._alone.min()
        work = added / (float(added @ self._prompts.weights) * self.saturation_per_second)
        law = stationary_wait(work, self._prompts.weights, rate, squared_cv)
        rng = np.random.default_rng(_SEED + 2)
        begun = law.at((rng.permutation(kinds.shape[0]) + 0.5) / kinds.shape[0])
        walk = np.zeros(kinds.shape)
        walk[:, 1:] = np.cumsum(work[kinds[:, :-1]] - gaps[:, 1:] / rate, axis=1)
        return walk + np.maximum(begun[:, None], -np.minimum.accumulate(walk, axis=1)), law

    def _told(self, waits: Array, controls: Array, known: Array) -> Sampled:
        """Weight the streams so that ``controls`` [controls, streams] have ``known`` means.

        Args: ``waits`` [streams, prompts].
        """
        off = controls - controls.mean(axis=1, keepdims=True)
        inverse = np.linalg.pinv(off @ off.T)
        weights = 1 / off.shape[1] + off.T @ (inverse @ (known - controls.mean(axis=1)))
        weights = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
        each = waits.mean(axis=1)
        left = each - each.mean() - off.T @ (inverse @ (off @ each))
        found = float(weights @ each)
        seconds, masses = waits.ravel() + self._extra_seconds, np.repeat(weights / waits.shape[1], waits.shape[1])
        order = np.argsort(seconds)
        ttft = Latency.from_masses(seconds[order], masses[order], found + self._extra_seconds)
        return Sampled(ttft, float(left.std(ddof=1 + known.size)) / math.sqrt(left.size) / found)
