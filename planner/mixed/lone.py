"""What single prompts take from aggregated instances: a bound on the rate with each token budget, before any queue.

``mixed.screen`` spreads prompts evenly over ranks and steps. Yet they come at random, each stands on one rank,
and all ranks wait for it. Of one instance with a rate r of prompts:

- A step lasts b seconds at least, as one without prompts does, so the chance that none came in the k-th step before
  that has a k-th part of x tokens or more is at most exp(-r b P(x, k)), with P(x, k) the share of prompts that have
  one. Over all k: a step's largest part is below x with a chance of at most exp(-r b N(x)), N(x) the mean number of
  such parts of a prompt. With f(x) seconds of a step whose busiest rank computes x tokens alone, rising,

      E T >= b + sum over rising x of (f(x) - f(x before)) (1 - exp(-r b N(x)))

  and full parts are told apart in the same way by what is cached before them.
- The longest prompts, as many as may be late, take all their parts one after another: with c tokens that a step
  computes, L / c - 1 full steps and one more at least.

Where arrivals are dealt out in turn, no gap is less likely to exceed t than with Poisson arrivals (they are HNBUE, R.
E. Barlow and F. Proschan, Statistical Theory of Reliability, 1975, section 6.4); bursts have d times the variance, and
nothing comes with the chance of a negative binomial number. Derived here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.mixed.screen import FEWEST, MARGIN, ROWS_AT_ONCE, Floats, Screen
from planner.question import Question
from planner.queues.prompts import longest_of, prompts_of

_LEVELS = np.array([0.2, 0.5, 0.75, 0.9, 0.97, 0.995])
"""Prompts of which lengths are told apart, as shares of all."""
_SURE = 1.5
"""Times the share that may be late: so many of the longest prompts are looked at, for some meet fewer that run."""
_BETWEEN = 1.05
"""Budgets between those of a list carry up to so much more (docs/queueing.md)."""
_LEAST, _HALVINGS = 1e-4, 11
"""Of a bound: what is looked for, and how often the range is halved."""


@dataclass(frozen=True)
class Lone:
    """Instances with a token budget each, arrays [rows], and what they are asked to keep."""

    question: Question
    screen: Screen
    limit_seconds: Floats
    """Of the mean step."""
    most_running: Floats
    """Requests that a rank has room for."""

    @cached_property
    def _new(self) -> tuple[Floats, Floats]:
        """(tokens to compute, weights) of prompts, shortest first."""
        prompts = prompts_of(self.question.workload)
        new = np.maximum(prompts.tokens - prompts.reused, 1.0)
        order = np.argsort(new, kind="stable")
        return new[order], prompts.weights[order] / prompts.weights.sum()

    @cached_property
    def _told_apart(self) -> Floats:
        """Lengths of prompts at which parts are told apart, rising."""
        new, weights = self._new
        return np.unique(new[np.minimum(np.searchsorted(np.cumsum(weights), _LEVELS), new.size - 1)])

    @cached_property
    def _longest(self) -> float:
        """Length that as many prompts have or exceed as may be late."""
        return longest_of(self.question.workload, min(_SURE * (1 - self.question.percentile / 100), 1.0))[0]

    @cached_property
    def _thinned(self) -> float:
        """Rate of Poisson arrivals that are as often none, over the rate."""
        spread = self.question.workload.arrival_squared_cv
        return math.log(spread) / (spread - 1) if spread > 1 else 1.0

    def of(self, rows: NDArray[np.int64]) -> "Lone":
        """Return some of the instances."""
        return Lone(self.question, self.screen.of(rows), self.limit_seconds[rows], self.most_running[rows])

    def may_carry(self, rate: Floats) -> NDArray[np.bool_]:
        """Whether single prompts leave time for a rate, [rows]; as many run as in ``Screen.may_carry``."""
        found = np.zeros(rate.size, dtype=np.bool_)
        for rows in np.array_split(np.arange(rate.size), -(-rate.size // ROWS_AT_ONCE)) if rate.size else ():
            found[rows] = self.of(rows)._kept(rate[rows])
        return found

    def bound(self, most: Floats) -> Floats:
        """Return the largest rate up to ``most`` that single prompts leave time for, [rows]; 0 where there is none."""
        low, high = most * _LEAST, most.copy()
        able, whole = self.may_carry(low), self.may_carry(most)
        open_ones = np.flatnonzero(able & ~whole)
        own = self.of(open_ones)
        for _ in range(_HALVINGS if open_ones.size else 0):
            middle = np.sqrt(low[open_ones] * high[open_ones])
            kept = own.may_carry(middle)
            low[open_ones[kept]], high[open_ones[~kept]] = middle[kept], middle[~kept]
        return np.where(able, np.minimum(_BETWEEN * high, most), 0.0)

    def _kept(self, rate: Floats) -> NDArray[np.bool_]:
        screen, limit = self.screen, self.limit_seconds
        needed = rate * screen.iterations * limit / screen.ranks
        running = np.clip(needed, FEWEST, np.maximum(np.minimum(self.most_running, screen.fed), FEWEST))
        bare, *seconds = self._seconds(running)
        number = self._parts(screen.room(running))
        come = 1 - np.exp(-self._thinned * rate * bare * number)
        longer = np.diff(np.maximum.accumulate([bare, *seconds], axis=0), axis=0)
        step = (bare + (longer * come).sum(axis=0)) / MARGIN
        reached = (screen.rate(running, step) >= rate * (1 - 1e-9)) | (needed <= FEWEST)
        return np.asarray((self.most_running > 0) & (step <= limit) & reached & self._timely(rate))

    def _seconds(self, running: Floats) -> Floats:
        """Seconds of steps without prompts, with a part of each length, and full after each context, [..., rows]."""
        room = self.screen.room(running)
        lengths = self._told_apart[:, None]
        tokens = np.concatenate([np.zeros((1, room.size)), np.minimum(lengths, room), np.tile(room, (lengths.size, 1))])
        before = np.maximum(lengths - room, 0.0)
        context = np.concatenate([np.zeros((1 + lengths.size, room.size)), before])
        shortened = np.minimum((tokens + 1) / 2, self.screen.pairs_per_token)
        return self.screen.lone(running, tokens, context, tokens * (context + shortened))

    def _parts(self, room: Floats) -> Floats:
        """Mean number of the parts of a prompt that take so long, as of ``_seconds``; [lengths and contexts, rows]."""
        new, weights = self._new
        lengths = self._told_apart[:, None, None]
        full = np.floor(new / room[:, None] * (1 + 1e-12))  # [rows, kinds]
        long = new >= np.minimum(lengths, room[:, None]) * (1 - 1e-9)
        begun = np.ceil(np.maximum(lengths - room[:, None], 0.0) / room[:, None] * (1 - 1e-12))
        sizes = (np.maximum(full, 1.0) * long) @ weights
        return np.concatenate([sizes, np.maximum(full - begun, 0.0) @ weights])

    def _timely(self, rate: Floats) -> NDArray[np.bool_]:
        """Whether the longest of the prompts that may not be late keep the limit, [rows], beside the fewest running."""
        screen, longest = self.screen, self._longest
        bare = screen.bare(np.full(rate.size, FEWEST))
        running = np.minimum(rate * screen.iterations * bare / screen.ranks, screen.fed)
        room = screen.room(running)
        tokens = np.minimum(longest, room)
        pairs = tokens * min(longest / 2, screen.pairs_per_token)
        part = screen.lone(running, tokens, np.zeros_like(tokens), pairs)
        late = np.maximum(np.maximum(longest / room - 1, 0.0) * part + bare, part)
        return np.asarray(late <= MARGIN * self.question.ttft_seconds)


def with_budgets(question: Question, screen: Screen, budgets: Sequence[int], limit: Floats, room: Floats) -> Lone:
    """Return each of the instances with each of the budgets, [budgets · rows].

    Args:
        question: asks for the limits.
        screen: the instances, with whatever budget.
        budgets: of tokens.
        limit: of the mean step, [rows].
        room: requests that a rank has room for, [rows] or [budgets, rows].
    """
    rows = np.tile(np.arange(limit.size), len(budgets))
    each = np.repeat(np.array(budgets, dtype=np.float64), limit.size)
    held = np.broadcast_to(room, (len(budgets), limit.size)).ravel()
    return Lone(question, replace(screen.of(rows), budget_tokens=each), limit[rows], held)
