"""Every cap of a decode batch at once: with which of them requests keep a TPOT limit most often.

A cap below the largest batch lets requests wait, and lets those that run be quicker. Which cap serves a rate best is no
question of searching: the chances of n running requests are the same product for every cap (``birth_death``), cut where
the cap stands, so sums up to each cap tell all of them in one go.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ground.arrays import Floats, Ints
from planner.closed_forms.birth_death import Iterating, request_levels, residence_variance


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches(Iterating):
    """An instance whose batch may be capped."""

    full_seconds: Floats  # [requests], of an iteration where so many are the cap
    limit_seconds: float  # TPOT limit
    most_utilisation: float  # utilisation limit: largest planned rate over that of a full instance

    @property
    def full_per_second(self) -> Floats:
        """Requests finished per second where so many are the cap and all run, [requests]."""
        return np.asarray(self.running / (self.iterations.mean * self.full_seconds))

    def kept(self, caps: Ints, rate_per_second: float) -> Floats:
        """Return the share of requests that keep the limit with each cap at a rate, [caps]; 0 past most utilisation.

        What ``birth_death.decode_state`` says of one cap, but that waits are exponential instead of levels of it.
        """
        able = self.most_utilisation * self.full_per_second[caps - 1] >= rate_per_second
        found = np.zeros(caps.shape)
        if able.any():
            found[able] = _Occupancies.of(self, caps[able], rate_per_second).kept()
        return found


class _Occupancies(NamedTuple):
    """Running requests at a rate with each cap: what is summed up to it; [caps], and [0..requests] of the product."""

    batches: Batches
    rate: float
    caps: Ints
    waiting: Floats  # [caps]: share that finds the instance full
    seen: Floats  # [0..requests]: pi(n) n / tau(n), what iterations see
    own: Floats  # [caps]: what they see of a full instance, with 0, 1, ... waiting

    @classmethod
    def of(cls, batches: Batches, caps: Ints, rate: float) -> "_Occupancies":
        finished = batches.finished_per_second
        logs = np.append(0.0, np.cumsum(np.log(rate / finished)))
        masses = np.exp(logs - logs.max())
        full = batches.full_per_second[caps - 1]
        in_line = masses[caps - 1] * rate / full / (1 - rate / full)
        seen = np.append(0.0, masses[1:] * batches.running / batches.iteration_seconds)
        own = in_line * caps / batches.full_seconds[caps - 1]
        return cls(batches, rate, caps, in_line / (np.cumsum(masses)[caps - 1] + in_line), seen, own)

    def kept(self) -> Floats:
        """Share of requests within the limit, [caps]."""
        batches, caps, spread = self.batches, self.caps, self.batches.iterations.squared_cv
        seconds, full = batches.iteration_seconds, batches.full_seconds[self.caps - 1]
        likely, lengths, luck = request_levels(batches.iterations, batches.tokens_squared_cv)
        iterations = batches.iterations.mean * lengths * luck
        mean = self._mean_seen(seconds)[:, None]
        fixed = batches.transfer_seconds + batches.joining_iterations * mean  # [caps, 1]
        limit = batches.limit_seconds * batches.tokens_per_iteration / luck - fixed / iterations  # [caps, levels]
        shrink = np.sqrt(residence_variance(self._elasticity(mean[:, 0])[:, None], lengths, spread))
        longest = mean + (limit - mean) / shrink  # [caps, levels] of an iteration that is in time
        within = self._within(longest)
        scale = (1 + spread) / 2 / (batches.full_per_second[caps - 1] - self.rate)
        late = -np.expm1(-np.maximum(limit - full[:, None], 0.0) * iterations / scale[:, None])
        waiting = self.waiting[:, None]
        return np.asarray(((1 - waiting) * within / self._total[:, None] + waiting * late) @ likely)

    def _within(self, longest: Floats) -> Floats:
        """Share of requests with iterations of at most so long, [caps, levels]."""
        caps, seconds = self.caps[:, None], self.batches.iteration_seconds
        places = np.minimum(np.searchsorted(seconds, longest, side="right"), caps)  # states that are in time
        masses = np.cumsum(self.seen)[np.minimum(places, caps - 1)] + np.where(places == caps, self.own[:, None], 0.0)
        if longest.shape[1] > 1:
            return np.asarray(masses)
        # As a distribution of few masses is read: each spread evenly down to the one before it.
        after = np.minimum(places, caps - 1)
        before = np.where(places > 0, seconds[np.maximum(places - 1, 0)], 0.0)
        part = np.clip((longest - before) / np.maximum(seconds[after] - before, 1e-300), 0.0, 1.0)
        own = np.where(after == caps - 1, self.own[:, None], self.seen[after + 1])
        return np.asarray(masses + np.where(places == caps, 0.0, part * own))

    @property
    def _total(self) -> Floats:
        return np.asarray(np.cumsum(self.seen)[self.caps - 1] + self.own)

    def _mean_seen(self, values: Floats) -> Floats:
        """Mean over iterations of what is given by the running requests, [caps]."""
        below = np.cumsum(self.seen * np.append(0.0, values))[self.caps - 1]
        return np.asarray((below + self.own * values[self.caps - 1]) / self._total)

    def _elasticity(self, mean: Floats) -> Floats:
        running, seconds = self.batches.running, self.batches.iteration_seconds
        busy = self._mean_seen(running)
        slope = np.interp(busy + 0.5, running, seconds) - np.interp(busy - 0.5, running, seconds)
        return np.clip(slope * busy / mean, 0.0, 0.999)
