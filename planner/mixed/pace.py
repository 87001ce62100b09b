"""Time per output token of requests at an aggregated instance: how much its mean over a residence varies.

Count time in steps. A step is longer by ``slope`` for each running request more, and a prompt takes ``per_prompt``
seconds, what comes meanwhile included. So prompts come in clusters, c = 1 + rate · per_prompt times as large as one,
and they make both the running requests, averaged over a residence, and the prompts of the residence vary, together.

Ref: clusters of self-exciting arrivals, A. G. Hawkes, Biometrika 58:83, 1971; the rest is derived here.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.mixed.even import extra_behind
from planner.queues.decode_queue import residence_variance
from planner.queues.queueing import Array, gamma_nodes, gamma_quantiles
from planner.workload import Lengths

_LENGTH_EDGES = np.concatenate(
    [[0.0], np.geomspace(1e-3, 0.1, 5), np.linspace(0.2, 0.9, 8), [0.95, 0.98, 0.99, 0.996, 1.0]]
)
"""Levels between which answers are taken as one, fine at both ends."""
_SHAPES = 24
_MOST_LEAST = 0.99
"""Of a mean step: the shortest is below it."""
_MOST_KEPT = 1 - 1e-6
"""Of what makes a step long, by the next: as good as all of it, and its powers still differ from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What makes steps long and short at one rate."""

    rate_per_second: float
    step_seconds: float
    running: float
    running_variance: float
    slope: float
    """Seconds that one more running request adds to a step, with the prompts that come meanwhile."""
    per_prompt: float
    """Seconds by which one more prompt delays steps, with what comes meanwhile."""
    work_squared_cv: float
    """Of the tokens of a prompt that are to be computed."""
    dispersion: float = 1.0
    """Variance over mean of the prompts that come over long times; 1 for Poisson arrivals."""
    bare: tuple[Array, Array]
    """Running requests, and seconds of steps of so many without prompts."""
    step_variance: float
    """Of single steps by their prompts, in squared seconds: means over a residence vary no more."""
    longest_seconds: float = math.inf
    """Of a step."""
    behind_seconds: float | None = None
    """By which the steps of a mean answer are longer for the prompts behind its own, where that is known exactly."""

    def variance(self, lengths: Array, iterations: Lengths) -> Array:
        """Variance of the mean step time over a residence, in squared seconds; ``lengths`` over the mean one.

            slope² · V · r · k + slope · p · c · n · d · r · s / I + p² · rate · step · (w + d) / (I x)

        with V and n variance and mean of the running requests, r of it what a residence leaves
        (``residence_variance``), p = ``per_prompt``, w = ``work_squared_cv``, d = ``dispersion``, I steps of a mean
        answer and x of this one over it. k = c² d for answers of one length, whose leaving repeats their coming, and
        halfway to 1 for exponential ones; s = 1.36 and 1 for the two: a prompt's delay and its running overlap by half
        a residence, or by 1/e of it.
        """
        spread = min(iterations.squared_cv, 1.0)
        elasticity = np.array(min(max(self.slope * self.running / self.step_seconds, 0.0), 0.95))
        left = residence_variance(elasticity, lengths, iterations.squared_cv)
        both = self.slope * self.per_prompt * self.cluster * self.running * self.dispersion / iterations.mean
        shared = (1.36 - 0.36 * spread) * both
        occupied = self.slope**2 * self.running_variance * self._coming(iterations)
        return np.asarray((occupied + shared) * left + self._own(iterations.mean * lengths))

    @property
    def cluster(self) -> float:
        """Prompts that come while one prompt delays steps, those that come meanwhile included, and itself."""
        return 1 + self.rate_per_second * self.per_prompt

    @property
    def _coming_dispersion(self) -> float:
        """Variance over mean of the prompts of many steps: long ones bring more others."""
        delayed = 1 - 1 / self.cluster  # share of the time that steps take for prompts
        return self.cluster**2 * (self.dispersion + delayed**2 * self.work_squared_cv)

    def _coming(self, iterations: Lengths) -> float:
        """How much more running requests vary than of prompts that come one by one, over long times."""
        coming = self._coming_dispersion
        return coming - min(iterations.squared_cv, 1.0) * (coming - 1) / 2

    def _own(self, steps: Array) -> Array:
        """Variance of the mean of so many steps by their prompts alone.

        As if what steps have in common were kept by a share h from one to the next, so much that the variance is the
        one that the prompts of a long time make: u/steps with u = p² · rate · step · (w + d) = v (1 + h)/(1 - h) and v
        the variance of single steps. So many steps have v (1 + h)/(1 - h) F/steps; F = 1 - 2h (1 - h^steps)/(steps (1 -
        h²)) is what of the dispersion of a long time shows in them.
        """
        single, kept, shown = self._memory(steps)
        return single * (1 + kept) / (1 - kept) * shown / steps

    def _memory(self, steps: Array) -> tuple[float, float, Array]:
        """(v, h, F) of ``_own``."""
        varied = self.work_squared_cv + self.dispersion
        over = self.per_prompt**2 * self.rate_per_second * self.step_seconds * varied
        single = min(self.step_variance, over)
        kept = min((over - single) / (over + single), _MOST_KEPT) if single > 0 else 0.0
        return single, kept, 1 - 2 * kept * (1 - kept**steps) / (steps * (1 - kept**2))

    def seen_longer(self, iterations: Lengths) -> float:
        """How much longer steps are to requests that run than on average over steps.

        Requests begin to run with the prompts of a step, among those that come behind them (``behind_seconds``), and
        more than one request by itself makes others run beside it.
        """
        behind = self.behind_seconds
        if behind is None:
            behind = self._behind(iterations.mean)
        return float(1 + (behind / iterations.mean + self._beside(iterations)) / self.step_seconds)

    def _behind(self, steps: float) -> float:
        """Seconds by which so many steps behind a request's own prompt are longer than as many on average.

        For prompts alike, a step that is longer than one without prompts by x ends x/p0 of them, so that theirs are
        longer by what their mean has in common with the first of them, v (1 - h^steps)/(1 - h) (``_own``). Of prompts
        that differ, only what a step keeps of the one before it, h², and the share of their number in what it has anew,
        d/(w + d), bring as many requests as seconds. And of prompts that do not come at random more or fewer follow.
        """
        single, kept, _ = self._memory(np.array([steps]))
        number = self.dispersion / (self.work_squared_cv + self.dispersion)
        common = single * (kept**2 + (1 - kept**2) * number) / (1 - kept) / self.step_seconds
        gap = self.rate_per_second * self.step_seconds
        follow = extra_behind(gap, gap * steps, self.dispersion) if self.dispersion != 1 else 0.0
        return float((1 - kept**steps) * (common + self.per_prompt * follow))

    def _beside(self, iterations: Lengths) -> float:
        """Seconds by which a step is longer for the requests that the prompts behind others bring.

        As prompts come in clusters, c² times as many requests run beside one as would by themselves, and d times as
        arrivals are; the latter are counted in ``running``. Each adds ``slope``, which like the cluster takes time: of
        both a residence sees Phi = E[max(1 - |Z|/I, 0)], Z what lies between, in steps. Its number is h^|Z| on either
        side for the requests alone, and that and a delay of h^Z for what comes while they are slower. To first order:
        that these slow others down in turn is left out.
        """
        steps = iterations.mean
        _, kept, shown = self._memory(np.array([steps]))
        after = np.arange(1.0, math.ceil(steps) + 1)
        late = float((np.maximum(1 - after / steps, 0.0) * after) @ kept ** (after - 1))
        late += kept / (1 - kept) ** 2 * float(shown[0])
        late *= (1 - kept) ** 2 / (1 + kept)
        seen = (float(shown[0]) + (self.cluster - 1) * late) / self.cluster
        more = (self._coming_dispersion * seen - self.dispersion) * (1 - min(iterations.squared_cv, 1.0) / 2)
        return self._slope_over(more) * more

    def _slope_over(self, more: float) -> float:
        """Seconds that each of so many more running requests adds to a step: where few run a step grows by more."""
        if more <= 0:
            return self.slope
        few, many = np.interp([self.running, self.running + more], *self.bare)
        return min(self.slope, self.cluster * float(many - few) / more)

    def paces(self, iterations: Lengths, longer: float) -> tuple[Array, Array, Array]:
        """Requests as point masses: mean seconds per step over their residence, the residence, mass; [points] each.

        What a mean step has beyond the shortest, of one request alone, is taken as gamma. Requests see ``longer`` steps
        because more of them run while steps are long: that leaves a gamma its scale, so that its variance grows as its
        mean. No step is longer than one that is full.
        """
        edges = _LENGTH_EDGES if iterations.squared_cv else np.array([0.0, 1.0])
        likely = np.diff(edges)
        lengths = gamma_quantiles(iterations.squared_cv, (edges[1:] + edges[:-1]) / 2)
        lengths = np.maximum(lengths, 1 / iterations.mean)  # no answer is shorter than one step
        seen = self.step_seconds * longer
        least = min(float(np.interp(1.0, *self.bare)), _MOST_LEAST * min(seen, self.step_seconds))
        beyond = seen - least
        variance = self.variance(lengths, iterations) * beyond / (self.step_seconds - least)
        shapes, weights = gamma_nodes(variance / beyond**2, _SHAPES)
        paces = np.minimum(least + beyond * shapes, max(self.longest_seconds, seen))  # [lengths, shapes]
        spans = paces * (iterations.mean * lengths)[:, None]
        return paces.ravel(), spans.ravel(), (likely[:, None] * weights).ravel()
