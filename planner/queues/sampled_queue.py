"""The queue of prefill passes by a fixed sample: instances side by side, each for a short while, from a good start.

Where several DP groups share passes, the pass after a part of a long prompt is long, too, and so is one that begins
with a prompt that fitted no more: more than a chain over what waits can carry. So the passes themselves are formed
(``queues.sampled_passes``), for a sample of streams that is the same for every question:

- Full passes tell what a prompt adds to them: their durations are those of the tokens and pairs of the prompts that
  end in them, within a few parts in a hundred of their variance. It is not what a prompt takes alone: short ones share
  passes, so that what is served varies by up to half as much again.
- A line of one server with that work is all but the queue (correlation 0.99 where lengths vary), and how long one waits
  in it is known as a distribution (``queues.waiting_line``). Streams begin with it, even over the streams; and of each
  prompt's TTFT what the line holds counts after its law, by rank, and only what is beyond as the sample has it.
- Lengths and gaps are even over their distributions, across the streams for every place in them and over all.

A rate is told between two *nodes*, fixed utilisations with the same streams; so answers do not depend on what was asked
before, and rise with the rate as one stream played faster does.

Ref: P. Glasserman, Monte Carlo Methods in Financial Engineering, 2004, sections 4.1 (control variates), 4.3
(stratification after the fact), 4.4 (Latin hypercubes).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.queues.even_streams import even_gaps, even_levels, whole_tokens
from planner.queues.machine import Machine
from planner.queues.pass_surface import PassSurface
from planner.queues.prompts import Prompts
from planner.queues.queueing import Array, between
from planner.queues.sampled_passes import Lanes, PassRecursion, Streams
from planner.queues.waiting_line import Wait, stationary_wait, waits_in_line
from planner.serving.latency import Latency

_NODES = (0.3, 0.5, 0.62, 0.72, 0.8, 0.86, 0.91, 0.95, 0.98, 0.995)
"""Utilisations; below the first, TTFT goes on to that of prompts alone."""
_UNLOADED = 0.01
"""Below which nobody waits."""
_MOST_STREAMS, _STREAMS = 256, 16
"""The most, and what their number is a multiple of."""
_LONGEST = (60, 5)
"""Full passes that a stream settles at most, and what prompts add to them by each pass more that they are under way."""
_AFTER = 4
"""Full passes of prompts behind those that are counted."""
_LARGE, _LEAST_SHARE = 128, 0.35
"""Prompts of a full pass beyond which fewer passes are counted, and the least share of them."""
_LEAST_CV = 1e-3
_ALIKE = 1e-4
"""Singular values over the largest below which two of what prompts add are one."""
_RAREST = 1.5
"""Prompts that are counted: so many of the longest are alike, for a single one would decide about percentiles."""
_SEED = 0


@dataclass(frozen=True, slots=True)
class _Extent:
    """How large a sample is."""

    settle: tuple[float, float]
    """Full passes in a stream before those that are counted, and what prompts that are under way for one more add."""
    relax: float
    """The first, in times that what waits takes to be forgotten."""
    counted: float
    """Full passes of prompts that are counted in a stream, or more."""
    prompts: int
    """Counted in all streams, about, or more."""
    streams: int
    """The fewest."""


_SAMPLE = _Extent((4, 2), 1.5, 4, 20_000, 96)
_FULL = _Extent((6, 2), 0.0, 16, 60_000, 64)
"""For the saturation."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Streams, and prompts of each: how many settle at each of some loads, how many are counted, and all."""

    streams: int
    settle: tuple[int, ...]
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
        order = np.argsort(alone_seconds, kind="stable")
        self._prompts = whole_tokens(Prompts(prompts.tokens[order], prompts.reused[order], prompts.weights[order]))
        self._alone = alone_seconds[order]
        self._found: dict[tuple[int, float], Sampled] = {}
        left = self._prompts.tokens - np.floor(self._prompts.reused / machine.budget_tokens) * machine.budget_tokens
        self._full = max(machine.ranks * machine.budget_tokens / float(left @ self._prompts.weights), 1.0)

    @cached_property
    def _recursion(self) -> PassRecursion:
        surface = PassSurface(self._machine, float(self._prompts.tokens.max()))
        return PassRecursion(self._machine, self._prompts, surface)

    @property
    def saturation_per_second(self) -> float:
        """Prompts per second when all of a stream wait from the start."""
        return self._saturated[0]

    @property
    def work_seconds(self) -> Array:
        """[kinds], the quickest alone first: what a prompt adds to full passes, 1/saturation on average."""
        return self._saturated[1]

    @cached_property
    def _saturated(self) -> tuple[float, Array]:
        """Prompts per second of streams that all wait from the start, and the seconds that each kind adds to these.

        Whole passes: how long they last, against the tokens and pairs of the prompts that end in them.
        """
        sizes = self._sizes(_FULL)
        kinds, count, settle = self._kinds(sizes), sizes.streams, max(sizes.settle)
        last = settle + sizes.counted
        streams = Streams.of(np.zeros(kinds.shape), kinds, self._machine.ranks)
        none = np.zeros(count, dtype=np.int64)
        lanes = Lanes(np.arange(count), np.ones(count), np.zeros(count), none, none, none + last)
        ends = self._recursion.finished(streams, lanes)
        order = np.sort(ends, axis=1)
        since, until = order[:, [settle]], order[:, [last - min(int(4 * self._full), sizes.counted // 2)]]
        ended = (ends > since) & (ends <= until)
        sums = np.stack([np.where(ended, column[kinds[:, :last]], 0.0).sum(axis=1) for column in self._parts])
        seconds = (until - since)[:, 0]
        work = np.maximum(np.linalg.pinv(sums.T, rcond=_ALIKE) @ seconds @ self._parts, 0.0)
        mean = float(work @ self._prompts.weights)
        # Counted as the seconds that they add: how many ended depends on which ones did.
        done = np.where(ended, work[kinds[:, :last]], 0.0).sum()
        saturation = float(done / mean / seconds.sum())
        return saturation, work / (mean * saturation)

    @property
    def _parts(self) -> Array:
        """[parts, kinds] of what a prompt adds to full passes: room, computed tokens and pairs, each over its mean."""
        tokens, reused = self._prompts.tokens, self._prompts.reused
        computed = tokens - reused
        parts = np.stack([self._recursion.lengths, computed, computed * (reused + (computed + 1) / 2)])
        return np.asarray(parts / (parts @ self._prompts.weights)[:, None], dtype=np.float64)

    def ttft(self, rate_per_second: float, squared_cv: float) -> Latency | None:
        """TTFT at a rate, None beyond the last node: between the two nodes beside it 1/seconds is straight."""
        load, cv = rate_per_second / self.saturation_per_second, max(squared_cv, _LEAST_CV)
        if load >= _NODES[-1]:
            return None
        if load < _UNLOADED:
            return self._unloaded
        above = int(np.searchsorted(_NODES, load, side="right"))
        beside = [place for place in (above - 1, above) if place >= 0]
        self._solve(beside, cv)
        high = self._found[above, cv].ttft
        if not above:
            return between(self._unloaded, high, load / _NODES[0])
        part = (load - _NODES[above - 1]) / (_NODES[above] - _NODES[above - 1])
        return between(self._found[above - 1, cv].ttft, high, part)

    def least_ttft(self, rate_per_second: float, squared_cv: float) -> Latency | None:
        """TTFT at the node at or below a rate, which ``ttft`` is not below; None beyond the last."""
        load, cv = rate_per_second / self.saturation_per_second, max(squared_cv, _LEAST_CV)
        if load >= _NODES[-1]:
            return None
        below = int(np.searchsorted(_NODES, load, side="right")) - 1
        if below < 0:
            return self._unloaded
        self._solve([below], cv)
        return self._found[below, cv].ttft

    def least_wait(self, rate_per_second: float, squared_cv: float) -> Latency | None:
        """What the line holds of TTFT: 5 ms tell what is late by far; None where ``ttft`` is."""
        load = rate_per_second / self.saturation_per_second
        if load >= _NODES[-1]:
            return None
        if load < _UNLOADED:
            return self._unloaded
        law = stationary_wait(self.work_seconds, self._prompts.weights, rate_per_second, max(squared_cv, _LEAST_CV))
        seconds = np.arange(float(law.masses.size)) * law.step_seconds
        return Latency.from_masses(seconds, law.masses, law.mean_seconds)

    def error(self, rate_per_second: float, squared_cv: float) -> float:
        """Standard error of the mean of TTFT at a rate, relative: that of the node above."""
        place = int(np.searchsorted(_NODES[:-1], rate_per_second / self.saturation_per_second, side="right"))
        self._solve([place], max(squared_cv, _LEAST_CV))
        return self._found[place, max(squared_cv, _LEAST_CV)].error

    @cached_property
    def _unloaded(self) -> Latency:
        return Latency.from_masses(self._alone + self._extra_seconds, self._prompts.weights)

    def _sizes(self, extent: _Extent, squared_cv: float = 0.0) -> _Sizes:
        """Return the sizes of a sample at the nodes; what waits is forgotten in (c_a² + c_s²)/(1 - load)² prompts."""
        usual = max(self._full, self._machine.ranks / 2)
        usual *= max(min(1.0, _LARGE / usual), _LEAST_SHARE)  # large passes are alike, so fewer tell as much
        relax = extent.relax * (squared_cv + self._work_squared_cv) if extent.relax else 0.0
        least, most = ((passes + times * (self._under_way - 1)) * usual for passes, times in (extent.settle, _LONGEST))
        settle = tuple(math.ceil(min(least + relax / (1 - load) ** 2, most)) for load in _NODES)
        counted = math.ceil(max(extent.counted * usual, extent.prompts / _MOST_STREAMS))
        streams = int(np.clip(extent.prompts / counted, extent.streams, _MOST_STREAMS))
        needed = max(settle) + counted + math.ceil(_AFTER * max(self._full, self._machine.ranks))
        step = 1 << max(needed.bit_length() - 3, 0)
        return _Sizes(
            streams=round(streams / _STREAMS) * _STREAMS,
            settle=settle,
            counted=counted,
            places=-(-needed // step) * step,  # levels are drawn once for rows that are nearly alike
        )

    @cached_property
    def _under_way(self) -> float:
        """Passes that a prompt takes that is under way."""
        passes, weights = np.ceil(self._recursion.lengths / self._machine.budget_tokens), self._prompts.weights
        return float(passes**2 @ weights) / float(passes @ weights)

    @property
    def _work_squared_cv(self) -> float:
        """Of the seconds that prompts add to full passes."""
        work, weights = self.work_seconds, self._prompts.weights
        return float(work**2 @ weights) / float(work @ weights) ** 2 - 1

    def _kinds(self, sizes: _Sizes, since: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Kinds of the prompts of each stream from place ``since`` on, [streams, places]."""
        below, rare = np.cumsum(self._prompts.weights), _RAREST / (sizes.streams * sizes.counted)
        levels = even_levels(_SEED, sizes.streams, sizes.places)[:, since:]
        levels = np.where(levels > 1 - rare, 1 - 0.7 * rare, levels)
        return np.minimum(np.searchsorted(below, levels), below.size - 1)

    def _solve(self, nodes: list[int], squared_cv: float) -> None:
        """Find TTFT at the nodes that are not known yet, their streams side by side."""
        missing = [node for node in nodes if (node, squared_cv) not in self._found]
        if not missing:
            return
        sizes = self._sizes(_SAMPLE, squared_cv)
        count, settle = sizes.streams, [sizes.settle[node] for node in missing]
        first = max(settle)
        since = max(sizes.settle) - first  # the same prompts are counted at each node, whichever are asked for
        kinds = self._kinds(sizes, since)
        gaps = even_gaps(_SEED + 1, squared_cv, count, sizes.places)
        arrivals, gaps = np.cumsum(gaps, axis=1)[:, since:], gaps[:, since:]
        rates = self.saturation_per_second * np.array([_NODES[node] for node in missing])
        starts, last = [first - each for each in settle], first + sizes.counted
        lines = [
            self._line(kinds[:, start:last], gaps[:, start:last], rate, squared_cv)
            for start, rate in zip(starts, rates.tolist(), strict=True)
        ]
        begins = [
            arrivals[:, start] / rate + line[:, 0] for start, rate, (line, _) in zip(starts, rates, lines, strict=True)
        ]
        lanes = Lanes(
            stream=np.tile(np.arange(count), rates.size),
            rates=np.repeat(rates, count),
            begin_seconds=np.concatenate(begins),
            start=np.repeat(starts, count),
            first=np.full(rates.size * count, first),
            last=np.full(rates.size * count, last),
        )
        ends = self._recursion.finished(Streams.of(arrivals, kinds, self._machine.ranks), lanes)
        for place, node in enumerate(missing):
            waits = ends[place * count : (place + 1) * count] - arrivals[:, first:last] / rates[place]
            line, law = lines[place]
            self._found[node, squared_cv] = self._told(waits, line[:, -sizes.counted :], law)

    def _line(
        self, kinds: np.ndarray[tuple[int, int], np.dtype[np.int64]], gaps: Array, rate: float, squared_cv: float
    ) -> tuple[Array, Wait]:
        """Waits of prompts in a line of one server that is as busy, [streams, prompts], and their law."""
        law = stationary_wait(self.work_seconds, self._prompts.weights, rate, squared_cv)
        return waits_in_line(law, self.work_seconds[kinds], gaps / rate, _SEED + 2), law

    def _told(self, waits: Array, line: Array, law: Wait) -> Sampled:
        """Return TTFT, what the line tells of it after its law; what is beyond stays with the prompt.

        Args: ``waits`` and those of the line, [streams, prompts].
        """
        means = np.stack([waits.mean(axis=1), line.mean(axis=1)])
        (_, both), (_, alone) = np.cov(means)
        share = float(both / alone) if alone > 0 else 1.0
        beyond = waits - share * line
        order = np.argsort(line, axis=None)
        exact = share * law.at((np.arange(order.size) + 0.5) / order.size)
        seconds = np.sort(np.maximum(exact + beyond.ravel()[order], self._alone[0])) + self._extra_seconds
        mean = share * law.mean_seconds + float(beyond.mean()) + self._extra_seconds
        ttft = Latency.from_masses(seconds, np.ones(seconds.size), mean)
        each = beyond.mean(axis=1)
        return Sampled(ttft, float(each.std(ddof=1)) / math.sqrt(each.size) / mean)
